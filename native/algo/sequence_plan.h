// SPDX-License-Identifier: MIT
// The planner's side of one conversation: how it wants to draft, what was learned about its text, and the round under
// way. Owned by the conversation; filled by Planner. The engine reads mode, frontier, tree and decision.
#pragma once

#include <array>
#include <vector>

#include "algo/acceptance_model.h"
#include "algo/decision.h"
#include "algo/node_order.h"
#include "algo/prices.h"
#include "algo/strategy.h"
#include "algo/tree.h"

namespace eaglecpp {

// What a round may use at most.
struct PlanLimits {
    int n_nodes = 64;        // draft nodes of one verification
    int n_leaves = 1;        // leaves of one verification; 1 = chains only
    int n_draft_rows = 128;  // rows the drafter can hold beyond its committed ones
    bool replays = false;    // accepted rows are run again when a draft was rejected (no rollback)
};

// Decaying sums of tokens and of time in plain rounds: the speed of late, at least plain.
struct RecentSpeed {
    double n_tokens = 0.0, cost = 0.0;

    void add(double tokens, double rounds) {
        n_tokens = n_tokens * decay + tokens;
        cost = cost * decay + rounds;
    }
    double speed() const { return cost > 0.0 && n_tokens > cost ? n_tokens / cost : 1.0; }

    static constexpr double decay = 0.985;  // half in 46 rounds
};

class SequencePlan {
  public:
    // --- how to draft; takes effect with the next round ------------------------------------------------------------
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

    // --- the round under way -----------------------------------------------------------------------------------------
    // nodes whose children the drafter should propose now; the root (0) first; empty = drafting is over
    const std::vector<int32_t> & frontier() const { return frontier_; }

    // candidates to propose per node
    int k() const { return decision_.k; }

    // everything proposed in this round
    const DraftTree & pool() const { return pool_; }

    // what to verify; the root alone in a plain round
    const DraftTree & tree() const { return tree_; }

    const Decision & decision() const { return decision_; }

    // --- reports -----------------------------------------------------------------------------------------------------
    bool is_on() const { return is_on_; }

    // mean predicted gain of drafting a round, in tokens
    double advantage() const { return advantage_; }

  private:
    friend class Planner;
    enum class Rule { automatic, fixed, replay };
    static constexpr int n_depths = 12;
    static constexpr int n_ranks = AcceptanceModel::n_ranks_max;

    bool is_drafting() const { return decision_.mode != Decision::Mode::plain; }

    Rule rule_ = Rule::automatic;
    Strategy strategy_;
    std::vector<Decision> replay_;
    size_t n_replayed_ = 0;

    // the text
    RequestKind kind_ = RequestKind::greedy;
    TextState text_;
    std::array<std::array<float, n_ranks>, n_depths> mean_p_{};  // [depth - 1][rank - 1] mean chance of a frontier child
    RecentSpeed recent_;

    // on and off
    bool is_on_ = true;
    double advantage_ = 0.1;
    int n_since_probe_ = 0;
    int n_burst_ = 0;           // probes left to take in quick succession
    double best_speed_ = 0.0;

    // the round
    Decision decision_;
    PlanLimits limits_;
    DraftTree pool_, tree_;
    std::vector<Candidate> proposed_;      // per pool node: token and clean conditional log-probability
    std::vector<float> p_;                 // per pool node: chance that it is accepted
    std::vector<int32_t> first_child_, n_children_;
    std::vector<int32_t> frontier_;
    std::vector<float> best_p_;            // the highest chances of the pool, falling
    NodeOrder order_;
    Prices prices_;
    double draft_ms_ = 0.0, draft_ms_expected_ = 0.0;
    int n_pending_ = 0, depth_max_ = 0, n_draft_rows_ = 0;
    int first_new_ = 0;                    // first pool node of the last level
    int cursor_ = -1;                      // pool node the target has reached; -1 = it left the pool
    int n_committed_ = 0;                  // tokens of this round
};

}  // namespace eaglecpp
