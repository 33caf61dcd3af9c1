// SPDX-License-Identifier: MIT
// A device for tests and counts. It computes on the CPU but behaves like a GPU: its memory is not host memory, and
// asynchronous copies arrive only when the caller waits. It counts everything that costs time on a GPU: waits, bytes up
// and down, graphs, operations. GGML_BACKEND_PATH=libcounting_device.so loads the device as a backend. The functions at
// the end of this file return the counters. EAGLECPP_COUNTING_DEVICES=2 makes two devices with common counters.
#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "counting_device.h"
#include "ggml_hook/ggml_abi.h"

namespace abi = eaglecpp::kernels::abi;
using abi::Backend, abi::Device;

// ggml exports these functions, but declares them in a private header.
extern "C" ggml_backend_buffer_t ggml_backend_buffer_init(ggml_backend_buffer_type_t, abi::BufferInterface, void *,
                                                          size_t);

namespace {

constexpr int api_version = 2;
constexpr size_t n_align = 256;     // Vulkan's minStorageBufferOffsetAlignment is at most 256
constexpr int n_offload_rows = 32;  // minimum number of rows for which ggml's CUDA backend offloads a product

EaglecppCounts counts;

size_t number_of(const char * name, size_t otherwise) {
    const char * value = std::getenv(name);
    return value ? (size_t)std::strtoull(value, nullptr, 10) : otherwise;
}

// Sizes of the real memory and of the reported memory. They may differ, because other programs may take memory between
// the query and the allocation.
const size_t n_memory = number_of("EAGLECPP_COUNTING_MEMORY", (size_t)8 << 30);

// In idle mode, the device counts without computing or copying. So even a large model needs no memory, because
// untouched memory is not allocated. Reads return the numbers 0, 1, 2 and so on. As ids these numbers are distinct, and
// as floats they are tiny and ascending.
const bool is_idle = number_of("EAGLECPP_COUNTING_IDLE", 0) == 1;

void copy_in(void * to, const void * from, size_t n) {
    if (!is_idle) std::memcpy(to, from, n);
}

void copy_out(void * to, const void * from, size_t n) {
    if (!is_idle) {
        std::memcpy(to, from, n);
        return;
    }
    for (uint32_t i = 0; i < n / sizeof(i); ++i) std::memcpy((char *)to + i * sizeof(i), &i, sizeof(i));
}

bool is_launched(ggml_op op) {
    return op != GGML_OP_NONE && op != GGML_OP_RESHAPE && op != GGML_OP_VIEW && op != GGML_OP_PERMUTE &&
           op != GGML_OP_TRANSPOSE;
}

// Returns a hash of a graph's operations, types and sizes. Views and copies are left out, because their sizes depend on
// the length of the cache. With fused attention, all other operations depend only on the number of rows.
uint64_t shape_of(ggml_cgraph * gf) {
    uint64_t hash = 14695981039346656037u;
    const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        const ggml_tensor * t = ggml_graph_node(gf, i);
        if (!is_launched(t->op) || t->op == GGML_OP_CPY) continue;
        mix(t->op);
        mix(t->type);
        for (int64_t n : t->ne) mix((uint64_t)n);
    }
    return hash;
}

std::set<uint64_t> seen_graphs;

// State that ggml's CUDA backend keeps for each graph (ggml_cuda_graph_update_required). The key is the graph's first
// node. The state is the graph's number, or each node with its memory and the sizes of its sources.
struct Capture {
    uint64_t uid = 0;
    std::vector<unsigned char> properties;
    bool is_warm = false;
};

std::map<const ggml_tensor *, Capture> captures;

// Returns true if the graph runs from a capture. The second time that a graph comes unchanged, it is captured. From the
// third time on, it runs from the capture. A change restarts this count (ggml_backend_cuda_graph_compute). A graph with
// another number counts as rebuilt, even if nothing else has changed.
bool count_capture(ggml_cgraph * gf) {
    const uint64_t uid = ((const abi::Graph *)gf)->uid;
    Capture & known = captures[ggml_graph_node(gf, 0)];
    const bool is_same = uid != 0 && uid == known.uid;
    counts.built += !is_same;
    std::vector<unsigned char> properties;
    const auto add = [&](const void * data, size_t n) {
        properties.insert(properties.end(), (const unsigned char *)data, (const unsigned char *)data + n);
    };
    for (int i = 0; i < ggml_graph_n_nodes(gf) && !is_same; ++i) {
        const ggml_tensor * t = ggml_graph_node(gf, i);
        add(t, sizeof(*t));
        for (const ggml_tensor * src : t->src) {
            if (!src) continue;
            add(&src->data, sizeof(src->data));
            add(src->ne, sizeof(src->ne));
            add(src->nb, sizeof(src->nb));
        }
    }
    const bool is_changed = !is_same && known.properties != properties;
    const bool is_captured = known.is_warm && !is_changed;
    known.is_warm = !is_changed;
    known.uid = uid;
    if (!is_same) known.properties = std::move(properties);
    return is_captured;
}

// --- memory ------------------------------------------------------------------------------------------------------

void * memory_of(ggml_backend_buffer_t buffer) {
    return ((abi::Buffer *)buffer)->context;
}

void wait_up(size_t n_bytes) {
    ++counts.waits;
    counts.bytes_up += n_bytes;
}

void wait_down(size_t n_bytes) {
    ++counts.waits;
    counts.bytes_down += n_bytes;
}

const abi::BufferInterface buffer_interface = {
    /*free_buffer=*/[](ggml_backend_buffer_t b) {
        counts.bytes_held -= ((abi::Buffer *)b)->size;
        ++counts.frees;
        std::free(memory_of(b));
    },
    /*get_base=*/memory_of,
    /*init_tensor=*/nullptr,
    /*memset_tensor=*/
    [](ggml_backend_buffer_t, ggml_tensor * t, uint8_t value, size_t at, size_t n) {
        wait_up(0);
        if (!is_idle) std::memset((char *)t->data + at, value, n);
    },
    /*set_tensor=*/
    [](ggml_backend_buffer_t, ggml_tensor * t, const void * data, size_t at, size_t n) {
        wait_up(n);
        copy_in((char *)t->data + at, data, n);
    },
    /*get_tensor=*/
    [](ggml_backend_buffer_t, const ggml_tensor * t, void * data, size_t at, size_t n) {
        wait_down(n);
        copy_out(data, (const char *)t->data + at, n);
    },
    /*set_tensor_2d=*/
    [](ggml_backend_buffer_t, ggml_tensor * t, const void * data, size_t at, size_t n, size_t n_copies, size_t to,
       size_t from) {
        wait_up(n * n_copies);
        for (size_t i = 0; i < n_copies; ++i) {
            copy_in((char *)t->data + at + i * to, (const char *)data + i * from, n);
        }
    },
    /*get_tensor_2d=*/
    [](ggml_backend_buffer_t, const ggml_tensor * t, void * data, size_t at, size_t n, size_t n_copies, size_t from,
       size_t to) {
        wait_down(n * n_copies);
        for (size_t i = 0; i < n_copies; ++i) {
            copy_out((char *)data + i * to, (const char *)t->data + at + i * from, n);
        }
    },
    /*cpy_tensor=*/
    [](ggml_backend_buffer_t, const ggml_tensor * from, ggml_tensor * to) {
        if (ggml_backend_buffer_get_type(from->buffer) != ggml_backend_buffer_get_type(to->buffer)) return false;
        wait_up(0);
        copy_in(to->data, from->data, ggml_nbytes(from));
        return true;
    },
    /*clear=*/
    [](ggml_backend_buffer_t b, uint8_t value) {
        wait_up(0);
        if (!is_idle) std::memset(memory_of(b), value, ((abi::Buffer *)b)->size);
    },
    /*reset=*/nullptr,
};

constexpr size_t n_devices_max = 2;
extern Device devices[n_devices_max];

const char * name_of(const void * device) {
    return device == &devices[0] ? "Counting0" : "Counting1";
}

const abi::BufferType a_buffer_type = {
    {
        /*get_name=*/[](ggml_backend_buffer_type_t buft) { return name_of(((abi::BufferType *)buft)->device); },
        /*alloc_buffer=*/
        [](ggml_backend_buffer_type_t buft, size_t n) -> ggml_backend_buffer_t {
            if (counts.bytes_held + n > n_memory) return nullptr;
            void * memory = std::aligned_alloc(n_align, GGML_PAD(n ? n : 1, n_align));
            if (!memory) return nullptr;
            // The device does not clear memory, like a GPU.
            if (!is_idle) std::memset(memory, 0xff, n);
            counts.bytes_held += n;
            ++counts.allocations;
            return ggml_backend_buffer_init(buft, buffer_interface, memory, n);
        },
        /*get_alignment=*/[](ggml_backend_buffer_type_t) { return n_align; },
        /*get_max_size=*/nullptr,
        /*get_alloc_size=*/nullptr,
        /*is_host=*/nullptr,
    },
    nullptr,
    nullptr,
};

abi::BufferType buffer_types[n_devices_max] = {
    {a_buffer_type.iface, (ggml_backend_dev_t)&devices[0], nullptr},
    {a_buffer_type.iface, (ggml_backend_dev_t)&devices[1], nullptr},
};

ggml_backend_buffer_type_t buffer_type_of(ggml_backend_dev_t dev) {
    return (ggml_backend_buffer_type_t)&buffer_types[(Device *)dev - devices];
}

// --- backend -----------------------------------------------------------------------------------------------------

struct Stream {
    Stream() {
        // The backend uses one thread, because several threads would wait for each other on a busy machine.
        ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu.get()));
        const auto set =
            (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
        if (set) set(cpu.get(), 1);
    }

    ggml_backend_ptr cpu{ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)};
    std::vector<std::function<void()>> ups, downs;
    bool is_busy = false;  // true if work is pending

    void flush(std::vector<std::function<void()>> & all) {
        for (const auto & f : all) f();
        all.clear();
    }
};

Stream & stream(ggml_backend_t backend) {
    return *(Stream *)((Backend *)backend)->context;
}

const abi::BackendInterface backend_interface = {
    /*get_name=*/[](ggml_backend_t backend) { return name_of(((Backend *)backend)->device); },
    /*free=*/
    [](ggml_backend_t backend) {
        delete &stream(backend);
        delete (Backend *)backend;
    },
    /*set_tensor_async=*/
    [](ggml_backend_t backend, ggml_tensor * t, const void * data, size_t at, size_t n) {
        counts.bytes_up += n;
        ++counts.copies;
        stream(backend).is_busy = true;
        stream(backend).ups.push_back([=] { copy_in((char *)t->data + at, data, n); });
    },
    /*get_tensor_async=*/
    [](ggml_backend_t backend, const ggml_tensor * t, void * data, size_t at, size_t n) {
        counts.bytes_down += n;
        ++counts.copies;
        stream(backend).is_busy = true;
        const char * from = (const char *)t->data + at;
        stream(backend).downs.push_back([=] { copy_out(data, from, n); });
    },
    nullptr,
    nullptr,
    nullptr,
    /*synchronize=*/
    [](ggml_backend_t backend) {
        counts.waits += stream(backend).is_busy;
        stream(backend).is_busy = false;
        stream(backend).flush(stream(backend).ups);
        stream(backend).flush(stream(backend).downs);
    },
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    /*graph_compute=*/
    [](ggml_backend_t backend, ggml_cgraph * gf) {
        ++counts.graphs;
        const bool is_new = seen_graphs.insert(shape_of(gf)).second;
        counts.distinct_graphs += is_new;
        counts.distinct_targets += is_new && ggml_graph_n_nodes(gf) > 256;
        const bool is_captured = count_capture(gf);
        counts.captured += is_captured;
        stream(backend).is_busy = true;
        const uint64_t n_before = counts.operations;
        for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
            const ggml_tensor * node = ggml_graph_node(gf, i);
            const ggml_op op = node->op;
            for (const ggml_tensor * src : node->src) {
                counts.misaligned += src && src->op == GGML_OP_VIEW && src->view_offs % n_align != 0;
            }
            counts.operations += is_launched(op);
        }
        if (!is_captured) counts.launches += counts.operations - n_before;
        stream(backend).flush(stream(backend).ups);
        // Results that still wait for an earlier copy were computed before this copy.
        stream(backend).flush(stream(backend).downs);
        return is_idle ? GGML_STATUS_SUCCESS : ggml_backend_graph_compute(stream(backend).cpu.get(), gf);
    },
    nullptr,
    nullptr,
    nullptr,
};

uint8_t guid[16] = {'e', 'a', 'g', 'l', 'e', ' ', 'c', 'o', 'u', 'n', 't', 'i', 'n', 'g', '0', '0'};

// --- device ------------------------------------------------------------------------------------------------------

const char * device_name(ggml_backend_dev_t dev) {
    return name_of(dev);
}

const char * device_description(ggml_backend_dev_t) {
    return "the CPU, counted like a GPU";
}

void device_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *total = n_memory;
    *free = n_memory - std::min<size_t>(n_memory, counts.bytes_held);
}

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

extern abi::Registry reg;

const Device a_device = {
    {
        device_name,
        device_description,
        device_memory,
        device_type,
        /*get_props=*/
        [](ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
            *props = {};
            props->name = device_name(dev);
            props->description = device_description(dev);
            device_memory(dev, &props->memory_free, &props->memory_total);
            props->type = device_type(dev);
            props->caps.async = true;
        },
        /*init_backend=*/
        [](ggml_backend_dev_t dev, const char *) {
            return (ggml_backend_t) new Backend{&guid, backend_interface, dev, new Stream};
        },
        /*get_buffer_type=*/buffer_type_of,
        nullptr,
        nullptr,
        /*supports_op=*/
        [](ggml_backend_dev_t, const ggml_tensor * op) {
            return ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
        },
        /*supports_buft=*/
        [](ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft) { return buft == buffer_type_of(dev); },
        /*offload_op=*/
        [](ggml_backend_dev_t, const ggml_tensor * op) {
            return (op->op == GGML_OP_MUL_MAT && op->ne[1] >= n_offload_rows) ||
                   (op->op == GGML_OP_MUL_MAT_ID && op->ne[2] >= n_offload_rows);
        },
        nullptr,
        nullptr,
        nullptr,
    },
    (ggml_backend_reg_t)&reg,
    nullptr,
};

Device devices[n_devices_max] = {a_device, a_device};

abi::Registry reg = {
    api_version,
    {
        /*get_name=*/[](ggml_backend_reg_t) { return "Counting"; },
        /*get_device_count=*/
        [](ggml_backend_reg_t) { return std::min(n_devices_max, number_of("EAGLECPP_COUNTING_DEVICES", 1)); },
        /*get_device=*/[](ggml_backend_reg_t, size_t i) { return (ggml_backend_dev_t)&devices[i]; },
        /*get_proc_address=*/[](ggml_backend_reg_t, const char *) { return (void *)nullptr; },
    },
    nullptr,
};

}  // namespace

extern "C" {

ggml_backend_reg_t ggml_backend_init(void) {
    return (ggml_backend_reg_t)&reg;
}

int ggml_backend_score(void) {
    return 1;
}

EaglecppCounts eaglecpp_counts(void) {
    return counts;
}
}
