// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace eaglecpp::kernels {

// The grids of ggml's IQ2 and IQ3 types: which sizes the 8 or 4 weights of one index have. A size is its place among
// the type's sizes; the first four weights have the low halves of an entry's bytes, the last four of 8 the high ones.
// Filled from ggml before any weights are packed (ggml_hook/grids.cpp).
struct Grids {
    alignas(64) uint32_t iq2_xxs[256], iq2_xs[512], iq2_s[1024], iq3_xxs[256], iq3_s[512];
};

// as near as a constant: not looked up
#if defined(__GNUC__)
__attribute__((visibility("hidden")))
#endif
extern Grids grids;

}  // namespace eaglecpp::kernels
