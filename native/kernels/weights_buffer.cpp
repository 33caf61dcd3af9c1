// SPDX-License-Identifier: MIT
#include "kernels/weights_buffer.h"

#include <cstring>
#include <new>

#include "base/log.h"
#include "kernels/late_packing.h"
#include "kernels/product_ops.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace eaglecpp::kernels {

namespace {

const KernelTable * table_ = nullptr;
abi::BufferInit init_ = nullptr;

thread_local bool packs_later_ = false;

constexpr size_t n_alignment = 64;

// Large pages where the system has them: one row reads every page once, and 4 KB pages cost a tenth of the bandwidth.
uint8_t * allocate(size_t n) {
#ifdef __linux__
    constexpr size_t n_page = 2 << 20;
    if (n >= n_page) {
        void * p = nullptr;
        if (posix_memalign(&p, n_page, n) != 0) return nullptr;
        madvise(p, n, MADV_HUGEPAGE);
        return (uint8_t *)p;
    }
#endif
    return (uint8_t *)::operator new(n, std::align_val_t(n_alignment), std::nothrow);
}

void release(uint8_t * p, [[maybe_unused]] size_t n) {
#ifdef __linux__
    constexpr size_t n_page = 2 << 20;
    if (n >= n_page) {
        free(p);
        return;
    }
#endif
    ::operator delete(p, std::align_val_t(n_alignment));
}

struct Memory {
    uint8_t * base;
    size_t size;
    ~Memory() { release(base, size); }
};

// What a buffer's context points to. Packing ends before the memory goes.
struct Packed {
    Memory memory;
    LatePacking late;
};

Packed & packed(ggml_backend_buffer_t buffer) {
    return *(Packed *)((abi::Buffer *)buffer)->context;
}

const char * type_name(ggml_backend_buffer_type_t) {
    return "EAGLECPP_PACKED";
}

size_t alignment(ggml_backend_buffer_type_t) {
    return n_alignment;
}

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * t) {
    return can_pack(*table_, t) ? packed_bytes(*table_, t) : ggml_nbytes(t);
}

void free_buffer(ggml_backend_buffer_t b) {
    delete &packed(b);
}

void * base(ggml_backend_buffer_t b) {
    return packed(b).memory.base;
}

void memset_tensor(ggml_backend_buffer_t b, ggml_tensor * t, uint8_t value, size_t, size_t) {
    packed(b).late.finish(t->data);
    std::memset(t->data, value, alloc_size(nullptr, t));
}

// Whole matrices only: a row of the file is spread over its group.
void set_tensor(ggml_backend_buffer_t b, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    if (offset == 0 && size == ggml_nbytes(t) && can_pack(*table_, t)) {
        packed(b).late.finish(t->data);
        if (packs_later_ && packed(b).late.add(*table_, t, data, (uint8_t *)t->data)) return;
        pack_weights(*table_, t, data, (uint8_t *)t->data);
    } else {
        log_line(LogLevel::error, std::string(ggml_get_name(t)) + ": packed weights can only be written as a whole");
    }
}

// Nobody reads packed weights back; ggml would call a null pointer.
void get_tensor(ggml_backend_buffer_t, const ggml_tensor * t, void * data, size_t, size_t size) {
    std::memset(data, 0, size);
    log_line(LogLevel::error, std::string(ggml_get_name(t)) + ": packed weights cannot be read back");
}

void clear(ggml_backend_buffer_t b, uint8_t value) {
    packed(b).late.finish_all();
    std::memset(packed(b).memory.base, value, packed(b).memory.size);
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    uint8_t * memory = allocate(size);
    if (!memory) return nullptr;
    abi::BufferInterface iface = {};
    iface.free_buffer = free_buffer;
    iface.get_base = base;
    iface.memset_tensor = memset_tensor;
    iface.set_tensor = set_tensor;
    iface.get_tensor = get_tensor;
    iface.clear = clear;
    return init_(type, iface, new Packed{{memory, size}, {}}, size);
}

}  // namespace

abi::BufferType * make_weights_buffer_type(const KernelTable & table, ggml_backend_dev_t cpu, abi::BufferInit init) {
    static abi::BufferType type = {};
    table_ = &table;
    init_ = init;
    type.iface.get_name = type_name;
    type.iface.alloc_buffer = alloc_buffer;
    type.iface.get_alignment = alignment;
    type.iface.get_alloc_size = alloc_size;
    type.device = cpu;
    return &type;
}

void pack_later(bool on) {
    packs_later_ = on;
    if (!on) LatePacking::start_all();
}

void finish_packing(const ggml_tensor * weights) {
    const ggml_tensor * w = weights->view_src ? weights->view_src : weights;
    packed(w->buffer).late.finish(w->data);
}

}  // namespace eaglecpp::kernels
