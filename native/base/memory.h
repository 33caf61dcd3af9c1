// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct ggml_backend_device;

namespace eaglecpp {

// Bytes that a model holds of one device's memory. Host memory counts as the CPU's, whatever device it serves.
struct MemoryUse {
    ggml_backend_device * device;
    size_t weights, cache, compute;
};

// Host memory that can be used without swapping and within the limits of a container, in bytes; 0 when the system does
// not say. Asked before large allocations: where memory is overcommitted they succeed, and the process is killed when
// it touches them.
uint64_t available_memory();

// Releases the pages of a mapped file that this process has touched; they come back when they are read again. Without
// this, weights that were copied out of the file would count twice. Only a hint: it does nothing on systems that do
// not offer it.
void forget_file_pages(const std::string & path);

}  // namespace eaglecpp
