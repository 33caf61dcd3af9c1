// SPDX-License-Identifier: MIT
// What the parts of the hook share: hook.cpp installs it and opens scopes, node_traits.cpp computes nodes and graphs,
// weights_buffer.cpp keeps packed weights.
#pragma once

#include <ggml-backend.h>

#include "ggml_hook/ggml_abi.h"
#include "ggml_hook/hook.h"
#include "kernels/table.h"

namespace eaglecpp::kernels {

// set once, before ggml calls us
struct Ours {
    const KernelTable * table = nullptr;
    ggml_backend_buffer_type_t weights = nullptr;  // the type of buffers with packed weights
};
extern Ours ours;

extern thread_local Scope scope;

inline bool is_ours(const ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
    return buffer && ggml_backend_buffer_get_type(buffer) == ours.weights;
}

// Weights that cannot be packed are refused by supports_op(); whoever allocates asks can_pack() first.
// `init`: ggml_backend_buffer_init. One per process, never freed.
abi::BufferType * make_weights_buffer_type(ggml_backend_dev_t cpu, abi::BufferInit init);

// Gives each node that our kernels compute what computes it; all else is asked of `ggmls`.
abi::ExtraBufferType * node_traits_before(abi::ExtraBufferType * ggmls);

// In place of a backend's own, which is the same for all backends and still computes; with `fuses`, in steps of several
// nodes inside a ComputeScope.
using GraphCompute = decltype(abi::BackendInterface::graph_compute);
GraphCompute compute_in_place_of(GraphCompute of_ggml, bool fuses);

}  // namespace eaglecpp::kernels
