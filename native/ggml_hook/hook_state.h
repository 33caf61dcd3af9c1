// SPDX-License-Identifier: MIT
// State shared by the parts of the hook. hook.cpp installs the hook and opens scopes, node_traits.cpp computes nodes
// and graphs, and weights_buffer.cpp stores packed weights.
#pragma once

#include <ggml-backend.h>

#include "ggml_hook/ggml_abi.h"
#include "ggml_hook/hook.h"
#include "kernels/table.h"

namespace eaglecpp::kernels {

// State that is set once, before ggml calls the hook.
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

// Makes the buffer type for packed weights, once per process. The type is never freed. Its supports_op() rejects
// weights that cannot be packed. Allocators must check can_pack() first.
abi::BufferType * make_weights_buffer_type(ggml_backend_dev_t cpu);

// Requests large pages for memory that is still unused. Every token reads weights and caches once, and each page of 4
// KB costs a walk through the page tables.
void prefer_large_pages(void * memory, size_t n);

// Returns an extra buffer type that assigns our kernels to the nodes that they can compute. It passes all other calls
// to ggml's type, `ggmls`.
abi::ExtraBufferType * node_traits_before(abi::ExtraBufferType * ggmls);

// Returns a replacement for a backend's graph_compute. The replacement calls ggml's function, which is the same for all
// CPU backends. With `fuses`, it computes graphs in steps of several nodes inside a ComputeScope.
using GraphCompute = decltype(abi::BackendInterface::graph_compute);
GraphCompute compute_in_place_of(GraphCompute of_ggml, bool fuses);

}  // namespace eaglecpp::kernels
