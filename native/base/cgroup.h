// SPDX-License-Identifier: MIT
// Limits of Linux control groups (versions 1 and 2) for this process in a container or a systemd unit. Each group and
// all groups above it may have limits; the smallest one applies.
#pragma once

#include <string>

namespace eaglecpp {

// Returns the bytes that can still be allocated; infinity without a limit. Page cache that can be dropped counts as
// free. root: folder with proc/ and sys/, for tests.
double cgroup_memory(const std::string & root = "");

// Returns the CPU time that this process may use, in CPUs (quota / period); infinity without a limit.
double cgroup_cpus(const std::string & root = "");

}  // namespace eaglecpp
