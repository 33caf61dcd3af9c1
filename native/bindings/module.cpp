// SPDX-License-Identifier: MIT
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "target/llama_bridge.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
    // Objects that exist at exit belong to daemon threads, which the interpreter stopped. These objects can no longer
    // be released, so the system frees them. Engines in our own threads end earlier (async_engine).
    nb::set_leak_warnings(false);
    m.doc() = "Native engine of eaglecpp; see _core.pyi.";
    // This function is registered first, so atexit calls it last, after our threads have ended.
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&eaglecpp::wait_for_releases));
    const nb::module_ os = nb::module_::import_("os");
    if (nb::hasattr(os, "register_at_fork")) {
        os.attr("register_at_fork")(nb::arg("after_in_child") = nb::cpp_function(&eaglecpp::forget_releases));
    }
    eaglecpp::route_logs();  // before any line is logged to stderr
    eaglecpp::bind_errors(m);
    eaglecpp::bind_system(m);
    eaglecpp::bind_gguf(m);
    eaglecpp::bind_options(m);
    eaglecpp::bind_target(m);
    eaglecpp::bind_drafter(m);
    eaglecpp::bind_engine(m);
}
