// SPDX-License-Identifier: MIT
// The step and the output function of SplitMix64 (Vigna; Stafford's variant 13 of MurmurHash3's finaliser).
#pragma once

#include <cstdint>

namespace eaglecpp {

constexpr uint64_t mix_step = 0x9E3779B97F4A7C15ull;

inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

}  // namespace eaglecpp
