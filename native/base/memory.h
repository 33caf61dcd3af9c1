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

// Returns the available host memory in bytes, without swapping and within a container's limits; 0 if unknown. Call this
// function before large allocations. With overcommitted memory, a large allocation succeeds, but the system kills the
// process when it uses the pages.
uint64_t available_memory();

// Releases the pages of a mapped file that this process has read. The system reads a page again at its next use.
// Without this call, weights that were copied from the file would take memory twice. The call is a hint, which some
// systems ignore.
void forget_file_pages(const std::string & path);

}  // namespace eaglecpp
