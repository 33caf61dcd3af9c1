// SPDX-License-Identifier: MIT
#define KERNEL_NEON
#define KERNEL_NS neon
#define KERNEL_TABLE table_neon
#define KERNEL_NAME "neon"
#include "kernels/isa/table.inc"
