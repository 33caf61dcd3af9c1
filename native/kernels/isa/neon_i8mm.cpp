// SPDX-License-Identifier: MIT
#define KERNEL_NEON
#define KERNEL_I8MM
#define KERNEL_NS neon_i8mm
#define KERNEL_TABLE table_neon_i8mm
#define KERNEL_NAME "neon_i8mm"
#include "kernels/isa/table.inc"
