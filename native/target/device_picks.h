// SPDX-License-Identifier: MIT
// Picks the likeliest tokens of a row on the device that computed its logits, with samplers of libllama's interface,
// one for each sequence id of a row.
//
// libllama calls the samplers row by row. The first call picks for all rows of the graph; each sampler then names its
// part of the result, which is copied back.
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
    // device: the output layer's; null for the CPU or to disable picks.
    explicit DevicePicks(ggml_backend_dev_t device = nullptr, int n_vocab = 0) : device_(device), n_vocab_(n_vocab) {}
    void attach(llama_context * ctx) { ctx_ = ctx; }

    // Picks the n_top likeliest tokens of this conversation's rows on the device from now on, without copying the
    // logits back. n_top 0 turns this off. Returns false if it is impossible; logits are then copied as usual.
    bool set(const SeqRange & range, int n_top);

    // The tokens picked for row i of the last decode.
    TopLogits top(int row) const;

    // Picks of one size in the graph under construction.
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
    std::map<int, std::unique_ptr<Kind>> kinds_;  // by n_top, null = not supported; the samplers point to them
    std::map<llama_seq_id, Picker> pickers_;
};

}  // namespace eaglecpp
