// SPDX-License-Identifier: MIT
// Hashes with the step and the output function of SplitMix64 (Vigna; Stafford's variant 13 of MurmurHash3's
// finaliser).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace eaglecpp {

constexpr uint64_t mix_step = 0x9E3779B97F4A7C15ull;

inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

inline uint64_t hash_bytes(const void * data, size_t n_bytes, uint64_t start = 0) {
    for (size_t i = 0; i < n_bytes; i += sizeof(start)) {
        uint64_t word = 0;
        std::memcpy(&word, (const uint8_t *)data + i, std::min(sizeof(word), n_bytes - i));
        start = mix(start + mix_step + word);
    }
    return start;
}

}  // namespace eaglecpp
