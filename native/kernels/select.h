// SPDX-License-Identifier: MIT
// Chooses the instruction set that is fastest on this machine.
#pragma once

#include <string>
#include <vector>

#include "kernels/table.h"

namespace eaglecpp::kernels {

// The kernel tables that this build contains and this processor can run, best first; the last is the portable form.
std::vector<const KernelTable *> usable_tables();

// The one in use: the best, or the one EAGLECPP_KERNELS names (avx512, avx_vnni, avx2, neon, portable; for tests).
// Null where only the portable form runs: ggml's own kernels are faster then.
const KernelTable * chosen_table();

}  // namespace eaglecpp::kernels
