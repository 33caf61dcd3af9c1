// SPDX-License-Identifier: MIT
// Picks the likeliest tokens of a row on the device that computed the row's logits, through samplers of libllama's
// interface. Each sequence id has one sampler.
//
// libllama calls the samplers row by row. The first call adds the picks for all rows to the graph. Each sampler then
// selects the part of the result that llama.cpp copies back for its row.
#pragma once

#include <llama.h>

#include <map>
#include <memory>

#include "target/llama_bridge.h"
#include "target/sampler.h"
#include "target/tree_batch.h"

namespace eaglecpp {

class DevicePicks {
  public:
    // device: the device of the output layer; null if that is the CPU, or to disable picks.
    explicit DevicePicks(ggml_backend_dev_t device = nullptr, int n_vocab = 0) : device_(device), n_vocab_(n_vocab) {}
    void attach(llama_context * ctx) { ctx_ = ctx; }

    // From now on, picks the n_top likeliest tokens of this conversation's rows on the device, without copying the
    // logits back. n_top = 0 turns picks off. Returns false if picks are impossible; the logits are then copied as
    // usual.
    bool set(const SeqRange & range, int n_top);

    // Returns the tokens picked for row i of the last decode.
    TopLogits top(int row) const;

    // The picks of n_top tokens per row in the graph that is being built.
    struct Kind {
        int n_top;
        ggml_tensor * ids = nullptr;
        ggml_tensor * logits = nullptr;
    };

  private:
    Kind * kind(int n_top);

    ggml_backend_dev_t device_;
    int n_vocab_;
    llama_context * ctx_ = nullptr;  // holds pointers to the samplers
    struct Picker {
        llama_sampler_ptr sampler;
        int n_top;
    };
    std::map<int, std::unique_ptr<Kind>> kinds_;  // by n_top; null = not supported; the samplers point to these objects
    std::map<llama_seq_id, Picker> pickers_;
};

}  // namespace eaglecpp
