// SPDX-License-Identifier: MIT
// State shared by the parts of the hook: hook.cpp installs it and opens scopes, node_traits.cpp computes nodes and
// graphs, weights_buffer.cpp stores packed weights.
#pragma once

#include <ggml-backend.h>

#include "ggml_hook/ggml_abi.h"
#include "ggml_hook/hook.h"
#include "kernels/table.h"

namespace eaglecpp::kernels {

// Set once, before ggml calls us.
struct Ours {
    const KernelTable * table = nullptr;
    ggml_backend_buffer_type_t weights = nullptr;  // buffer type for packed weights
};
extern Ours ours;

extern thread_local Scope scope;

inline bool is_ours(const ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
    return buffer && ggml_backend_buffer_get_type(buffer) == ours.weights;
}

// Weights that cannot be packed are refused by supports_op(); allocators must check can_pack() first. `init`:
// ggml_backend_buffer_init. One per process, never freed.
abi::BufferType * make_weights_buffer_type(ggml_backend_dev_t cpu, abi::BufferInit init);

// Assigns our kernels to the nodes that they compute; all other questions go to `ggmls`.
abi::ExtraBufferType * node_traits_before(abi::ExtraBufferType * ggmls);

// Replaces a backend's graph_compute, which is the same for all backends and still does the work. With `fuses`,
// computes in steps of several nodes inside a ComputeScope.
using GraphCompute = decltype(abi::BackendInterface::graph_compute);
GraphCompute compute_in_place_of(GraphCompute of_ggml, bool fuses);

}  // namespace eaglecpp::kernels
