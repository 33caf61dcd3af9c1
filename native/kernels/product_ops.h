// SPDX-License-Identifier: MIT
// Computes GGML_OP_MUL_MAT and GGML_OP_MUL_MAT_ID with our kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/compute.h"
#include "kernels/table.h"

namespace eaglecpp::kernels {

// Returns true if our kernels can multiply with these weights [n_in, n_out] or [n_in, n_out, n_experts]. The weights
// must be contiguous, consist of whole units, and have a type with a kernel.
bool can_pack(const KernelTable & table, const ggml_tensor * weights);
size_t packed_bytes(const KernelTable & table, const ggml_tensor * weights);
// packed_groups() returns the number of groups of all matrices together. pack_groups() packs the groups [g0, g1).
// `data` has the tensor in the file's layout. `packed` has room for packed_bytes() bytes.
int64_t packed_groups(const ggml_tensor * weights);
void pack_groups(const KernelTable & table, const ggml_tensor * weights, const void * data, uint8_t * packed,
                 int64_t g0, int64_t g1);

// Returns true for a product whose first operand is packed and whose other operands the kernels can read.
bool can_multiply_packed(const KernelTable & table, const ggml_tensor * op);
// Returns true for a product of F32, F16 or BF16 weights in the file's layout that our kernels can compute.
bool can_multiply_dense(const KernelTable & table, const ggml_tensor * op);

// Returns row i of a tensor, counted over all dimensions.
template <class T>
T * row_of(const ggml_tensor * t, int64_t i) {
    const int64_t i1 = i % t->ne[1], i2 = i / t->ne[1] % t->ne[2], i3 = i / t->ne[1] / t->ne[2];
    return (T *)((char *)t->data + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3]);
}

size_t product_work_size(const KernelTable & table, int n_threads, const ggml_tensor * op);
size_t dense_work_size(int n_threads, const ggml_tensor * op);
void multiply_packed(const KernelTable & table, const ComputeParams & params, ggml_tensor * op);
// These functions compute a product in two parts: round the second operand, then multiply. Each rounded row takes
// row_bytes() bytes, and the first is at `rounded`. If all threads share the rounded rows, `rounded` must be
// rounded_rows(), and the threads must pass a barrier between the parts.
inline uint8_t * rounded_rows(const ComputeParams & params) {
    return (uint8_t *)(((uintptr_t)params.wdata + 63) & ~(uintptr_t)63);
}
size_t rounded_size(const KernelTable & table, const ggml_tensor * op);
void round_row(const KernelTable & table, const ggml_tensor * op, int64_t row, uint8_t * rounded);
void multiply_rounded(const KernelTable & table, const ComputeParams & params, ggml_tensor * op,
                      const uint8_t * rounded);
void multiply_dense(const KernelTable & table, const ComputeParams & params, ggml_tensor * op);

// The groups of outputs that a product of packed weights computes, in order. A product with n_out outputs gives -inf
// for the outputs of all other groups.
struct ChosenGroups {
    int64_t n_out;
    std::vector<int32_t> groups;
};
// Makes a product compute only these groups. `chosen` must outlive the node's graph, and may change between
// computations.
void compute_only(ggml_tensor * op, const ChosenGroups * chosen);

}  // namespace eaglecpp::kernels
