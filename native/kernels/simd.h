// SPDX-License-Identifier: MIT
// Sixteen lanes, spelled the same on every instruction set, each in its file of lanes/. A file that defines one of
// KERNEL_AVX512, KERNEL_AVX2 (with KERNEL_AVX_VNNI or without) and KERNEL_NEON before it includes this gets that one,
// any other the portable form. All names live in a namespace per instruction set (KERNEL_NS), so that one program can
// contain them all.
//
// Every operation gives the same bits on every instruction set: float ones are correctly rounded and in a fixed order,
// integer ones exact. So a product has one result on all machines, and the portable form tests the others.
//
//   F32  16 floats      I32  16 integers
//   Bytes  64 bytes: 16 outputs x 4 inputs, output by output; what dot() multiplies with the same 4 inputs of one row
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(KERNEL_AVX512) || defined(KERNEL_AVX2)
#include <immintrin.h>
#elif defined(KERNEL_NEON)
#include <arm_neon.h>
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define KERNEL_INLINE static __forceinline
#elif defined(KERNEL_AVX512) || defined(KERNEL_AVX2) || defined(KERNEL_NEON)
#define KERNEL_INLINE static inline __attribute__((always_inline))
#else
#define KERNEL_INLINE [[maybe_unused]] static inline
#endif
#if defined(__GNUC__) && (defined(KERNEL_AVX512) || defined(KERNEL_AVX2) || defined(KERNEL_NEON))
#define KERNEL_UNROLL _Pragma("GCC unroll 32")
#else
#define KERNEL_UNROLL
#endif

#if defined(__GNUC__)
#define KERNEL_INLINE_LAMBDA __attribute__((always_inline))
#else
#define KERNEL_INLINE_LAMBDA
#endif

namespace eaglecpp::kernels::KERNEL_NS {

constexpr int n_lanes = 16;

#if defined(KERNEL_AVX512)
#include "kernels/lanes/avx512.inc"
#elif defined(KERNEL_AVX2)
#include "kernels/lanes/avx2.inc"
#elif defined(KERNEL_NEON)
#include "kernels/lanes/neon.inc"
#else
#include "kernels/lanes/portable.inc"
#endif

}  // namespace eaglecpp::kernels::KERNEL_NS
