// SPDX-License-Identifier: MIT
#include "draft/device.h"

#include "base/error.h"
#include "base/process.h"
#include "ggml_hook/hook.h"

namespace eaglecpp {

DraftDevice::DraftDevice(ggml_backend_dev_t device, int n_threads, bool use_kernels)
    : device_(device ? device : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
    if (!device_) fail(ErrorKind::unsupported, "ggml was built without a CPU backend");
    if (!is_cpu()) note_device();
    backend_.reset(ggml_backend_dev_init(device_, nullptr));
    fail_if(!backend_, ErrorKind::unsupported, "the drafter cannot use device '%s', because its backend did not start",
            name().c_str());
    set_n_threads(n_threads);
    use_kernels_ = use_kernels && is_cpu() && kernels::status().is_active;
    kernels::take_graphs_of(backend_.get(), use_kernels_);
}

bool DraftDevice::supports(const DraftGraph & g, std::string & missing) const {
    for (int i = 0; i < ggml_graph_n_nodes(g.gf); ++i) {
        const ggml_tensor * node = ggml_graph_node(g.gf, i);
        if (ggml_backend_supports_op(backend_.get(), node)) continue;
        missing = strf("%s (%s)", ggml_op_desc(node), node->name);
        return false;
    }
    return true;
}

void DraftDevice::set_n_threads(int n_threads) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device_);
    const auto set = (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (set) set(backend_.get(), n_threads);
}

uint8_t * DraftDevice::staging(const DraftGraph & g) {
    if (ggml_backend_buffer_is_host(g.packed->buffer)) return (uint8_t *)g.packed->data;
    return host_memory(staging_, ggml_nbytes(g.packed));
}

uint8_t * DraftDevice::landing(size_t n) {
    return host_memory(landing_, n);
}

// Returns n bytes of host memory, allocated so that copies to and from the device are fastest.
uint8_t * DraftDevice::host_memory(ggml_backend_buffer_ptr & buffer, size_t n) const {
    if (n_bytes_of(buffer) < n) {
        ggml_backend_buffer_type_t host = ggml_backend_dev_host_buffer_type(device_);
        buffer.reset(ggml_backend_buft_alloc_buffer(host ? host : ggml_backend_cpu_buffer_type(), n));
        fail_if(!buffer, ErrorKind::out_of_memory, "not enough host memory to exchange %zu bytes with the device", n);
    }
    return (uint8_t *)ggml_backend_buffer_get_base(buffer.get());
}

void DraftDevice::start(const DraftGraph & g) {
    if (!ggml_backend_buffer_is_host(g.packed->buffer)) {
        ggml_backend_tensor_set_async(backend_.get(), g.packed, staging(g), 0, ggml_nbytes(g.packed));
    }
    const kernels::ComputeScope scope(use_kernels_);
    is_running_ = true;
    ggml_status status = GGML_STATUS_FAILED;
    try {
        status = ggml_backend_graph_compute_async(backend_.get(), g.gf);
    } catch (const std::bad_alloc &) {
        fail(ErrorKind::broken, "the host ran out of memory inside ggml; open the engine again");
    }
    if (status == GGML_STATUS_SUCCESS) return;
    wait();
    fail(status == GGML_STATUS_ALLOC_FAILED ? ErrorKind::out_of_memory : ErrorKind::broken,
         "the drafter's graph failed on device %s: %s", name().c_str(), ggml_status_to_string(status));
}

void DraftDevice::wait() {
    if (!is_running_) return;
    is_running_ = false;
    ggml_backend_synchronize(backend_.get());
}

}  // namespace eaglecpp
