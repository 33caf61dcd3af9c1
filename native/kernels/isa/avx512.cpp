// SPDX-License-Identifier: MIT
#define KERNEL_AVX512
#define KERNEL_NS avx512
#define KERNEL_TABLE table_avx512
#define KERNEL_NAME "avx512"
#include "kernels/isa/table.inc"
