// SPDX-License-Identifier: MIT
// Where a program is started with the counting device (LD_PRELOAD), its C++ code has this clock: what a card would take
// for all that was counted so far, roughly an H200 (docs/research/gpu.md). A planner then finds the same prices on
// every machine, however busy. The host takes no time, and all rows of a batch together take what one does.
#include <chrono>

#include "counting_device.h"

std::chrono::steady_clock::time_point std::chrono::steady_clock::now() noexcept {
    constexpr uint64_t operation_ns = 3000, launch_ns = 3000, wait_ns = 10000, copy_ns = 4000, bytes_a_ns = 20;
    const EaglecppCounts n = eaglecpp_counts();
    return time_point(nanoseconds(n.operations * operation_ns + n.launches * launch_ns + n.waits * wait_ns +
                                  n.copies * copy_ns + (n.bytes_up + n.bytes_down) / bytes_a_ns));
}
