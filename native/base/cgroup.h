// SPDX-License-Identifier: MIT
// Reads the limits that Linux control groups (versions 1 and 2) set for this process, for example in a container or a
// systemd unit. The process's group and all groups above it may have limits. The smallest limit applies.
#pragma once

#include <string>

namespace eaglecpp {

// Returns the number of bytes that can still be allocated; infinity without a limit. Page cache that the kernel can
// drop counts as free. root: folder that contains proc/ and sys/, for tests.
double cgroup_memory(const std::string & root = "");

// Returns the CPU time that this process may use, in CPUs (quota / period); infinity without a limit.
double cgroup_cpus(const std::string & root = "");

}  // namespace eaglecpp
