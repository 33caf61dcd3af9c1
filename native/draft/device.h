// SPDX-License-Identifier: MIT
// The device that a drafter computes on: starts its graphs, waits for them, and owns the host memory that their inputs
// come from and their outputs go to.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <cstdint>
#include <string>

#include "draft/graph.h"

namespace eaglecpp {

class DraftDevice {
  public:
    // host memory, of the kind that the device wants for copies where it has one of its own
    class HostMemory {
      public:
        uint8_t * at_least(size_t n, ggml_backend_dev_t device);

      private:
        ggml_backend_buffer_ptr buffer_;
    };

    // Null: the CPU, the only one for which threads and our own kernels mean anything. Error(unsupported)
    DraftDevice(ggml_backend_dev_t device, int n_threads, bool use_kernels);

    ggml_backend_dev_t get() const { return device_; }
    std::string name() const { return ggml_backend_dev_name(device_); }
    bool is_cpu() const { return ggml_backend_dev_type(device_) == GGML_BACKEND_DEVICE_TYPE_CPU; }
    bool use_kernels() const { return use_kernels_; }
    ggml_backend_t backend() const { return backend_.get(); }
    ggml_backend_buffer_type_t buft() const { return ggml_backend_get_default_buffer_type(backend_.get()); }

    // Whether the device has all operations of a graph; if not, `missing` names those it lacks.
    bool supports(const DraftGraph & g, std::string & missing) const;

    // for all graphs from now on
    void set_n_threads(int n_threads);

    // Where the inputs of a graph are written before it starts: the tensor itself, or memory the device copies from.
    uint8_t * staging(const DraftGraph & g);
    // Memory that the device can copy n bytes to by itself; it may have to wait for each copy to any other memory.
    uint8_t * landing(size_t n);
    // Error(out_of_memory | broken)
    void start(const DraftGraph & g);
    void wait();

  private:
    ggml_backend_dev_t device_;
    ggml_backend_ptr backend_;
    bool use_kernels_;
    HostMemory staging_, landing_;
    bool is_running_ = false;
};

}  // namespace eaglecpp
