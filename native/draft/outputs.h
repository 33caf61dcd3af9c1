// SPDX-License-Identifier: MIT
// The results of one conversation's last call: its rows' logits, and the likeliest tokens if the graph picked them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "algo/coupled.h"
#include "algo/topk.h"
#include "algo/tree.h"
#include "draft/hidden_state_drafter.h"
#include "draft/inputs.h"

namespace eaglecpp {

// The device's picks for all rows of a graph or step. Valid until the next graph runs.
struct LandedPicks {
    const int32_t * ids = nullptr;
    const float *logits = nullptr, *probs = nullptr;
    const float * hidden = nullptr;  // DraftGraph::hidden
};

// Returns the picks of a started graph and of its steps; they are filled in once the device was waited for. Null
// pointers if the graph picks nothing.
std::vector<LandedPicks> fetch_picks(DraftDevice & device, const DraftGraph & g);

class DraftOutputs {
  public:
    explicit DraftOutputs(const HiddenStateDrafter & drafter) : drafter_(drafter) {}

    // Takes output rows [first, first + n) of the last graph, then its steps.
    void take(const DraftGraph & g, int first, int n, const std::vector<LandedPicks> & landed);

    // Takes a block whose draft positions are the graph's rows from `first` on. If the host selects, output row 0
    // becomes the first position's choice after the anchor.
    void begin_block(const DraftGraph & g, const DraftCall & block, int first, const std::vector<LandedPicks> & landed);
    void end_block() { n_slots_ = 0; }
    int n_slots() const { return n_slots_; }  // draft positions of the last block

    // If HiddenStateDrafter::selects(): makes output row i the choice at position slots[i] after token before[i], among
    // the position's likeliest tokens.
    void select(const std::vector<int32_t> & slots, const Token * before);

    // With a confidence head: computes the confidence of output row i, at position slots[i] after token before[i].
    void judge(const std::vector<int32_t> & slots, const Token * before);

    // See the functions of DraftSequence with the same names.
    const float * logits(int i);
    std::vector<Candidate> candidates(int i, int k, const std::optional<CoupledSampling> & sampling, Pos pos);

  private:
    // A graph's picks for one row, best first.
    struct Picked {
        std::vector<std::pair<int32_t, float>> tokens;  // index and logit
        float log_sum_exp;
    };

    void read_picked(const LandedPicks & landed, size_t n_each, int first, int n);
    bool covers(const Picked & picked, int k, const std::optional<CoupledSampling> & sampling) const;
    Picked behind(int slot, Token before) const;
    std::vector<Candidate> likeliest(const Picked & picked, int k) const;

    const HiddenStateDrafter & drafter_;
    std::vector<float> logits_;  // empty until requested from the device
    ggml_tensor * logits_tensor_ = nullptr;
    std::vector<ggml_tensor *> step_logits_;
    int first_ = 0, n_ = 0;  // output rows in the graph
    int run_ = 0;            // number of the drafter's run
    size_t n_logits_ = 0;
    std::vector<Picked> picked_;
    int n_slots_ = 0;
    // Per draft position: its likeliest tokens, and the input of the selector or its part of the confidence. Per output
    // row: the selected tokens, and the logit of the confidence.
    std::vector<Picked> slots_, selected_;
    std::vector<float> hidden_, confidence_;
    CoupledDraft coupled_;
    Largest largest_;
    // Members to save allocations.
    std::vector<float> picked_logits_;
    std::vector<Token> picked_tokens_;
};

}  // namespace eaglecpp
