// SPDX-License-Identifier: MIT
// The kernel tables that this machine can run. They are the shipped tables and the portable table, which gives the
// reference results.
#pragma once

#include <vector>

#include "kernels/select.h"

namespace eaglecpp::kernels {

extern const KernelTable table_portable;

// Returns the kernel tables, best first. The last table is the portable table.
inline std::vector<const KernelTable *> tested_tables() {
    std::vector<const KernelTable *> tables = usable_tables();
    tables.push_back(&table_portable);
    return tables;
}

}  // namespace eaglecpp::kernels
