// SPDX-License-Identifier: MIT
#define KERNEL_AVX2
#define KERNEL_AVX_VNNI
#define KERNEL_NS avx_vnni
#define KERNEL_PRODUCTS products_avx_vnni
#include "kernels/isa/products_only.inc"
