// SPDX-License-Identifier: MIT
// Chooses the instruction set that is fastest on this machine.
#pragma once

#include <string>
#include <vector>

#include "kernels/table.h"

namespace eaglecpp::kernels {

// What a processor offers, as far as the choice depends on it.
struct Processor {
    bool avx2 = false, avx512 = false, avx512_vnni = false,
         avx_vnni = false;  // avx2: and FMA; avx512: F, BW, DQ and VL
    bool dot_products = false, i8mm = false;
};

// The kernel tables that this build contains and such a processor can run, best first; the last is the portable form.
std::vector<const KernelTable *> usable_tables(const Processor & processor);

// The same for this processor.
std::vector<const KernelTable *> usable_tables();

// The one in use: the best, or the one EAGLECPP_KERNELS names (avx512, avx_vnni, avx2, neon, portable; for tests).
// Null where only the portable form runs: ggml's own kernels are faster then.
const KernelTable * chosen_table();

}  // namespace eaglecpp::kernels
