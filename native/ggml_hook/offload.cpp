// SPDX-License-Identifier: MIT
#include "ggml_hook/offload.h"

#include <ggml-backend.h>

#include <atomic>
#include <map>
#include <mutex>

#include "ggml_hook/hook_state.h"

namespace eaglecpp {

namespace {

using OffloadOp = bool (*)(ggml_backend_dev_t, const ggml_tensor *);

std::mutex mutex;

// The original offload function of each device. Devices are never removed.
std::map<ggml_backend_dev_t, OffloadOp> & own_answers() {
    static std::map<ggml_backend_dev_t, OffloadOp> all;
    return all;
}

bool offload_op(ggml_backend_dev_t device, const ggml_tensor * op) {
    if (kernels::scope.stays_in_place) return false;
    OffloadOp own = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        // If a device was copied after its function was replaced, the original function of the copy is unknown.
        const auto known = own_answers().find(device);
        if (known != own_answers().end()) own = known->second;
    }
    return own && own(device, op);
}

// Replaces the function of all devices. Called repeatedly, because devices may have been added since the last call.
void install() {
    if (!kernels::is_pinned_ggml()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        auto & iface = ((kernels::abi::Device *)dev)->iface;
        if (!iface.offload_op || iface.offload_op == offload_op) continue;
        own_answers()[dev] = iface.offload_op;
        // Stores atomically, because other threads may be reading the pointer.
        ((std::atomic<OffloadOp> *)&iface.offload_op)->store(offload_op, std::memory_order_release);
    }
}

}  // namespace

NoOffloadScope::NoOffloadScope(bool on) {
    if (!on) return;
    install();
    kernels::scope.stays_in_place = true;
}

}  // namespace eaglecpp
