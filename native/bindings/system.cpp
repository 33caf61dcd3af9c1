// SPDX-License-Identifier: MIT
#include <ggml.h>
#include <llama.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <thread>

#include "algo/decision.h"
#include "algo/text.h"
#include "base/log.h"
#include "base/memory.h"
#include "bindings/bindings.h"
#include "bindings/fields.h"
#include "bindings/gil.h"
#include "ggml_hook/hook.h"
#include "grammar/matcher.h"
#include "target/amx.h"
#include "target/heads.h"
#include "target/llama_bridge.h"
#include "target/target.h"

namespace nb = nanobind;

namespace eaglecpp {

static nb::dict version_info() {
    nb::dict d;
    d["llama"] = llama_version();
    d["ggml"] = ggml_version();
    d["ggml_commit"] = ggml_commit();
    d["built_for"] = EAGLECPP_LLAMA_CPP_PYTHON;
    return d;
}

static nb::dict system_info() {
    nb::list devices;
    std::vector<DeviceInfo> found;
    {
        // Querying devices on RPC servers uses the network.
        GilRelease release;
        found = list_devices();
    }
    for (const DeviceInfo & info : found) {
        using T = DeviceInfo;
        nb::dict d;
        put_fields(d, info, FIELD(name), FIELD(description), FIELD(kind), FIELD(memory_total), FIELD(memory_free));
        devices.append(d);
    }
    nb::dict out, amx, kernel;
    put_fields(amx, probe_amx(), "claimed", &AmxState::claimed, "works", &AmxState::works);
    using T = kernels::Status;
    put_fields(kernel, kernels::status(), "active", &T::is_active, "possible", &T::is_possible, FIELD(table),
               FIELD(why_not));
    out["kernels"] = kernel;
    out["devices"] = devices;
    out["amx"] = amx;
    out["n_cores"] = n_physical_cores();
    out["n_threads"] = std::thread::hardware_concurrency();
    out["rpc"] = llama_supports_rpc();
    return out;
}

void bind_system(nb::module_ & m) {
    m.def("version_info", &version_info);
    m.def("system_info", &system_info);
    m.def("available_memory", &available_memory);
    m.def("watch_rpc_server", &watch_rpc_server, nb::arg("endpoint"), nb::arg("relay"), nb::arg("pipe"));
    m.def("lost_rpc_servers", [] {
        nb::list out;
        for (const LostServer & s : lost_rpc_servers()) out.append(nb::make_tuple(s.endpoint, s.relay, s.why));
        return out;
    });
    m.def("drain_log", [] {
        nb::list out;
        for (const LogLine & line : log_drain()) out.append(nb::make_tuple((int)line.level, line.text));
        return out;
    });
    m.def("head_architectures", &head_architectures);
    nb::class_<TextIndex>(m, "TextIndex")
        .def(nb::init<int>(), nb::arg("n_max"))
        .def("add", &TextIndex::add, nb::arg("token"))
        .def("propose", [](const TextIndex & t, int n) { return t.propose(n).tokens; }, nb::arg("n"));
    m.def("load_llguidance", &Llguidance::load, nb::arg("path"));
    m.def("check_grammar", &check_grammar, nb::arg("text"), nb::call_guard<nb::gil_scoped_release>());
    m.attr("plan_reasons") = nb::cast(decision_reasons());
}

}  // namespace eaglecpp
