// SPDX-License-Identifier: MIT
// What Linux's control groups, versions 1 and 2, leave to this process in a container or a systemd unit. Each group may
// have limits, and so may all groups above it: the smallest one holds.
#pragma once

#include <string>

namespace eaglecpp {

// Returns the bytes that can still be allocated, and infinity without a limit. Page cache that can be dropped counts as
// free. `root`: folder that holds proc/ and sys/, for tests.
double cgroup_memory(const std::string & root = "");

// Returns how many CPUs' time this process may use (a quota over its period), and infinity without a limit.
double cgroup_cpus(const std::string & root = "");

}  // namespace eaglecpp
