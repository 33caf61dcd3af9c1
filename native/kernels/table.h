// SPDX-License-Identifier: MIT
// The kernels of one instruction set, as function pointers. Each file in isa/ compiles either all kernels or only the
// packed products. select.cpp builds the tables and selects one of them at run time.
#pragma once

#include <ggml.h>

#include <cstdint>

#include "kernels/compute.h"

namespace eaglecpp::kernels {

constexpr int n_group = 16;  // outputs per group of packed weights

// Products of packed quantised weights of one type. quantize() rounds a row of activations to 8 bits, with one scale
// per 32 inputs. The result for a row does not depend on the number of rows.
struct PackedProduct {
    int n_unit;  // the number of inputs must be a multiple of n_unit
    // Returns the size of a group of 16 outputs with n_in inputs, a multiple of 64 bytes.
    size_t (*group_bytes)(int64_t n_in);
    // Packs up to 16 consecutive rows of the file's layout. Missing rows are packed as zeros.
    void (*pack)(const uint8_t * rows, size_t row_bytes, int n_rows, int64_t n_in, uint8_t * group);
    // Rounds activations x[n_in] to row_bytes() bytes.
    void (*quantize)(const float * x, int64_t n_in, uint8_t * row);
    // Computes out[r][o] for all rows r and the outputs o < n_out of groups [g0, g1).
    void (*multiply)(const uint8_t * packed, int64_t n_in, int64_t n_out, int64_t g0, int64_t g1,
                     const uint8_t * const * rows, int n_rows, float * const * out);
};

// Products of F32, F16 and BF16 weights in the file's layout. Computes out[r][o] for all rows r and the outputs o in
// [o0, o1).
using DenseProduct = void (*)(const uint8_t * weights, size_t row_bytes, int64_t n_in, int64_t o0, int64_t o1,
                              const float * const * rows, int n_rows, float * const * out);

// Returns the products of a type; null if the type has no kernel.
using PackedProducts = const PackedProduct * (*)(ggml_type type);

struct KernelTable {
    const char * name;
    PackedProducts packed;
    // Returns the product of a type; null if the type has no kernel.
    DenseProduct (*dense)(ggml_type type);
    // Returns the size of a quantised row of activations.
    size_t (*row_bytes)(int64_t n_in);
    // The kernel of GGML_OP_FLASH_ATTN_EXT; see attention.h.
    size_t (*attention_work_size)(int n_threads, const ggml_tensor * op);
    void (*attention)(const ComputeParams & params, ggml_tensor * op);
    // Computes normed = x / sqrt(mean(x^2) + eps) and out = normed * weights. `normed` or `out` may be null; `out`
    // requires weights. A result may overwrite x.
    void (*norm_row)(const float * x, int64_t n, float eps, const float * weights, float * normed, float * out);
};

}  // namespace eaglecpp::kernels
