// SPDX-License-Identifier: MIT
#include "bindings/bindings.h"
#include "target/llama_bridge.h"

NB_MODULE(_core, m) {
    m.doc() = "Native engine of eaglecpp; see _core.pyi.";
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
