// SPDX-License-Identifier: MIT
// Counters of the device that counting_device.cpp simulates.
#pragma once

#include <ggml-backend.h>

#include <cstdint>

extern "C" {

struct EaglecppCounts {
    uint64_t waits;       // number of times that the host waited for the device
    uint64_t bytes_up;    // bytes copied from the host
    uint64_t bytes_down;  // bytes copied to the host
    uint64_t copies;      // number of copies without a wait
    uint64_t graphs;
    uint64_t operations;  // number of operations in these graphs; each operation takes at least one launch on a GPU
    uint64_t allocations, frees;
    uint64_t bytes_held;
    // Number of graphs that differ in operations or sizes, apart from the length of the cache. A GPU prepares each of
    // these graphs.
    uint64_t distinct_graphs;
    uint64_t distinct_targets;  // number of distinct graphs with more than 256 operations
    uint64_t built;             // number of graphs that were built anew, even if they are identical to earlier graphs
    uint64_t captured;          // number of graphs that ggml's CUDA backend would run from a capture
    uint64_t launches;          // number of operations in graphs that do not run from a capture
    uint64_t misaligned;        // number of operations whose source has an offset that GPU shaders cannot bind
};

ggml_backend_reg_t ggml_backend_init(void);
int ggml_backend_score(void);
EaglecppCounts eaglecpp_counts(void);
}
