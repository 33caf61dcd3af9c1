// SPDX-License-Identifier: MIT
// The kernels of one instruction set, as functions. Each file in isa/ compiles them once, all or the packed products
// alone; select.cpp makes the tables and chooses among them at run time.
#pragma once

#include <ggml.h>

#include <cstdint>

#include "kernels/compute.h"

namespace eaglecpp::kernels {

constexpr int n_group = 16;             // outputs that packed weights keep together
constexpr size_t n_rounded_bytes = 48;  // of 32 inputs of a rounded row, which follow each other

// Products of packed quantised weights of one type. A row of activations is rounded to 8 bits with one scale per 32
// inputs (quantize); the result for a row does not depend on how many rows there are.
struct PackedProduct {
    int n_unit;  // inputs must be a multiple of it
    // bytes of one group of 16 outputs with n_in inputs, a multiple of 64
    size_t (*group_bytes)(int64_t n_in);
    // packs up to 16 consecutive rows of the file's layout; missing ones become zero
    void (*pack)(const uint8_t * rows, size_t row_bytes, int n_rows, int64_t n_in, uint8_t * group);
    // activations [n_in] -> row_bytes() bytes; any 32 by themselves
    void (*quantize)(const float * x, int64_t n_in, uint8_t * row);
    // out[r][o] for outputs o of groups [g0, g1), o < n_out, and all rows r
    void (*multiply)(const uint8_t * packed, int64_t n_in, int64_t n_out, int64_t g0, int64_t g1,
                     const uint8_t * const * rows, int n_rows, float * const * out);
};

// Products of F32, F16 and BF16 weights as they lie in the file: out[r][o] for outputs [o0, o1)
using DenseProduct = void (*)(const uint8_t * weights, size_t row_bytes, int64_t n_in, int64_t o0, int64_t o1,
                              const float * const * rows, int n_rows, float * const * out);

// null where the type has no kernel
using PackedProducts = const PackedProduct * (*)(ggml_type type);

struct KernelTable {
    const char * name;
    PackedProducts packed;
    // null where the type has no kernel here
    DenseProduct (*dense)(ggml_type type);
    // bytes of a quantised row of activations
    size_t (*row_bytes)(int64_t n_in);
    // GGML_OP_FLASH_ATTN_EXT; see attention.h
    size_t (*attention_work_size)(int n_threads, const ggml_tensor * op);
    void (*attention)(const ComputeParams & params, ggml_tensor * op);
    void (*fetch_cells)(const ComputeParams & params, const ggml_tensor * op);
    // Of rows, small_ops.inc; results may replace operands.
    // out = a + b
    void (*add_rows)(const float * a, const float * b, int64_t n, float * out);
    // normed = x / sqrt(mean(x^2) + eps) and out = normed * weights; either may be null, out with weights
    void (*norm_row)(const float * x, int64_t n, float eps, const float * weights, float * normed, float * out);
    // the first n_dims numbers, turned in pairs by angles[n_dims], a cosine and a sine for each: neighbours, or
    // (`is_halves`) numbers n_dims / 2 apart
    void (*rotate_row)(const float * x, int n_dims, bool is_halves, const float * angles, float * out);
    // SwiGLU and GeGLU: out = gate * sigmoid(z) * up, with z = gate or the cubic of gelu's usual approximation
    void (*gate_row)(ggml_glu_op op, const float * gate, const float * up, int64_t n, float * out);
    // to F16
    void (*halve_row)(const float * x, int64_t n, uint16_t * out);
};

}  // namespace eaglecpp::kernels
