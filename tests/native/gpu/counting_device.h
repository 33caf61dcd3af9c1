// SPDX-License-Identifier: MIT
// What the counting device counts; see counting_device.cpp.
#pragma once

#include <ggml-backend.h>

#include <cstdint>

extern "C" {

struct EaglecppCounts {
    uint64_t waits;       // the host waited for the device
    uint64_t bytes_up;    // from the host
    uint64_t bytes_down;  // to the host
    uint64_t copies;      // that nobody waited for
    uint64_t graphs;
    uint64_t operations;  // of these graphs, each at least one launch on a GPU
    uint64_t allocations, frees;
    uint64_t bytes_held;
    uint64_t distinct_graphs;  // by their operations and sizes: a GPU prepares each anew
    uint64_t built;            // graphs that were built anew, be it as they were
    uint64_t captured;         // graphs that ggml's CUDA backend would run from what it has captured
    uint64_t launches;         // operations of the other graphs
    uint64_t misaligned;       // operations that read where a GPU's shaders cannot bind
};

ggml_backend_reg_t ggml_backend_init(void);
int ggml_backend_score(void);
EaglecppCounts eaglecpp_counts(void);
}
