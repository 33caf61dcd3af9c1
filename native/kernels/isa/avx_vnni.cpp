// SPDX-License-Identifier: MIT
#define KERNEL_AVX2
#define KERNEL_AVX_VNNI
#define KERNEL_NS avx_vnni
#define KERNEL_TABLE table_avx_vnni
#define KERNEL_NAME "avx_vnni"
#include "kernels/isa/table.inc"
