// SPDX-License-Identifier: MIT
// The target's weights: looks through the files, loads them to where the options say, and knows what the architecture
// allows.
#pragma once

#include <llama.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "target/file_checks.h"
#include "target/llama_bridge.h"
#include "target/options.h"

namespace eaglecpp {

class TargetModel : Pinned {  // llama.cpp's parameters point into it
  public:
    // Error(not_found | gguf | unsupported | out_of_memory), and what `options.on_progress` throws
    explicit TargetModel(const TargetOptions & options);

    llama_model * get() const { return model_.get(); }
    const std::string & path() const { return path_; }
    int n_embd() const { return llama_model_n_embd(get()); }
    int n_layer() const { return llama_model_n_layer(get()); }
    // values of a row that comes in the place of a token
    int n_embd_inp() const { return llama_model_n_embd_inp(get()); }
    // values of the state that heads for further tokens read
    int n_state() const { return llama_model_n_embd_out(get()); }
    std::string meta(const char * key) const;
    std::vector<std::pair<std::string, std::string>> metadata() const;

    bool uses_repack() const { return use_repack_; }
    // our own CPU kernels compute this target's products
    bool uses_kernels() const { return use_kernels_; }
    // nothing runs on a GPU
    bool is_cpu() const;
    // Whether ggml's own products with F32, F16 or BF16 weights run on the CPU: they are known to add in another order
    // for several rows than for one, so texts can diverge, though few do.
    bool has_parting_products() const { return has_float_matrices_ && is_cpu() && !use_kernels_; }

    // Weights shared with the drafter, or null. `embedding`: its rows can be read on the host; `head`: the tensor that
    // the target multiplies with, perhaps in a layout of its own; `head_to_copy`: the same values where they can be
    // copied from.
    const ggml_tensor * embedding() const;
    const ggml_tensor * head() const;
    const ggml_tensor * head_to_copy() const;

    // where the output layer is; null for the CPU
    ggml_backend_dev_t output_device() const;

    // Recurrent and hybrid targets keep a state that cannot be cut at any row; they take chains only.
    bool has_state() const;
    // Why this target takes chains only; "" = it takes trees. Trees need plain attention over one unified cache.
    const char * chains_only() const;
    bool supports_trees() const { return !*chains_only(); }
    // Why no batch of several rows can be trusted to give the bits of single rows, whatever was measured; "" = it can.
    const char * never_exact() const;

    // Keys and values of plain attention in host memory, a lower bound of what a context takes. Error(out_of_memory)
    void check_memory(const llama_context_params & p) const;

    // Error(unsupported) when llama.cpp refuses the adapters
    void attach_lora(llama_context * ctx) const;

    // Error(broken) if an RPC server was lost: the results that came back for it are not real.
    void check_servers() const;

  private:
    void set_params(const TargetOptions & options);
    void load_lora(const TargetOptions & options);

    std::string path_;
    bool use_repack_ = true;
    bool use_kernels_ = false;
    bool has_float_matrices_ = false;
    CellSize cell_size_;
    std::vector<ggml_backend_dev_t> devices_;  // to use, where ggml knows of some that are gone; null at the end
    std::vector<float> split_;                 // of llama.cpp's length, or empty
    std::vector<TensorPlace> places_;
    std::vector<llama_model_tensor_buft_override> overrides_;  // of places_, null at the end
    std::set<std::string> servers_;  // relays of the RPC servers that llama.cpp may have put parts of it on
    llama_model_params params_{};    // points into the above
    llama_model_ptr model_;
    std::vector<llama_adapter_lora *> lora_;
    std::vector<float> lora_scales_;
};

}  // namespace eaglecpp
