// SPDX-License-Identifier: MIT
// The likeliest tokens of a row, found where its logits are: on a device, by llama.cpp's samplers there, one for each
// sequence id that a row may carry.
#pragma once

#include <llama.h>

#include <map>

#include "target/llama_bridge.h"
#include "target/sampler.h"
#include "target/tree_batch.h"

namespace eaglecpp {

class DevicePicks {
  public:
    // `device`: of the output layer, null for the CPU and where picks are not wanted
    explicit DevicePicks(ggml_backend_dev_t device = nullptr, int n_vocab = 0) : device_(device), n_vocab_(n_vocab) {}
    void attach(llama_context * ctx) { ctx_ = ctx; }

    // From now on the likeliest token of each row of this conversation (n_top 1) or its n_top likeliest are found on
    // the device, and its logits do not come back, or with 0 they do again. False where that cannot be done; then they
    // do.
    bool set(const SeqRange & range, int n_top);
    // what was so found for row i of the last decode
    Token best(int row) const;
    TopLogits top(int row) const;

  private:
    bool is_possible(int n_top);

    ggml_backend_dev_t device_;
    int n_vocab_;
    llama_context * ctx_ = nullptr;  // holds pointers to the samplers
    struct Picker {
        LlamaSamplerPtr sampler;
        int n_top;
    };
    std::map<llama_seq_id, Picker> pickers_;
    std::map<int, bool> possible_;  // n_top -> so far as is known
};

}  // namespace eaglecpp
