// SPDX-License-Identifier: MIT
// ggml sends a batch of 32 rows and more whose weights lie in host memory to a GPU, weights included: right for a
// prompt of hundreds of rows, far too slow for a verification. llama.cpp decides once for a whole context (op_offload),
// so the question that ggml asks each device is answered here.
#pragma once

#include "ggml_hook/hook.h"

namespace eaglecpp {

// While it lives, graphs that this thread builds are computed where their weights are. Does nothing with a ggml other
// than the version its interface was taken from.
struct NoOffloadScope : kernels::ScopeKeeper {
    explicit NoOffloadScope(bool on);
};

}  // namespace eaglecpp
