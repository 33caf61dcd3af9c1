// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace eaglecpp {

// Host memory that can be used without swapping, in bytes; 0 when the system does not say. Asked before large
// allocations: where memory is overcommitted they succeed, and the process is killed when it touches them.
uint64_t available_memory();

}  // namespace eaglecpp
