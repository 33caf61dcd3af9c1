// SPDX-License-Identifier: MIT
// The device that a drafter computes on. This class starts graphs, waits for them, and owns the host memory for the
// graphs' inputs and outputs.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <cstdint>
#include <string>

#include "draft/graph.h"

namespace eaglecpp {

class DraftDevice {
  public:
    // device: null for the CPU. n_threads and use_kernels only affect the CPU. Error(unsupported)
    DraftDevice(ggml_backend_dev_t device, int n_threads, bool use_kernels);

    ggml_backend_dev_t get() const { return device_; }
    std::string name() const { return ggml_backend_dev_name(device_); }
    bool is_cpu() const { return ggml_backend_dev_type(device_) == GGML_BACKEND_DEVICE_TYPE_CPU; }
    bool use_kernels() const { return use_kernels_; }
    ggml_backend_t backend() const { return backend_.get(); }
    ggml_backend_buffer_type_t buft() const { return ggml_backend_get_default_buffer_type(backend_.get()); }

    // Returns true if the device supports all operations of a graph. Otherwise writes the unsupported operations to
    // `missing`.
    bool supports(const DraftGraph & g, std::string & missing) const;

    // Sets the number of threads for graphs that start later.
    void set_n_threads(int n_threads);

    // Returns the memory for a graph's inputs. Write the inputs before the graph starts. The memory is either the input
    // tensor's own memory or host memory that start() copies to the device.
    uint8_t * staging(const DraftGraph & g);
    // Returns n bytes of memory to which the device can copy asynchronously. Copies to other memory may block.
    uint8_t * landing(size_t n);
    // Starts a graph without waiting for its results. Error(out_of_memory | broken)
    void start(const DraftGraph & g);
    void wait();

  private:
    uint8_t * host_memory(ggml_backend_buffer_ptr & buffer, size_t n) const;

    ggml_backend_dev_t device_;
    ggml_backend_ptr backend_;
    bool use_kernels_;
    ggml_backend_buffer_ptr staging_, landing_;
    bool is_running_ = false;
};

}  // namespace eaglecpp
