// SPDX-License-Identifier: MIT
// Declares the part of ggml's graph state that kernels use: ggml's compute parameters and its barrier.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <utility>

struct ggml_threadpool;

namespace eaglecpp::kernels {

// ggml's `ggml_compute_params` in the pinned version (ggml-cpu-impl.h), checked by tests/native/ggml_hook/test_abi.cpp.
struct ComputeParams {
    int ith, nth;  // index of this thread, number of threads
    size_t wsize;
    void * wdata;  // scratch memory of wsize bytes, shared by all threads; wsize is at least the operation's work size
    ggml_threadpool * threadpool;
    bool use_ref;
};

using Barrier = void (*)(ggml_threadpool *);

// Waits for all threads of the graph. hook.cpp sets this function when it installs the hook; tests set it themselves.
extern Barrier barrier_of_ggml;

inline void barrier(const ComputeParams & p) {
    if (p.nth > 1) barrier_of_ggml(p.threadpool);
}

// Returns the range [first, second) of n items that belongs to thread `ith` of `nth` threads.
inline std::pair<int64_t, int64_t> share(int64_t n, int ith, int nth) {
    return {n * ith / nth, n * (ith + 1) / nth};
}

}  // namespace eaglecpp::kernels
