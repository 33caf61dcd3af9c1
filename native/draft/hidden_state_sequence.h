// SPDX-License-Identifier: MIT
// One conversation of a drafter that reads hidden states. Row p pairs the target's hidden state at position p with the
// embedding of the token at p + 1. Both its K/V slot and its RoPE position are p. A draft row reads the state of the
// row before it. It attends to the committed rows, to its ancestors and to itself.
//
// In a block drafter, a committed row is only the keys and values of its hidden state. The rows of a block use the
// slots of draft rows. An extend call computes the logits of draft positions, given the previous token.
//
// Several conversations can commit or extend in one graph, which reads the weights once for all conversations. Each
// conversation gets the same bits as if it ran alone, provided that the results of products do not depend on the number
// of rows.
#pragma once

#include <initializer_list>
#include <memory>
#include <vector>

#include "draft/hidden_state_drafter.h"
#include "draft/inputs.h"
#include "draft/outputs.h"

namespace eaglecpp {

class HiddenStateSequence : public DraftSequence, Pinned {
  public:
    explicit HiddenStateSequence(HiddenStateDrafter & drafter);
    ~HiddenStateSequence() override;

    int n_rows() const override { return kv_->n_rows; }
    int n_draft_rows() const { return drafts_.n(); }  // number of draft rows of the current round

    void commit(const HiddenStates & hidden_states, const Token * tokens) override;
    bool take_step(int i, const DraftRow & row) override;

    // Returns the logits [n_draft_vocab] of output row i of this sequence's last call. They are valid until the next
    // call of any sequence of this drafter.
    const float * logits(int i) { return outputs_.logits(i); }

    std::vector<Candidate> candidates(int i, int k, const std::optional<CoupledSampling> & sampling = {},
                                      Pos pos = 0) override {
        return outputs_.candidates(i, k, sampling, pos);
    }

    void save_rows(int n, std::vector<uint8_t> & out) const override;
    void load_rows(ByteView bytes, int n) override;
    bool fits(ByteView bytes, int n) const override { return n <= kv_->n_ctx() && bytes.size == kv_->n_bytes_of(n); }
    void truncate(int n_rows) override;

    const DraftKv & kv() const { return *kv_; }

  private:
    friend class HiddenStateDrafter;  // HiddenStateDrafter runs calls of several conversations

    int n_padded(int n_rows, std::initializer_list<int> sizes) const;
    int n_slots_read(int n_used) const;
    // Prepares a commit. The commit's last row runs fully, and draft rows after node 0 read its state. Masked rows are
    // not kept in the cache. For a block drafter, appends the block that follows the rows to `blocks`.
    DraftCall commit_call(const DraftRequest & commit, std::vector<DraftCall> & blocks);
    DraftCall commit_call(const HiddenStates & hidden_states, const Token * tokens, int n_out);
    DraftCall block_call(int n_before, const Token * anchor, int n_out);
    DraftCall extend_call(const std::vector<DraftRow> & rows, std::vector<Token> & tokens);
    // Runs the calls of several conversations in one graph. `blocks` is empty or has one block per call.
    static void run(const std::vector<DraftCall> & calls, const std::vector<DraftCall> & blocks = {}, int n_steps = 0);
    void add_steps(const DraftGraph & g);
    void check_room(int n_rows) const;
    void drop_drafts(int n_left);

    HiddenStateDrafter & drafter_;
    std::unique_ptr<DraftKv> kv_;
    Ancestry drafts_;
    DraftOutputs outputs_;  // outputs of the last call
};

}  // namespace eaglecpp
