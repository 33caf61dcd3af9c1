// SPDX-License-Identifier: MIT
// The likeliest tokens of a row, found where its logits are: on a device, by samplers of libllama's kind, one for each
// sequence id that a row may carry.
//
// libllama asks the samplers row by row, runs what each of them built and copies back what each of them names: for a
// tree of 16 nodes 17 small operations and 17 copies, over RPC 17 ways there and back. So the first sampler that is
// asked picks for all rows of the graph at once, and the others name nothing.
#pragma once

#include <llama.h>

#include <map>
#include <memory>
#include <vector>

#include "target/llama_bridge.h"
#include "target/sampler.h"
#include "target/tree_batch.h"

namespace eaglecpp {

class DevicePicks {
  public:
    // `device`: of the output layer, null for the CPU and where picks are not wanted. `n_ubatch`: rows of a graph;
    // 0 where graphs may have the rows of a batch in another order: then each row is picked from by itself.
    explicit DevicePicks(ggml_backend_dev_t device = nullptr, int n_vocab = 0, int n_ubatch = 0)
        : device_(device), n_vocab_(n_vocab), n_ubatch_(n_ubatch) {}
    void attach(llama_context * ctx) { ctx_ = ctx; }

    // From now on the n_top likeliest tokens of each row of this conversation are found on the device, and the row's
    // logits are not copied back; n_top 0 switches this off again. False if it cannot be done; logits are then copied
    // back as usual.
    bool set(const SeqRange & range, int n_top);

    // call before each decode of these rows
    void begin(const llama_batch & rows);
    // what was found in this way for row i of the last decode
    Token best(int row) const;
    TopLogits top(int row) const;

    // of one kind of picks, in the graph that is being built
    struct Kind {
        int n_top;
        bool is_joint;
        ggml_tensor * ids = nullptr;
        ggml_tensor * logits = nullptr;
        std::vector<const llama_sampler *> asked_first = {};  // about row 0
        bool is_named = false;                                // at a row that surely is its sampler's
    };

  private:
    // where the picks of one output row are
    struct Place {
        int n_top = 0;
        int graph;  // of the batch
        int at;     // its place among the output rows there
    };

    Kind & kind(int n_top);
    bool is_possible(int n_top);
    LlamaSamplerPtr make_picker(int n_top);

    ggml_backend_dev_t device_;
    int n_vocab_, n_ubatch_;
    llama_context * ctx_ = nullptr;  // holds pointers to the samplers
    struct Picker {
        LlamaSamplerPtr sampler;
        int n_top;
    };
    std::map<int, std::unique_ptr<Kind>> kinds_;  // by n_top; the samplers point to them
    std::map<llama_seq_id, Picker> pickers_;
    std::map<int, bool> possible_;           // n_top -> so far as is known
    std::vector<Place> places_;              // by row of the batch
    std::vector<std::vector<int>> outputs_;  // by graph: rows of the batch
};

}  // namespace eaglecpp
