// SPDX-License-Identifier: MIT
// Implements a buffer type of ggml's CPU backend that stores weights in our packed layout. The hook answers ggml's
// questions about operations on these weights.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "ggml_hook/hook_state.h"
#include "kernels/product_ops.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace eaglecpp::kernels {

namespace {

// Packs large matrices with several threads, because several threads read the file's pages and get fresh memory faster
// than one thread.
void pack_matrix(const ggml_tensor * w, const void * data) {
    constexpr int64_t n_step = 16;  // number of groups that a thread takes at a time
    const int64_t n = packed_groups(w);
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t first; (first = next.fetch_add(n_step)) < n;) {
            pack_groups(*ours.table, w, data, (uint8_t *)w->data, first, std::min(n, first + n_step));
        }
    };
    const size_t n_helpers =
        ggml_nbytes(w) < (1 << 20) ? 0 : std::clamp(std::thread::hardware_concurrency(), 1u, 8u) - 1;
    std::vector<std::thread> helpers;
    helpers.reserve(n_helpers);
    try {
        while (helpers.size() < n_helpers) helpers.emplace_back(work);
    } catch (const std::exception &) {
        // The system cannot start more threads; the existing threads pack the rest.
    }
    work();
    for (std::thread & t : helpers) t.join();
}

// Writes a whole matrix. Writing a part is not supported, because packing distributes each row of the file over its
// group.
void set_tensor(ggml_backend_buffer_t, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    if (offset == 0 && size == ggml_nbytes(t) && can_pack(*ours.table, t)) {
        pack_matrix(t, data);
    } else {
        fail(ErrorKind::broken, "tensor '%s': packed weights can only be written as a whole", ggml_get_name(t));
    }
}

// Fills the data with zeros, because packed weights are never read back. Without this function ggml would call a null
// pointer.
void get_tensor(ggml_backend_buffer_t, const ggml_tensor * t, void * data, size_t, size_t size) {
    std::memset(data, 0, size);
    log_line(LogLevel::error, strf("tensor '%s': packed weights cannot be read back", ggml_get_name(t)));
}

// Makes a host buffer of ggml, into which only whole matrices can be written.
ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    const ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (!buffer) return nullptr;
    auto & own = *(abi::Buffer *)buffer;
    abi::BufferInterface iface = {};
    iface.free_buffer = own.iface.free_buffer;
    iface.get_base = own.iface.get_base;
    iface.set_tensor = set_tensor;
    iface.get_tensor = get_tensor;
    own.iface = iface;
    own.buft = type;
    return buffer;
}

}  // namespace

void prefer_large_pages([[maybe_unused]] void * memory, [[maybe_unused]] size_t n) {
#ifdef __linux__
    constexpr uintptr_t page = 2 << 20;
    const uintptr_t first = ((uintptr_t)memory + page - 1) / page * page, end = (uintptr_t)memory + n;
    if (first + page <= end) madvise((void *)first, end - first, MADV_HUGEPAGE);
#endif
}

abi::BufferType * make_weights_buffer_type(ggml_backend_dev_t cpu) {
    static abi::BufferType type = {};
    type.iface.get_name = [](ggml_backend_buffer_type_t) { return "EAGLECPP_PACKED"; };
    type.iface.alloc_buffer = alloc_buffer;
    type.iface.get_alignment = [](ggml_backend_buffer_type_t) { return (size_t)64; };
    type.iface.get_alloc_size = [](ggml_backend_buffer_type_t, const ggml_tensor * t) {
        return can_pack(*ours.table, t) ? packed_bytes(*ours.table, t) : ggml_nbytes(t);
    };
    type.device = cpu;
    return &type;
}

}  // namespace eaglecpp::kernels
