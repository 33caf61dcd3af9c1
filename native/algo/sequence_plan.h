// SPDX-License-Identifier: MIT
// The planner's side of one conversation: how it wants to draft, what was learned about its text, and the round under
// way. Owned by the conversation; filled by Planner. The engine reads frontier, tree and decision.
#pragma once

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "algo/acceptance_model.h"
#include "algo/decision.h"
#include "algo/node_order.h"
#include "algo/prices.h"
#include "algo/strategy.h"
#include "algo/text_acceptance.h"
#include "algo/tree.h"

namespace eaglecpp {

// Are only batches planned whose rows hold the bits of single rows? automatic: where that costs little
enum class Exactness { off, automatic, on };

// What a round may use at most.
struct PlanLimits {
    int n_nodes = 64;        // draft nodes of one verification
    int n_leaves = 1;        // leaves of one verification; 1 = chains only
    int n_leaves_exact = 1;  // the same where rows must hold the bits of single rows
    int n_draft_rows = 128;  // rows the drafter can hold beyond its committed ones
};

// Decaying sums of tokens and of time in plain rounds: the speed of late, at least plain.
class RecentSpeed {
  public:
    void add(double n_tokens, double n_rounds) {
        n_tokens_ = n_tokens_ * decay + n_tokens;
        n_rounds_ = n_rounds_ * decay + n_rounds;
    }

    double speed() const { return n_tokens_ > n_rounds_ && n_rounds_ > 0.0 ? n_tokens_ / n_rounds_ : 1.0; }

  private:
    static constexpr double decay = 0.985;  // half in 46 rounds
    double n_tokens_ = 0.0, n_rounds_ = 0.0;
};

class SequencePlan {
  public:
    SequencePlan() {
        for (auto & ranks : mean_p_) {
            for (int r = 0; r < n_ranks; ++r) ranks[r] = r == 0 ? 0.6f : 0.12f / (float)(r * r);
        }
    }

    // --- how to draft; takes effect with the next round ----------------------------------------------------------
    void use_auto() { rule_ = Rule::automatic; }

    // the strategy as it is, whatever it costs
    void use_fixed(const Strategy & strategy) {
        rule_ = Rule::fixed;
        strategy_ = strategy;
    }

    // the rounds of a logged run, then plain ones
    void use_replay(std::vector<Decision> decisions) {
        rule_ = Rule::replay;
        replay_ = std::move(decisions);
        n_replayed_ = 0;
    }

    // --- the round under way ---------------------------------------------------------------------------------------
    // nodes whose children the drafter should propose now; the root (0) first; empty = drafting is over
    const std::vector<int32_t> & frontier() const { return frontier_; }

    // candidates to propose per node
    int k() const { return decision_.k; }

    // everything proposed in this round
    const DraftTree & pool() const { return pool_; }

    // what to verify; the root alone in a plain round
    const DraftTree & tree() const { return tree_; }

    const Decision & decision() const { return decision_; }

    // this node of tree() was proposed by the text itself and by nobody else
    bool is_from_text(int node) const { return node > 0 && is_text_[decision_.nodes[node - 1]]; }

    // node of pool() behind a node of tree(); behind the root of a plain round the one that a draft of before foresaw,
    // -1 if none did
    int pool_node(int node) const { return node > 0 ? decision_.nodes[node - 1] : cursor_; }

    // --- reports ---------------------------------------------------------------------------------------------------
    bool is_on() const { return is_on_; }

    // only exact batches are planned; settled in the first round of a request
    bool is_exact() const { return is_exact_; }

    // A fixed strategy is cut to so many of its nodes, because the rows of larger batches are not exact; -1 = it is
    // not.
    int cut() const { return cut_; }

    // mean predicted gain of drafting a round, in tokens
    double advantage() const { return advantage_; }

    // mean chance of acceptance of the rank-th child (from 1) of a frontier node at depth - 1, given that node
    double mean_p(int depth, int rank) const {
        return mean_p_[std::clamp(depth, 1, n_depths) - 1][std::clamp(rank, 1, n_ranks) - 1];
    }

  private:
    friend class Planner;
    enum class Rule { automatic, fixed, replay };
    static constexpr int n_depths = 12;
    static constexpr int n_ranks = AcceptanceModel::n_ranks_max;

    bool is_drafting() const { return decision_.mode != Decision::Mode::plain; }
    bool is_auto_drafting() const { return is_drafting() && rule_ == Rule::automatic; }
    bool is_verifying() const { return !decision_.nodes.empty(); }
    // the text's proposals without the drafter's
    bool is_text_only() const { return is_drafting() && decision_.levels.empty() && frontier_.empty(); }
    const Decision & logged() const { return replay_[n_replayed_ - 1]; }

    // what drafting took, less what a stall may have added
    double fair_draft_ms() const { return std::min(draft_ms_, stall * draft_ms_expected_); }

    // times the expected time: beyond that the machine stalled, which is not drafting's fault
    static constexpr double stall = 1.5;

    Rule rule_ = Rule::automatic;
    Strategy strategy_;
    std::vector<Decision> replay_;
    size_t n_replayed_ = 0;

    Exactness exactness_ = Exactness::off;
    bool is_exact_ = false, is_exact_settled_ = true;
    int cut_ = -1;

    // the text
    RequestKind kind_ = RequestKind::greedy;
    TextState text_;
    TextHits hits_;
    Contradiction contradiction_;
    std::array<std::array<float, n_ranks>, n_depths> mean_p_;  // [depth - 1][rank - 1] mean chance of a frontier child
    std::array<int, n_depths> n_seen_{};                       // nodes whose children mean_p_ has seen, by depth - 1
    RecentSpeed recent_;

    // on and off
    bool is_on_ = true;
    double advantage_ = 0.1, advantage_variance_ = 0.03;
    int n_off_ = 0;  // rounds since drafting was switched off
    int n_since_probe_ = 0;
    int n_burst_ = 0;          // probes left to take in quick succession
    double best_speed_ = 0.0;  // predicted speed of a drafted round, mean of late

    // What the drafter's nodes add to those of the text where these pay, less their cost: means of late, in tokens,
    // where the text is worth little and where it is worth `sure` tokens and more.
    static constexpr double sure = 2.0;
    std::array<double, 2> joint_{0.1, -0.02};
    int n_since_joint_ = 0;
    double & joint() { return joint_[text_value_ >= sure]; }

    // the round
    Decision decision_;
    PlanLimits limits_;
    DraftTree pool_, tree_;
    std::vector<float> p_;                           // per pool node: chance that it is accepted
    std::vector<float> a_;                           // per pool node: the same, given its parent
    std::vector<float> a_text_;                      // per node of the text's: the same before the drafter spoke
    std::vector<uint8_t> is_text_;                   // per pool node: from the text, and not from the drafter, too
    std::vector<Candidate> proposed_;                // by the drafter: token and clean conditional log-probability
    std::vector<int32_t> proposed_node_;             // and the pool node that carries it
    std::vector<int32_t> first_child_, n_children_;  // per pool node: what the drafter proposed behind it
    std::vector<int32_t> frontier_, level_;          // level_: nodes of the last drafter level
    TextDraft text_draft_;                           // what the text proposes behind the root
    std::vector<float> text_a_;                      // per node of it: chance, given its parent
    double text_value_ = 0.0;                        // what verifying it alone is worth, in tokens
    std::vector<float> best_p_;                      // the highest chances of the pool, falling
    NodeOrder order_;
    Prices prices_;
    double draft_ms_ = 0.0, draft_ms_expected_ = 0.0;
    int n_left_ = 0, n_pending_ = 0, depth_max_ = 0, n_draft_rows_ = 0;
    int cursor_ = -1;      // pool node the target has reached; -1 = it left the pool
    int n_committed_ = 0;  // tokens of this round
};

}  // namespace eaglecpp
