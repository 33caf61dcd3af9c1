// SPDX-License-Identifier: MIT
#define KERNEL_NEON
#define KERNEL_I8MM
#define KERNEL_NS neon_i8mm
#define KERNEL_PRODUCTS products_neon_i8mm
#include "kernels/isa/products_only.inc"
