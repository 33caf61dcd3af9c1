// SPDX-License-Identifier: MIT
#define KERNEL_NS portable
#define KERNEL_TABLE table_portable
#define KERNEL_NAME "portable"
#include "kernels/isa/table.inc"
