// SPDX-License-Identifier: MIT
// A clock for programs that run with the counting device (LD_PRELOAD). It shows the time that a card would need for all
// operations counted so far. The card is roughly an H200 (docs/research/gpu.md). So the planner measures the same costs
// on every machine, however busy the machine is. Work on the host takes no time on this clock, and a batch takes the
// time of one row.
#include <chrono>

#include "counting_device.h"

std::chrono::steady_clock::time_point std::chrono::steady_clock::now() noexcept {
    constexpr uint64_t operation_ns = 3000, launch_ns = 3000, wait_ns = 10000, copy_ns = 4000, bytes_a_ns = 20;
    const EaglecppCounts n = eaglecpp_counts();
    return time_point(nanoseconds(n.operations * operation_ns + n.launches * launch_ns + n.waits * wait_ns +
                                  n.copies * copy_ns + (n.bytes_up + n.bytes_down) / bytes_a_ns));
}
