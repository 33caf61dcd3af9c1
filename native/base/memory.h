// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct ggml_backend_device;

namespace eaglecpp {

// Memory that a model holds on one device, in bytes. Host memory counts as the CPU's memory, even if it serves another
// device.
struct MemoryUse {
    ggml_backend_device * device;
    size_t weights, cache, compute;
};

// Returns the host memory, in bytes, that is available without swapping and within a container's limits; 0 if unknown.
// Check it before large allocations: with overcommitted memory a large allocation succeeds, and the system kills the
// process when it uses the pages.
uint64_t available_memory();

// Releases the pages of a mapped file that this process has touched; the system reads a page again at its next use.
// Without this call, weights that were copied from the file would take memory twice. The call is only a hint, and some
// systems ignore it.
void forget_file_pages(const std::string & path);

}  // namespace eaglecpp
