// SPDX-License-Identifier: MIT
#pragma once

#include <ggml-backend.h>

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace eaglecpp {

struct TargetOptions {
    std::string path;
    int n_ctx = 0;  // tokens per conversation; 0 = smaller of n_ctx_train and 4096, -1 = n_ctx_train
    int n_batch = 512;
    int n_ubatch = 512;
    int n_threads = 0;        // 0 = physical cores
    int n_threads_batch = 0;  // 0 = n_threads
    int n_gpu_layers = -1;    // -1 = all
    int main_gpu = 0;
    ggml_backend_dev_t device = nullptr;       // the only device to use; null = all devices
    std::string split_mode = "layer";          // distribution over several GPUs: layer, row, tensor or none
    std::vector<float> tensor_split;           // share of each GPU; empty = by free memory
    int n_cpu_moe = 0;                         // number of layers whose experts stay in host memory; -1 = all
    std::vector<std::string> override_tensor;  // PATTERN=BUFFER[,...], as llama.cpp's --override-tensor
    std::string flash_attn = "auto";
    std::string type_k = "auto";  // auto = f16, or f32 if only plain attention is exact on the CPU
    std::string type_v = "auto";
    bool load_heads = false;  // also load the file's own MTP heads ("nextn layers")
    bool use_mmap = true;
    bool use_mlock = false;
    bool offload_kqv = true;
    float rope_freq_base = 0.0f;
    float rope_freq_scale = 0.0f;
    std::string repack = "auto";
    std::string kernels = "auto";  // our CPU kernels: auto or off
    int n_sequences = 1;           // number of conversations
    bool separate_caches = false;  // each conversation has a separate cache; disables trees
    int n_draft_max = 64;          // maximum draft nodes per round and conversation
    int n_draft_more = 0;          // additional draft nodes if there is one conversation and no recurrent state
    bool drafts_forms = false;     // all drafts are tokens that a grammar forces, a few per conversation
    int n_leaves_max = 1;          // maximum tree leaves per round and conversation
    std::vector<std::pair<std::string, float>> lora;
    std::function<bool()> on_progress;  // called while a model loads; false or an exception cancels the loading
};

// Calls a function that decides whether long work goes on, and keeps its exception for later. Exceptions must not pass
// through llama.cpp, nor through an engine that restores a step.
class Progress {
  public:
    explicit Progress(std::function<bool()> report) : report_(std::move(report)) {}

    // Returns false if the function returned false or raised an exception.
    bool go_on() noexcept {
        try {
            return !report_ || report_();
        } catch (...) {
            cancelled_ = std::current_exception();
        }
        return false;
    }
    void rethrow() const {
        if (cancelled_) std::rethrow_exception(cancelled_);
    }

  private:
    const std::function<bool()> report_;
    std::exception_ptr cancelled_;
};

}  // namespace eaglecpp
