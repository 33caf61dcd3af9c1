// SPDX-License-Identifier: MIT
// The side of one conversation of a drafter that reads features. Row p pairs the target's feature at position p with
// the embedding of the token at p + 1, and lives at K/V slot and RoPE position p. A draft row is fed with the state of
// the row it follows, and its attention sees the committed rows, the chain of parents and itself. Of a block drafter a
// row is its feature's keys and values alone, the block's rows lie where draft rows do, and extending asks for slots'
// logits given the token before. Several conversations can commit or extend in one graph: the weights are then read
// once for all, and each gets the bits it has alone where products do not depend on the number of rows.
#pragma once

#include <initializer_list>
#include <memory>
#include <vector>

#include "draft/feature_drafter.h"
#include "draft/inputs.h"
#include "draft/outputs.h"

namespace eaglecpp {

class FeatureSequence : public DraftSequence, Pinned {
  public:
    explicit FeatureSequence(FeatureDrafter & drafter);
    ~FeatureSequence() override;

    int n_rows() const override { return kv_->n_rows; }
    int n_draft_rows() const { return drafts_.n(); }  // of this round so far

    void commit(const FeatureRows & features, const Token * tokens) override;
    bool take_step(int i, const DraftRow & row) override;

    // [n_draft_vocab] logits of output row i of this sequence's last call; valid until the next call of any sequence of
    // this drafter
    const float * logits(int i) { return outputs_.logits(i); }

    std::vector<Candidate> candidates(int i, int k, const std::optional<CoupledSampling> & sampling = {},
                                      Pos pos = 0) override {
        return outputs_.candidates(i, k, sampling, pos);
    }

    // state [H] of a node's row
    void get_state(int node, float * dst) const;
    void set_state(int node, const float * src);

    void save_rows(int n, std::vector<uint8_t> & out) const override;
    void load_rows(ByteView bytes, int n) override;
    bool fits(ByteView bytes, int n) const override { return n <= kv_->n_ctx() && bytes.size == kv_->n_bytes_of(n); }
    void truncate(int n_rows) override;

    const DraftKv & kv() const { return *kv_; }

  private:
    friend class FeatureDrafter;  // its calls for several

    int n_padded(int n_rows, std::initializer_list<int> sizes) const;
    int n_slots_read(int n_used) const;
    // The last row runs fully, and draft rows behind node 0 are fed its state. The cache keeps nothing of masked rows.
    // `blocks`: gets the block behind a block drafter's rows.
    DraftCall commit_call(const DraftRequest & commit, std::vector<DraftCall> & blocks);
    DraftCall commit_call(const FeatureRows & features, const Token * tokens, int n_out);
    DraftCall block_call(int n_before, Token anchor, int n_out);
    DraftCall extend_call(const std::vector<DraftRow> & rows, std::vector<Token> & tokens);
    // of several conversations in one graph; `blocks`: one for each call, or none
    static void run(const std::vector<DraftCall> & calls, const std::vector<DraftCall> & blocks = {}, int n_steps = 0);
    void add_steps(const DraftGraph & g);
    void check_room(int n_rows) const;
    void check_feeds() const;
    void drop_drafts(int n_left);

    FeatureDrafter & drafter_;
    std::unique_ptr<DraftKv> kv_;
    GraphCache graphs_;  // with this conversation alone
    Ancestry drafts_;
    DraftOutputs outputs_;  // of the last call
};

}  // namespace eaglecpp
