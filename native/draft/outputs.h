// SPDX-License-Identifier: MIT
// The results of one conversation's last call: its rows' logits, and the likeliest tokens as far as the graph picked
// them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "algo/coupled.h"
#include "algo/topk.h"
#include "algo/tree.h"
#include "draft/feature_drafter.h"
#include "draft/inputs.h"

namespace eaglecpp {

// What a device picked for all rows of a graph, and of each of its steps. Valid until the next one runs.
struct LandedPicks {
    const int32_t * ids = nullptr;
    const float *logits = nullptr, *probs = nullptr;
    const float * hidden = nullptr;  // DraftGraph::hidden
};

// Of a graph that was started; filled in once the device has been waited for. Empty ones if the graph picks none.
std::vector<LandedPicks> fetch_picks(DraftDevice & device, const DraftGraph & g);

class DraftOutputs {
  public:
    explicit DraftOutputs(const FeatureDrafter & drafter) : drafter_(drafter) {}

    // output rows [first, first + n) of the graph that ran last, then its steps
    void take(const DraftGraph & g, int first, int n, const std::vector<LandedPicks> & landed);

    // A block ran, whose slots are the graph's from `first` on. Where the host selects, output row 0 is from now on the
    // first slot's choice behind the anchor.
    void begin_block(const DraftGraph & g, const DraftCall & block, int first, const std::vector<LandedPicks> & landed);
    void end_block() { n_slots_ = 0; }
    int n_slots() const { return n_slots_; }  // that the last pass over a block gave

    // FeatureDrafter::selects(): output row i is what comes in a slot, one of its likeliest tokens, behind a token in
    // the slot before.
    void select(const std::vector<int32_t> & slots, const Token * before);

    // With a confidence head: output row i is what comes in a slot behind a token in the slot before.
    void judge(const std::vector<int32_t> & slots, const Token * before);

    // see the functions of DraftSequence with these names
    const float * logits(int i);
    std::vector<Candidate> candidates(int i, int k, const std::optional<CoupledSampling> & sampling, Pos pos);

  private:
    // what a graph picked for one row, best first
    struct Picked {
        std::vector<std::pair<int32_t, float>> tokens;  // index and logit
        float log_sum_exp;
    };

    void read_picked(const LandedPicks & landed, size_t n_each, int first, int n);
    bool covers(const Picked & picked, int k, const std::optional<CoupledSampling> & sampling) const;
    Picked behind(int slot, Token before) const;
    std::vector<Candidate> likeliest(const Picked & picked, int k) const;

    const FeatureDrafter & drafter_;
    std::vector<float> logits_;  // empty as long as nobody asked for what a device holds
    ggml_tensor * logits_tensor_ = nullptr;
    std::vector<ggml_tensor *> step_logits_;
    int first_ = 0, n_ = 0;  // rows there
    int run_ = 0;            // of all runs of the drafter
    size_t n_logits_ = 0;
    std::vector<Picked> picked_;
    int n_slots_ = 0;
    // Of each slot its likeliest tokens, and what a selector multiplies or its part of the confidence. Of each output
    // row what was selected, and the logit of the confidence.
    std::vector<Picked> slots_, selected_;
    std::vector<float> hidden_, confidence_;
    CoupledDraft coupled_;
    Largest largest_;
    // kept to save allocations
    std::vector<float> picked_logits_;
    std::vector<Token> picked_tokens_;
};

}  // namespace eaglecpp
