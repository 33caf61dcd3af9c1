// SPDX-License-Identifier: MIT
// What the parts of the hook share: hook.cpp installs it and opens scopes, node_traits.cpp computes nodes and graphs,
// late_logits.cpp keeps logits where they are.
#pragma once

#include <ggml-backend.h>

#include "kernels/ggml_abi.h"
#include "kernels/table.h"

namespace eaglecpp::kernels {

class LateLogits;

// set once, before ggml calls us
struct Ours {
    const KernelTable * table = nullptr;
    ggml_backend_buffer_type_t weights = nullptr;  // the type of buffers with packed weights
};
extern Ours ours;

// what this thread has asked for
struct Scope {
    bool is_loading = false;    // inside a LoadScope that asks for our kernels
    bool is_repacking = true;   // not inside a LoadScope without ggml's own types
    bool is_computing = false;  // inside a ComputeScope
    LateLogits * late_logits = nullptr;
};
extern thread_local Scope scope;

inline bool is_ours(const ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
    return buffer && ggml_backend_buffer_get_type(buffer) == ours.weights;
}

// Gives each node that our kernels compute what computes it; all else is asked of `ggmls`.
abi::ExtraBufferType * node_traits_before(abi::ExtraBufferType * ggmls);

// In place of a backend's own: steps of several nodes inside a ComputeScope; `of_ggml`, which is the same for all
// backends, computes.
using GraphCompute = decltype(abi::BackendInterface::graph_compute);
GraphCompute fused_compute(GraphCompute of_ggml);

// in place of a backend's way to copy tensors later, where it has none: logits may stay where they are
void get_or_leave(ggml_backend_t backend, const ggml_tensor * t, void * to, size_t offset, size_t n_bytes);

}  // namespace eaglecpp::kernels
