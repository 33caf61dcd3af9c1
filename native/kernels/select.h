// SPDX-License-Identifier: MIT
// Selects the fastest instruction set for this machine.
#pragma once

#include <vector>

#include "kernels/table.h"

namespace eaglecpp::kernels {

// Processor features that the selection depends on.
struct Processor {
    bool avx2 = false;    // AVX2 and FMA
    bool avx512 = false;  // AVX-512 F, BW, DQ and VL
    bool avx512_vnni = false;
    bool avx_vnni = false;
    bool dot_products = false;
    bool i8mm = false;
};

// Returns a copy of `other` with the given packed products.
KernelTable with_products(const KernelTable & other, const char * name, PackedProducts products);

// Returns the kernel tables of this build that a processor with these features can run, best first.
std::vector<const KernelTable *> usable_tables(const Processor & processor);

// Returns the features of this machine's processor.
Processor this_processor();

// Returns the kernel tables of this build that this machine's processor can run, best first.
std::vector<const KernelTable *> usable_tables();

// Returns the table in use: the fastest usable table, or the table named by EAGLECPP_KERNELS (avx512, avx_vnni, avx2,
// neon; for tests). Null if no table is usable.
const KernelTable * chosen_table();

}  // namespace eaglecpp::kernels
