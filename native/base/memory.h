// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

namespace eaglecpp {

// Host memory that can be used without swapping, in bytes; 0 when the system does not say. Asked before large
// allocations: where memory is overcommitted they succeed, and the process is killed when it touches them.
uint64_t available_memory();

// Lets go of the pages of a mapped file that this process has touched; they come back when they are read again. After
// weights were copied out of it the file would count twice. A hint: does nothing where the system has no such thing.
void forget_file_pages(const std::string & path);

}  // namespace eaglecpp
