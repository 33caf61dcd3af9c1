// SPDX-License-Identifier: MIT
// Compares the declarations in native/ggml_hook/ggml_abi.h and compute.h and the signatures in
// native/target/llama_bridge.cpp with the llama.cpp sources from which they are copied. If this file compiles, the
// declarations match. The file is only built if the sources are available:
//   cmake ... -DEAGLECPP_LLAMA_SOURCE=<vendor/llama.cpp of the llama-cpp-python sdist>
#include "ggml-backend-impl.h"
#include "ggml-cpu/traits.h"
#include "ggml-impl.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-model.h"

#include <cstddef>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ggml_hook/ggml_abi.h"
#include "kernels/compute.h"

using namespace eaglecpp::kernels;

#define SAME_FIELD(ours, theirs, field)                                               \
    static_assert(offsetof(ours, field) == offsetof(theirs, field) &&                 \
                      std::is_same_v<decltype(ours::field), decltype(theirs::field)>, \
                  #theirs "::" #field)
// Applies SAME_FIELD to each field. EXPAND rescans the macro often enough for all fields.
#define EXPAND(...) EXPAND2(EXPAND2(EXPAND2(EXPAND2(__VA_ARGS__))))
#define EXPAND2(...) EXPAND1(EXPAND1(EXPAND1(EXPAND1(__VA_ARGS__))))
#define EXPAND1(...) __VA_ARGS__
#define PARENS ()
#define AGAIN() NEXT
#define NEXT(ours, theirs, field, ...) \
    SAME_FIELD(ours, theirs, field);   \
    __VA_OPT__(AGAIN PARENS(ours, theirs, __VA_ARGS__))
#define SAME_FIELDS(ours, theirs, ...) EXPAND(NEXT(ours, theirs, __VA_ARGS__))
#define SAME_PLACE(ours, theirs, field) \
    static_assert(offsetof(ours, field) == offsetof(theirs, field), #theirs "::" #field)

using TheirTypeI = ggml_backend_buffer_type_i;
using TheirBufferI = ggml_backend_buffer_i;
static_assert(sizeof(abi::BufferTypeInterface) == sizeof(TheirTypeI), "ggml_backend_buffer_type_i");
SAME_FIELDS(abi::BufferTypeInterface, TheirTypeI, get_name, alloc_buffer, get_alignment, get_max_size, get_alloc_size,
            is_host);
static_assert(sizeof(abi::BufferType) == sizeof(ggml_backend_buffer_type), "ggml_backend_buffer_type");
SAME_PLACE(abi::BufferType, ggml_backend_buffer_type, device);
SAME_PLACE(abi::BufferType, ggml_backend_buffer_type, context);

static_assert(sizeof(abi::BufferInterface) == sizeof(TheirBufferI), "ggml_backend_buffer_i");
SAME_FIELDS(abi::BufferInterface, TheirBufferI, free_buffer, get_base, init_tensor, memset_tensor, set_tensor,
            get_tensor, set_tensor_2d, get_tensor_2d, cpy_tensor, clear, reset);
static_assert(sizeof(abi::Buffer) == sizeof(ggml_backend_buffer), "ggml_backend_buffer");
SAME_FIELDS(abi::Buffer, ggml_backend_buffer, buft, context, size, usage);

using TheirDeviceI = ggml_backend_device_i;
static_assert(sizeof(abi::DeviceInterface) == sizeof(TheirDeviceI), "ggml_backend_device_i");
SAME_FIELDS(abi::DeviceInterface, TheirDeviceI, get_name, get_description, get_memory, get_type, get_props,
            init_backend, get_buffer_type, get_host_buffer_type, buffer_from_host_ptr, supports_op, supports_buft,
            offload_op, event_new, event_free, event_synchronize);
static_assert(sizeof(abi::Device) == sizeof(ggml_backend_device), "ggml_backend_device");
SAME_FIELDS(abi::Device, ggml_backend_device, reg, context);

using TheirRegistryI = ggml_backend_reg_i;
static_assert(sizeof(abi::RegistryInterface) == sizeof(TheirRegistryI), "ggml_backend_reg_i");
SAME_FIELDS(abi::RegistryInterface, TheirRegistryI, get_name, get_device_count, get_device, get_proc_address);
static_assert(sizeof(abi::Registry) == sizeof(ggml_backend_reg), "ggml_backend_reg");
SAME_PLACE(abi::Registry, ggml_backend_reg, iface);
SAME_FIELD(abi::Registry, ggml_backend_reg, context);

static_assert(sizeof(ComputeParams) == sizeof(ggml_compute_params), "ggml_compute_params");
SAME_FIELDS(ComputeParams, ggml_compute_params, ith, nth, wsize, wdata);
SAME_PLACE(ComputeParams, ggml_compute_params, threadpool);
SAME_FIELD(ComputeParams, ggml_compute_params, use_ref);

using TheirBackendI = ggml_backend_i;
static_assert(sizeof(abi::BackendInterface) == sizeof(TheirBackendI), "ggml_backend_i");
SAME_FIELDS(abi::BackendInterface, TheirBackendI, get_name, graph_plan_compute, graph_compute, event_record);
static_assert(sizeof(abi::Backend) == sizeof(ggml_backend), "ggml_backend");
SAME_PLACE(abi::Backend, ggml_backend, iface);
SAME_FIELDS(abi::Backend, ggml_backend, device, context);
static_assert(sizeof(abi::Graph) == sizeof(ggml_cgraph), "ggml_cgraph");
SAME_FIELDS(abi::Graph, ggml_cgraph, n_nodes, nodes, use_counts, uid);

// The order of virtual functions cannot be queried, but their signatures can be compared.
static_assert(std::is_same_v<decltype(&ggml::cpu::tensor_traits::work_size),
                             bool (ggml::cpu::tensor_traits::*)(int, const ggml_tensor *, size_t &)>);
static_assert(std::is_same_v<decltype(&ggml::cpu::tensor_traits::compute_forward),
                             bool (ggml::cpu::tensor_traits::*)(ggml_compute_params *, ggml_tensor *)>);
static_assert(std::is_same_v<decltype(&ggml::cpu::extra_buffer_type::supports_op),
                             bool (ggml::cpu::extra_buffer_type::*)(ggml_backend_dev_t, const ggml_tensor *)>);
static_assert(std::is_same_v<decltype(&ggml::cpu::extra_buffer_type::get_tensor_traits),
                             ggml::cpu::tensor_traits * (ggml::cpu::extra_buffer_type::*)(const ggml_tensor *)>);
static_assert(sizeof(abi::ExtraBufferType) == sizeof(ggml::cpu::extra_buffer_type));

// These are the functions of libllama that llama_bridge.cpp calls by their mangled names.
using Tensors = std::vector<std::pair<std::string, ggml_tensor *>>;
using Memory = std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data>;
static_assert(std::is_same_v<decltype(&llama_set_embeddings_layer_inp), void (*)(llama_context *, uint32_t, bool)>);
static_assert(std::is_same_v<decltype(&llama_get_embeddings_layer_inp), float * (*)(llama_context *, uint32_t)>);
static_assert(std::is_same_v<decltype(&llama_set_embeddings_nextn), void (*)(llama_context *, bool, bool)>);
static_assert(std::is_same_v<decltype(&llama_get_embeddings_nextn), float * (*)(llama_context *)>);
static_assert(std::is_same_v<decltype(&llama_internal_get_tensor_map), const Tensors & (*)(const llama_model *)>);
static_assert(
    std::is_same_v<decltype(&llama_model::get_tensor), const ggml_tensor * (llama_model::*)(const char *) const>);
static_assert(std::is_same_v<decltype(&llama_context::get_sched), ggml_backend_sched_t (llama_context::*)() const>);
static_assert(std::is_same_v<decltype(&llama_get_memory_breakdown), Memory (*)(const llama_context *)>);
static_assert(sizeof(llama_memory_breakdown_data) == 3 * sizeof(size_t));
