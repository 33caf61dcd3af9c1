// SPDX-License-Identifier: MIT
// Holds the results of one conversation's last call: the logits of the call's rows and, if the graph picked tokens, the
// likeliest tokens.
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

// The tokens that the device picked, for all rows of a graph or step. They are valid until the next graph runs.
struct LandedPicks {
    const int32_t * ids = nullptr;
    const float *logits = nullptr, *probs = nullptr;
    const float * hidden = nullptr;  // DraftGraph::hidden
};

// Returns the picks of a started graph and of its steps. The picks are valid after waiting for the device. The pointers
// are null if the graph picks no tokens.
std::vector<LandedPicks> fetch_picks(DraftDevice & device, const DraftGraph & g);

class DraftOutputs {
  public:
    explicit DraftOutputs(const HiddenStateDrafter & drafter) : drafter_(drafter) {}

    // Stores output rows [first, first + n) of the last graph, then the output rows of the graph's draft steps.
    void take(const DraftGraph & g, int first, int n, const std::vector<LandedPicks> & landed);

    // Stores a block. Its draft positions are the graph's rows from `first` on. If HiddenStateDrafter::selects(),
    // output row 0 becomes the selection of tokens at the first position after the anchor.
    void begin_block(const DraftGraph & g, const DraftCall & block, int first, const std::vector<LandedPicks> & landed);
    void end_block() { n_slots_ = 0; }
    int n_slots() const { return n_slots_; }  // number of draft positions in the last block

    // If HiddenStateDrafter::selects(), makes output row i the selection of tokens at position slots[i] after the token
    // before[i]. Only the likeliest tokens of the position can be selected.
    void select(const std::vector<int32_t> & slots, const Token * before);

    // If the drafter has a confidence head, computes the confidence of output row i, at position slots[i] after the
    // token before[i].
    void judge(const std::vector<int32_t> & slots, const Token * before);

    // logits() and candidates() work like DraftSequence's functions with the same names.
    const float * logits(int i);
    std::vector<Candidate> candidates(int i, int k, const std::optional<CoupledSampling> & sampling, Pos pos);

  private:
    // The tokens that a graph picked for one row, best first.
    struct Picked {
        std::vector<std::pair<int32_t, float>> tokens;  // pairs of an index in the draft vocabulary and a logit
        float log_sum_exp;
    };

    void read_picked(const LandedPicks & landed, size_t n_each, int first, int n);
    bool covers(const Picked & picked, int k, const std::optional<CoupledSampling> & sampling) const;
    Picked behind(int slot, Token before) const;
    std::vector<Candidate> likeliest(const Picked & picked, int k) const;

    const HiddenStateDrafter & drafter_;
    std::vector<float> logits_;  // empty until the logits are copied from the device
    ggml_tensor * logits_tensor_ = nullptr;
    std::vector<ggml_tensor *> step_logits_;
    int first_ = 0, n_ = 0;  // first output row of the call in the graph, and number of output rows
    int run_ = 0;            // HiddenStateDrafter::n_runs() at the last call
    size_t n_logits_ = 0;
    std::vector<Picked> picked_;
    int n_slots_ = 0;
    // slots_ has for each draft position the likeliest tokens and the input of the selector or confidence head.
    // selected_ has for each output row the selected tokens and the logit of the confidence.
    std::vector<Picked> slots_, selected_;
    std::vector<float> hidden_, confidence_;
    CoupledDraft coupled_;
    Largest largest_;
    // Members instead of local variables, to save allocations.
    std::vector<float> picked_logits_;
    std::vector<Token> picked_tokens_;
};

}  // namespace eaglecpp
