// SPDX-License-Identifier: MIT
// The planner's side of one conversation: how it wants to draft, what was learned about its text, whether drafting is
// on, and the round under way. Owned by the conversation; filled by Planner. The engine reads frontier, tree and
// decision.
#pragma once

#include <climits>
#include <vector>

#include "algo/decision.h"
#include "algo/draft_pool.h"
#include "algo/draft_switch.h"
#include "algo/mean_chances.h"
#include "algo/node_order.h"
#include "algo/prices.h"
#include "algo/strategy.h"
#include "algo/text_acceptance.h"

namespace eaglecpp {

// Whether only batches are planned whose rows have the bits of single rows. automatic: where that costs little
enum class Exactness { off, automatic, on };

// What a round may use at most.
struct PlanLimits {
    int n_nodes = 64;         // draft nodes of one verification
    int n_leaves = 1;         // leaves of one verification; 1 = chains only
    int n_leaves_exact = 1;   // the same where rows must hold the bits of single rows
    int n_draft_rows = 128;   // rows the drafter can hold beyond its committed ones
    int n_levels = INT_MAX;   // levels the drafter can give
    bool runs_again = false;  // where a draft is rejected, the accepted ones before it have to be run again
};

// The recent speed, from decaying sums of tokens and of time in plain rounds; never below that of plain decoding.
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

// Whether only exact batches are planned; where the request leaves that open, its first round settles it.
struct ExactRule {
    bool is_exact = false, is_settled = true;
    // The number of nodes that a fixed strategy is cut to because the rows of larger batches are not exact; -1 = it is
    // not cut.
    int cut = -1;

    void begin_request(Exactness wanted) {
        is_exact = wanted != Exactness::off;
        is_settled = wanted != Exactness::automatic;
        cut = -1;
    }

    void settle(bool is_cheap) {
        is_exact = is_cheap;
        is_settled = true;
    }
};

// What was learned about the text.
struct LearnedText {
    RequestKind kind = RequestKind::greedy;
    TextState drafter;
    TextTerm hits;
    MeanChances chances;
    RecentSpeed recent;
};

// The drafter's time in a round, as measured and as expected.
struct DraftTime {
    double ms = 0.0, expected_ms = 0.0;

    // A multiple of the expected time: what exceeds it is put down to a stall of the machine, not to drafting.
    static constexpr double stall = 1.5;
    double fair_ms() const { return std::min(ms, stall * expected_ms); }
};

// The round under way.
struct PlanRound {
    Decision decision;
    PlanLimits limits;
    int n_left = 0;             // tokens that may still be generated
    int n_pending = 0;          // rows the drafter must commit first
    TextDraft text_draft;       // what the text proposes after the root
    std::vector<float> text_a;  // per node of it: chance, given its parent
    double text_value = 0.0;    // what verifying it alone is worth, in tokens

    DraftPool pool;
    DraftTree tree;  // what is verified
    std::vector<int32_t> frontier;
    std::vector<float> best_p;  // the highest chances of the pool, in falling order
    NodeOrder order;
    Prices prices;
    int depth_max = 0, n_draft_rows = 0;
    DraftTime draft_time;
    int cursor = -1;      // pool node the target has reached; -1 = it left the pool
    int n_committed = 0;  // tokens
    int n_peers = 1;      // conversations that drafted together at the last level, this one included
    bool has_drafted_last = false;

    // The round is a plain one until something is drafted.
    void begin(Token root, const PlanLimits & most, int n_left_now, int n_pending_now);

    bool is_drafting() const { return decision.mode != Decision::Mode::plain; }
    bool is_verifying() const { return !decision.nodes.empty(); }
    // the text's proposals without the drafter's
    bool is_text_only() const { return is_drafting() && decision.levels.empty() && frontier.empty(); }
};

class SequencePlan {
  public:
    // how to draft, from the next round on
    void use(const Strategy & strategy) { strategy_ = strategy; }
    const Strategy & strategy() const { return strategy_; }
    bool is_auto() const { return strategy_.kind == Strategy::Kind::automatic; }

    // --- the round under way ---------------------------------------------------------------------------------------
    // nodes whose children the drafter should propose now; the root (0) first; empty = drafting is over
    const std::vector<int32_t> & frontier() const { return round.frontier; }

    // levels that the round may have
    int n_levels_max() const { return round.depth_max; }

    // candidates to propose per node
    int k() const { return round.decision.k; }

    // everything proposed in this round
    const DraftTree & pool() const { return round.pool.tree(); }

    // what to verify; the root alone in a plain round
    const DraftTree & tree() const { return round.tree; }

    const Decision & decision() const { return round.decision; }

    // this node of tree() was proposed by the text itself and by nobody else
    bool is_from_text(int node) const { return node > 0 && round.pool.is_from_text(round.decision.nodes[node - 1]); }

    // The node of pool() that a node of tree() is. For the root of a plain round: the pool node of an earlier draft
    // that the target has reached, -1 if there is none.
    int pool_node(int node) const { return node > 0 ? round.decision.nodes[node - 1] : round.cursor; }

    // --- reports ---------------------------------------------------------------------------------------------------
    bool is_on() const { return on_off.is_on(); }
    bool is_exact() const { return exact.is_exact; }
    int cut() const { return exact.cut; }
    double advantage() const { return on_off.advantage(); }
    double mean_p(int depth, int rank) const { return text.chances.at(depth, rank); }

    // --- the planner's ---------------------------------------------------------------------------------------------
    bool is_auto_drafting() const { return round.is_drafting() && is_auto(); }

    ExactRule exact;
    LearnedText text;
    DraftSwitch on_off;
    PlanRound round;

  private:
    Strategy strategy_{Strategy::Kind::automatic};
};

}  // namespace eaglecpp
