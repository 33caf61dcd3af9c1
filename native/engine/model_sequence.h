// SPDX-License-Identifier: MIT
// The side of one conversation of a drafter that llama.cpp runs. Draft rows lie in the same cache, one for each draft
// step, behind each other: a tree has siblings of its chain, which are not followed further.
#pragma once

#include <algorithm>

#include "engine/model_drafter.h"

namespace eaglecpp {

class ModelSequence : public DraftSequence {
  public:
    // `owns_cells`: its keys and values are the drafter's own
    ModelSequence(ModelDrafter & drafter, const SeqRange & range, bool owns_cells = true)
        : d_(drafter), range_(range), owns_cells_(owns_cells) {}
    ~ModelSequence() override;

    int n_rows() const override { return n_rows_; }
    void commit(const FeatureRows & features, const Token * tokens) override;
    // Adds the rows of a commit to a batch with others, the last one with output.
    virtual void add_commit(const Token * tokens, const FeatureRows & features);
    // Adds the draft row of a step, and drops those behind its parent.
    virtual void add_step(const std::vector<DraftRow> & rows);
    // After a batch with rows of this conversation.
    virtual void take_states(bool) {}
    // No row of the last batch has an output: it was not run.
    void drop_outputs() { std::fill(outputs_.begin(), outputs_.end(), -1); }

    std::vector<Candidate> candidates(int i, int k, const std::optional<CoupledSampling> & sampling, Pos pos) override;
    bool take_step(int, const DraftRow &) override { return false; }

    void save_rows(int n, std::vector<uint8_t> & out) const override;
    void load_rows(ByteView bytes, int n) override;
    // llama.cpp checks the rest
    bool fits(ByteView bytes, int n) const override { return (bytes.size == 0) == (n == 0); }
    void truncate(int n) override;

  protected:
    // of a commit, the first that is run
    virtual int first_at() const { return 0; }
    // what the model reads next to the token of row `at` of a commit, and of a draft row behind `parent`
    virtual const float * state_at(const FeatureRows &, int) const { return nullptr; }
    virtual const float * state_behind(int) const { return nullptr; }
    void drop_cells(Pos from) {
        if (owns_cells_) d_.cells_.truncate(range_, from);
    }
    void add_row(const Token * tokens, const FeatureRows & features, int at, bool has_output) {
        d_.batch_.add(d_.own_token(tokens[at]), n_rows_ + at + 1, range_, has_output, state_at(features, at));
    }

    ModelDrafter & d_;
    SeqRange range_;
    bool owns_cells_;
    int n_rows_ = 0;
    Tokens tokens_;             // of the draft rows, each behind the one before it
    std::vector<int> outputs_;  // of the last call: rows of the batch
    CoupledDraft coupled_;
};

// What the target accepted is not run again: draft rows become committed ones. Row 0 follows the text's first token,
// which is run with it.
class SmallModelSequence : public ModelSequence {
  public:
    using ModelSequence::ModelSequence;
    void add_commit(const Token * tokens, const FeatureRows & features) override;

  private:
    int first_at() const override { return n_rows_ == 0 ? -1 : 0; }
};

// Reads the target's state next to each token. Draft rows read the head's own states instead, so what the target
// accepted is run again.
class HeadSequence : public ModelSequence {
  public:
    HeadSequence(ModelDrafter & drafter, const SeqRange & range, bool owns_cells = true)
        : ModelSequence(drafter, range, owns_cells), n_state_(drafter.model_->n_state()) {}
    void take_states(bool is_commit) override;

  protected:
    const float * state_at(const FeatureRows & features, int at) const override {
        return features.layer[0] + (size_t)at * n_state_;
    }
    const float * state_behind(int parent) const override { return states_.data() + (size_t)(1 + parent) * n_state_; }

  private:
    int n_state_;
    std::vector<float> states_;  // [1 + draft row]: what rows behind it read; [0] of the last committed row
};

}  // namespace eaglecpp
