// SPDX-License-Identifier: MIT
// Declares the private parts of ggml that the hook depends on. They are copied from the pinned version, because
// llama-cpp-python does not install their headers. tests/native/ggml_hook/test_abi.cpp compares the declarations with
// ggml's sources. hook.cpp uses the declarations only with exactly the pinned version, and only after a trial run.
#pragma once

#include <ggml-backend.h>

#include "kernels/compute.h"

namespace eaglecpp::kernels::abi {

// From ggml-backend-impl.h.
struct BufferTypeInterface {
    const char * (*get_name)(ggml_backend_buffer_type_t);
    ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t);
    size_t (*get_alignment)(ggml_backend_buffer_type_t);
    size_t (*get_max_size)(ggml_backend_buffer_type_t);
    size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const ggml_tensor *);
    bool (*is_host)(ggml_backend_buffer_type_t);
};

struct BufferType {
    BufferTypeInterface iface;
    ggml_backend_dev_t device;
    void * context;  // for the CPU backend's extra buffer types: an ExtraBufferType
};

struct BufferInterface {
    void (*free_buffer)(ggml_backend_buffer_t);
    void * (*get_base)(ggml_backend_buffer_t);
    ggml_status (*init_tensor)(ggml_backend_buffer_t, ggml_tensor *);
    void (*memset_tensor)(ggml_backend_buffer_t, ggml_tensor *, uint8_t, size_t, size_t);
    void (*set_tensor)(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t);
    void (*get_tensor)(ggml_backend_buffer_t, const ggml_tensor *, void *, size_t, size_t);
    void (*set_tensor_2d)(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t, size_t, size_t, size_t);
    void (*get_tensor_2d)(ggml_backend_buffer_t, const ggml_tensor *, void *, size_t, size_t, size_t, size_t, size_t);
    bool (*cpy_tensor)(ggml_backend_buffer_t, const ggml_tensor *, ggml_tensor *);
    void (*clear)(ggml_backend_buffer_t, uint8_t);
    void (*reset)(ggml_backend_buffer_t);
};

struct Buffer {
    BufferInterface iface;
    ggml_backend_buffer_type_t buft;
    void * context;
    size_t size;
    ggml_backend_buffer_usage usage;
};

struct DeviceInterface {
    const char * (*get_name)(ggml_backend_dev_t);
    const char * (*get_description)(ggml_backend_dev_t);
    void (*get_memory)(ggml_backend_dev_t, size_t *, size_t *);
    enum ggml_backend_dev_type (*get_type)(ggml_backend_dev_t);
    void (*get_props)(ggml_backend_dev_t, ggml_backend_dev_props *);
    ggml_backend_t (*init_backend)(ggml_backend_dev_t, const char *);
    ggml_backend_buffer_type_t (*get_buffer_type)(ggml_backend_dev_t);
    ggml_backend_buffer_type_t (*get_host_buffer_type)(ggml_backend_dev_t);
    ggml_backend_buffer_t (*buffer_from_host_ptr)(ggml_backend_dev_t, void *, size_t, size_t);
    bool (*supports_op)(ggml_backend_dev_t, const ggml_tensor *);
    bool (*supports_buft)(ggml_backend_dev_t, ggml_backend_buffer_type_t);
    bool (*offload_op)(ggml_backend_dev_t, const ggml_tensor *);
    ggml_backend_event_t (*event_new)(ggml_backend_dev_t);
    void (*event_free)(ggml_backend_dev_t, ggml_backend_event_t);
    void (*event_synchronize)(ggml_backend_dev_t, ggml_backend_event_t);
};

struct Device {
    DeviceInterface iface;
    ggml_backend_reg_t reg;
    void * context;
};

struct RegistryInterface {
    const char * (*get_name)(ggml_backend_reg_t);
    size_t (*get_device_count)(ggml_backend_reg_t);
    ggml_backend_dev_t (*get_device)(ggml_backend_reg_t, size_t);
    void * (*get_proc_address)(ggml_backend_reg_t, const char *);
};

struct Registry {
    int api_version;
    RegistryInterface iface;
    void * context;
};

struct BackendInterface {
    const char * (*get_name)(ggml_backend_t);
    void (*free)(ggml_backend_t);
    void (*set_tensor_async)(ggml_backend_t, ggml_tensor *, const void *, size_t, size_t);
    void (*get_tensor_async)(ggml_backend_t, const ggml_tensor *, void *, size_t, size_t);
    void (*set_tensor_2d_async)(ggml_backend_t, ggml_tensor *, const void *, size_t, size_t, size_t, size_t, size_t);
    void (*get_tensor_2d_async)(ggml_backend_t, const ggml_tensor *, void *, size_t, size_t, size_t, size_t, size_t);
    bool (*cpy_tensor_async)(ggml_backend_t, ggml_backend_t, const ggml_tensor *, ggml_tensor *);
    void (*synchronize)(ggml_backend_t);
    ggml_backend_graph_plan_t (*graph_plan_create)(ggml_backend_t, const ggml_cgraph *);
    void (*graph_plan_free)(ggml_backend_t, ggml_backend_graph_plan_t);
    void (*graph_plan_update)(ggml_backend_t, ggml_backend_graph_plan_t, const ggml_cgraph *);
    ggml_status (*graph_plan_compute)(ggml_backend_t, ggml_backend_graph_plan_t);
    ggml_status (*graph_compute)(ggml_backend_t, ggml_cgraph *);
    void (*event_record)(ggml_backend_t, ggml_backend_event_t);
    void (*event_wait)(ggml_backend_t, ggml_backend_event_t);
    void (*graph_optimize)(ggml_backend_t, ggml_cgraph *, void *);
};

// From ggml-impl.h.
struct Graph {
    int size, n_nodes, n_leafs;
    ggml_tensor **nodes, **grads, **grad_accs, **leafs;
    int32_t * use_counts;
    struct {
        size_t size;
        uint32_t * used;
        ggml_tensor ** keys;
    } visited_hash_set;
    int order;
    uint64_t uid;  // graphs with the same number are equal; 0 = unknown
};

struct Backend {
    ggml_guid_t guid;
    BackendInterface iface;
    ggml_backend_dev_t device;
    void * context;  // for the CPU backend: a CpuContext
};

// The first members of ggml_backend_cpu_context. ggml-cpu/ggml-cpu.cpp defines this struct, not a header, so the trial
// run checks these members.
struct CpuContext {
    int n_threads;
    ggml_threadpool * threadpool;
    uint8_t * work_data;
    size_t work_size;
};

// From ggml-cpu/traits.h. The order of the virtual functions must be the same; their names do not matter.
class TensorTraits {
  public:
    virtual ~TensorTraits() = default;
    virtual bool work_size(int n_threads, const ggml_tensor * op, size_t & size) = 0;
    virtual bool compute_forward(ComputeParams * params, ggml_tensor * op) = 0;
};

class ExtraBufferType {
  public:
    virtual ~ExtraBufferType() = default;
    virtual bool supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) = 0;
    virtual TensorTraits * get_tensor_traits(const ggml_tensor * op) = 0;
};

}  // namespace eaglecpp::kernels::abi
