// SPDX-License-Identifier: MIT
// Chooses the instruction set that is fastest on this machine.
#pragma once

#include <vector>

#include "kernels/table.h"

namespace eaglecpp::kernels {

// What a processor offers, as far as the choice depends on it.
struct Processor {
    bool avx2 = false;    // and FMA
    bool avx512 = false;  // F, BW, DQ and VL
    bool avx512_vnni = false;
    bool avx_vnni = false;
    bool dot_products = false;
    bool i8mm = false;
};

// `other` with products of its own.
KernelTable with_products(const KernelTable & other, const char * name, PackedProducts products);

// The kernel tables that this build contains and such a processor can run, best first.
std::vector<const KernelTable *> usable_tables(const Processor & processor);

// The same for this processor.
std::vector<const KernelTable *> usable_tables();

// The one in use: the best, or the one EAGLECPP_KERNELS names (avx512, avx_vnni, avx2, neon; for tests).
// Null where there is none.
const KernelTable * chosen_table();

}  // namespace eaglecpp::kernels
