// SPDX-License-Identifier: MIT
// One conversation of a drafter that llama.cpp runs. Draft rows are stored in the drafter's own cache, one row per
// draft step. They form a chain. In a tree, siblings are added to this chain, but they get no children.
#pragma once

#include <algorithm>

#include "engine/model_drafter.h"

namespace eaglecpp {

class ModelSequence : public DraftSequence {
  public:
    // owns_cells: the drafter stores its own keys and values and does not read the target's.
    ModelSequence(ModelDrafter & drafter, const SeqRange & range, bool owns_cells = true)
        : d_(drafter), range_(range), owns_cells_(owns_cells) {}
    ~ModelSequence() override;

    int n_rows() const override { return n_rows_; }
    void commit(const HiddenStates & hidden_states, const Token * tokens) override;
    // Adds the rows of a commit to a batch shared by several conversations. Only the last of these rows has an output.
    virtual void add_commit(const Token * tokens, const HiddenStates & hidden_states);
    // Adds the row of a draft step to a batch shared by several conversations. Drops the rows after its parent.
    virtual void add_step(const std::vector<DraftRow> & rows);
    // Copies the states of this conversation's rows after the shared batch was run.
    virtual void take_states(bool) {}
    // Marks the outputs of the shared batch as missing because the batch did not run.
    void drop_outputs() { std::fill(outputs_.begin(), outputs_.end(), -1); }

    std::vector<Candidate> candidates(int i, int k, const std::optional<CoupledSampling> & sampling, Pos pos) override;
    bool take_step(int, const DraftRow &) override { return false; }

    void save_rows(int n, std::vector<uint8_t> & out) const override;
    void load_rows(ByteView bytes, int n) override;
    // Checks only that `bytes` is empty if n is 0, and not empty otherwise. llama.cpp checks the contents.
    bool fits(ByteView bytes, int n) const override { return (bytes.size == 0) == (n == 0); }
    void truncate(int n) override;

  protected:
    // Returns the index of the first row of a commit that the model runs.
    virtual int first_at() const { return 0; }
    // Both functions return the target's state that the model reads together with a token. state_at() returns it for
    // row `at` of a commit, state_behind() for a draft row after a parent.
    virtual const float * state_at(const HiddenStates &, int) const { return nullptr; }
    virtual const float * state_behind(int) const { return nullptr; }
    void drop_cells(Pos from) {
        if (owns_cells_) d_.cells_.truncate(range_, from);
    }
    void add_row(const Token * tokens, const HiddenStates & hidden_states, int at, bool has_output) {
        d_.vocabulary_.add(tokens[at]);
        d_.batch_.add(d_.own_token(tokens[at]), n_rows_ + at + 1, range_, has_output, state_at(hidden_states, at));
    }

    ModelDrafter & d_;
    SeqRange range_;
    bool owns_cells_;
    int n_rows_ = 0;
    Tokens tokens_;             // tokens of the draft rows, in order
    std::vector<int> outputs_;  // rows with outputs in the last call's batch
    CoupledDraft coupled_;
};

// A small model of the target's family. Accepted draft rows become committed rows and do not run again. Row 0 belongs
// to the text's second token, and the first commit also runs the first token.
class SmallModelSequence : public ModelSequence {
  public:
    using ModelSequence::ModelSequence;
    void add_commit(const Token * tokens, const HiddenStates & hidden_states) override;

  private:
    int first_at() const override { return n_rows_ == 0 ? -1 : 0; }
};

// A head that reads the target's state together with each token. Draft rows read the head's own states, so accepted
// tokens run again with the target's states.
class HeadSequence : public ModelSequence {
  public:
    HeadSequence(ModelDrafter & drafter, const SeqRange & range, bool owns_cells = true)
        : ModelSequence(drafter, range, owns_cells), n_state_(drafter.model_->n_state()) {}
    void take_states(bool is_commit) override;

  protected:
    const float * state_at(const HiddenStates & hidden_states, int at) const override {
        return hidden_states.layer[0] + (size_t)at * n_state_;
    }
    const float * state_behind(int parent) const override { return states_.data() + (size_t)(1 + parent) * n_state_; }

  private:
    int n_state_;
    std::vector<float> states_;  // [0]: last committed row; [1 + i]: state for the children of draft row i
};

}  // namespace eaglecpp
