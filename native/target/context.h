// SPDX-License-Identifier: MIT
// A context of llama.cpp over a model's weights: made, run and read in one way, whether a target generates with it, a
// drafter that llama.cpp runs, or an embedder.
#pragma once

#include <llama.h>

#include <memory>
#include <vector>

#include "target/llama_bridge.h"
#include "target/model.h"
#include "target/options.h"

namespace eaglecpp {

class Context {
  public:
    // what the options say that all contexts have in common
    static llama_context_params params(const TargetOptions & options);

    // In place of the one there is. Error(out_of_memory | unsupported)
    void make(std::shared_ptr<const TargetModel> model, const llama_context_params & params);
    void free() { ctx_.reset(); }
    llama_context * get() const { return ctx_.get(); }

    // whether texts are generated with it, row by row
    bool generates() const { return llama_get_memory(get()) && llama_get_causal_attn(get()); }
    // memory in use, by kind; empty where libllama does not tell
    std::vector<MemoryUse> memory() const { return ctx_ ? memory_use(get()) : std::vector<MemoryUse>(); }

    // for all decodes from now on
    void set_n_threads(int n_threads);

    // Runs the rows. Long batches of a prompt need not round as single rows do. Error(context_full | out_of_memory |
    // broken)
    void decode(const llama_batch & rows, bool is_prompt = true);

    // Of row i of the last decode, which has output; valid until the next decode: its logits, and the state that a head
    // gives beside them. Error(broken)
    const float * logits(int row) const;
    const float * state(int row) const;
    // that the last decode left any; Error(broken)
    void check_results() const;

  private:
    [[noreturn]] void refuse(const llama_context_params & p, const std::string & why) const;

    std::shared_ptr<const TargetModel> model_;
    bool has_results_ = false;  // of the last decode
    llama_context_ptr ctx_;
};

// Error(unsupported): an embedding model is asked for a text
[[noreturn]] void refuse_generating(const TargetModel & model);

// ggml type by name; Error(value)
ggml_type type_by_name(const std::string & name);

}  // namespace eaglecpp
