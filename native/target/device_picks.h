// SPDX-License-Identifier: MIT
// The likeliest tokens of a row, found where its logits are: on a device, by samplers of libllama's kind, one for each
// sequence id that a row may carry.
//
// libllama asks the samplers row by row. The first that is asked picks for all rows of the graph at once, and each
// names its own part of that, which is copied back.
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
    // `device`: of the output layer, null for the CPU and where picks are not wanted
    explicit DevicePicks(ggml_backend_dev_t device = nullptr, int n_vocab = 0) : device_(device), n_vocab_(n_vocab) {}
    void attach(llama_context * ctx) { ctx_ = ctx; }

    // From now on the n_top likeliest tokens of each row of this conversation are found on the device, and the row's
    // logits are not copied back; n_top 0 switches this off again. False if it cannot be done; logits are then copied
    // back as usual.
    bool set(const SeqRange & range, int n_top);

    // what was found in this way for row i of the last decode
    TopLogits top(int row) const;

    // of one kind of picks, in the graph that is being built
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
    std::map<int, std::unique_ptr<Kind>> kinds_;  // by n_top, null = it cannot be done; the samplers point to them
    std::map<llama_seq_id, Picker> pickers_;
};

}  // namespace eaglecpp
