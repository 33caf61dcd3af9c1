// SPDX-License-Identifier: MIT
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "target/llama_bridge.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
    // What is left at exit is held by threads that the interpreter stops in the middle (daemon threads of the program):
    // nobody can release it then, and the system frees it. Engines of ours that have a thread end before
    // (async_engine).
    nb::set_leak_warnings(false);
    m.doc() = "Native engine of eaglecpp; see _core.pyi.";
    // first registered, so called last: behind what ends threads of ours
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&eaglecpp::wait_for_releases));
    const nb::module_ os = nb::module_::import_("os");
    if (nb::hasattr(os, "register_at_fork")) {
        os.attr("register_at_fork")(nb::arg("after_in_child") = nb::cpp_function(&eaglecpp::forget_releases));
    }
    eaglecpp::route_logs();  // before anything can be logged to stderr
    eaglecpp::bind_errors(m);
    eaglecpp::bind_system(m);
    eaglecpp::bind_algo(m);
    eaglecpp::bind_gguf(m);
    eaglecpp::bind_options(m);
    eaglecpp::bind_target(m);
    eaglecpp::bind_drafter(m);
    eaglecpp::bind_engine(m);
}
