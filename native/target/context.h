// SPDX-License-Identifier: MIT
// A llama.cpp context over a model's weights. Targets, drafters that llama.cpp runs, and embedders use this class to
// create their contexts, run batches and read results.
#pragma once

#include <llama.h>

#include <memory>
#include <vector>

#include "kernels/product_ops.h"
#include "target/llama_bridge.h"
#include "target/model.h"
#include "target/options.h"

namespace eaglecpp {

class Context {
  public:
    // Returns the llama.cpp parameters that all our contexts share.
    static llama_context_params params(const TargetOptions & options);

    // Creates the context. Replaces an earlier context. Error(out_of_memory | unsupported)
    void make(std::shared_ptr<const TargetModel> model, const llama_context_params & params);
    void free() { ctx_.reset(); }
    llama_context * get() const { return ctx_.get(); }

    // Returns true if the context can generate texts token by token.
    bool generates() const { return llama_get_memory(get()) && llama_get_causal_attn(get()); }
    // Returns the memory in use, by kind; empty if libllama does not report it.
    std::vector<MemoryUse> memory() const { return ctx_ ? memory_use(get()) : std::vector<MemoryUse>(); }

    // Sets the number of threads for later decodes.
    void set_n_threads(int n_threads);

    // Runs a batch. is_prompt: the batch may be long, and its rows may be rounded differently from batches of one row.
    // chosen: the outputs that our kernels compute; null = all. Error(context_full | out_of_memory | broken)
    void decode(const llama_batch & rows, bool is_prompt = true, const kernels::ChosenGroups * chosen = nullptr);

    // logits() and state() return an output of row i of the last decode: its logits, or the state that an MTP head
    // gives. The row must have an output. The result is valid until the next decode. Error(broken)
    const float * logits(int row) const;
    const float * state(int row) const;
    // Raises Error(broken) if there are no results of a successful decode.
    void check_results() const;

  private:
    std::shared_ptr<const TargetModel> model_;
    bool has_results_ = false;  // the last decode succeeded
    llama_context_ptr ctx_;
};

// Raises Error(unsupported) for an embedding model, which cannot generate.
[[noreturn]] void refuse_generating(const TargetModel & model);

// Returns the ggml type with this name. Error(value) for an unknown name.
ggml_type type_by_name(const std::string & name);

}  // namespace eaglecpp
