// SPDX-License-Identifier: MIT
// Keeps ggml from moving verifications to a GPU. ggml computes a batch of 32 or more rows on a GPU even if the weights
// are in host memory, and copies the weights to the GPU each time. This is right for a prompt of hundreds of rows, but
// far too slow for a verification. llama.cpp's setting (op_offload) applies to a whole context. So the hook replaces
// the function that ggml calls for each device and operation.
#pragma once

#include "ggml_hook/hook.h"

namespace eaglecpp {

// While a NoOffloadScope exists, graphs that this thread builds are computed where their weights are stored. Does
// nothing with an unknown version of ggml.
struct NoOffloadScope : kernels::ScopeKeeper {
    explicit NoOffloadScope(bool on);
};

}  // namespace eaglecpp
