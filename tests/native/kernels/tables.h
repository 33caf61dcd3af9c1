// SPDX-License-Identifier: MIT
// The kernel tables that this machine can run: the shipped tables, and the portable version as their reference.
#pragma once

#include <vector>

#include "kernels/select.h"

namespace eaglecpp::kernels {

extern const KernelTable table_portable;

// Returns the tables, best first; the portable version is the last one.
inline std::vector<const KernelTable *> tested_tables() {
    std::vector<const KernelTable *> tables = usable_tables();
    tables.push_back(&table_portable);
    return tables;
}

}  // namespace eaglecpp::kernels
