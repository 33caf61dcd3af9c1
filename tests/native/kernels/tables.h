// SPDX-License-Identifier: MIT
// The kernels that can be tested on this machine: those that ship, and the portable form that they are held to.
#pragma once

#include <vector>

#include "kernels/select.h"

namespace eaglecpp::kernels {

extern const KernelTable table_portable;

// best first, the portable form last
inline std::vector<const KernelTable *> tested_tables() {
    std::vector<const KernelTable *> tables = usable_tables();
    tables.push_back(&table_portable);
    return tables;
}

}  // namespace eaglecpp::kernels
