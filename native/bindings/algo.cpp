// SPDX-License-Identifier: MIT
#include <nanobind/stl/vector.h>

#include "algo/text.h"
#include "bindings/bindings.h"
#include "grammar/grammar.h"

namespace nb = nanobind;

namespace eaglecpp {

void bind_algo(nb::module_ & m) {
    nb::class_<TextIndex>(m, "TextIndex")
        .def(nb::init<int>(), nb::arg("n_max"))
        .def("add", &TextIndex::add, nb::arg("token"))
        .def("propose", [](const TextIndex & t, int n) { return t.propose(n).tokens; }, nb::arg("n"));

    m.def("grammar_limits", [] {
        using L = GrammarLimits;
        nb::dict d;
        d["n_text_bytes"] = L::n_text_bytes;
        d["n_repetitions"] = L::n_repetitions;
        d["n_steps"] = L::n_steps;
        d["n_steps_back"] = L::n_steps_back;
        d["n_frames"] = L::n_frames;
        d["n_schema_bytes"] = L::n_schema_bytes;
        d["n_schema_depth"] = L::n_schema_depth;
        d["n_schema_nodes"] = L::n_schema_nodes;
        return d;
    });
}

}  // namespace eaglecpp
