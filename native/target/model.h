// SPDX-License-Identifier: MIT
// Holds the target's weights. Checks the files, loads them to the devices in the options, and describes the limits of
// the architecture.
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

class TargetModel : Pinned {  // llama.cpp's parameters point into this object
  public:
    // Loads the model. Error(not_found | gguf | unsupported | out_of_memory), and any exception of
    // `options.on_progress`.
    explicit TargetModel(const TargetOptions & options);

    llama_model * get() const { return model_.get(); }
    const std::string & path() const { return path_; }
    int n_embd() const { return llama_model_n_embd(get()); }
    int n_layer() const { return llama_model_n_layer(get()); }
    // Number of values of an input row for image rows, which replace tokens.
    int n_embd_inp() const { return llama_model_n_embd_inp(get()); }
    // Number of values of a state that MTP heads read.
    int n_state() const { return llama_model_n_embd_out(get()); }
    const std::string & arch() const { return arch_; }
    std::string meta(const std::string & key) const;
    std::vector<std::pair<std::string, std::string>> metadata() const;

    bool uses_repack() const { return use_repack_; }
    // Returns true if our CPU kernels compute this target's products.
    bool uses_kernels() const { return use_kernels_; }
    // Returns true if no layer runs on a GPU.
    bool is_cpu() const;
    // Returns true if ggml's products with F32, F16 or BF16 weights run on the CPU. These products add in another order
    // for several rows than for one row, so a few texts can differ with drafting.
    bool has_parting_products() const { return has_float_matrices_ && is_cpu() && !use_kernels_; }

    // Weights shared with the drafter, or null. embedding() has rows that the host can read. head() is the tensor that
    // the target multiplies with, possibly in a private layout. head_to_copy() has the same values in a readable
    // layout.
    const ggml_tensor * embedding() const;
    const ggml_tensor * head() const;
    const ggml_tensor * head_to_copy() const;

    // Returns the device of the output layer; null for the CPU.
    ggml_backend_dev_t output_device() const;

    // Returns true if the target is recurrent or hybrid. Its state cannot be rolled back to an arbitrary row, so it
    // only supports chains.
    bool has_state() const;
    // Returns why this target supports only chains, or "" if it supports trees. Trees need plain attention over one
    // unified cache.
    const char * chains_only() const;
    bool supports_trees() const { return !*chains_only(); }
    // Returns why batches of several rows may not have the bits of batches of one row even if a measurement finds equal
    // bits. Returns "" if there is no such reason.
    const char * never_exact() const;

    // Checks that the host has memory for a context. The check compares a lower bound: the keys and values of plain
    // attention. Error(out_of_memory)
    void check_memory(const llama_context_params & p) const;

    // Attaches the adapters of the options to a context. Error(unsupported) if llama.cpp rejects them.
    void attach_lora(llama_context * ctx) const;

    // Raises Error(broken) if an RPC server was lost, because its relay then returns zeros.
    void check_servers() const;

  private:
    void set_params(const TargetOptions & options);
    void load_lora(const TargetOptions & options);

    std::string path_, arch_;
    bool use_repack_ = true;
    bool use_kernels_ = false;
    bool has_float_matrices_ = false;
    CellSize cell_size_;
    std::vector<ggml_backend_dev_t> devices_;  // devices to use, null at the end; empty = llama.cpp chooses
    std::vector<float> split_;  // share of each GPU, with the length that llama.cpp expects; may be empty
    std::vector<TensorPlace> places_;
    std::vector<llama_model_tensor_buft_override> overrides_;  // made from places_; null at the end
    std::set<std::string> servers_;                            // relays of RPC servers that may hold parts of the model
    llama_model_params params_{};                              // points into the members above
    llama_model_ptr model_;
    std::vector<llama_adapter_lora *> lora_;
    std::vector<float> lora_scales_;
};

}  // namespace eaglecpp
