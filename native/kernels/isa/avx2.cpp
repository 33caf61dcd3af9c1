// SPDX-License-Identifier: MIT
#define KERNEL_AVX2
#define KERNEL_NS avx2
#define KERNEL_TABLE table_avx2
#define KERNEL_NAME "avx2"
#include "kernels/isa/table.inc"
