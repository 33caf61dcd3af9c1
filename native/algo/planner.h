// SPDX-License-Identifier: MIT
// Decides each round whether to draft, how deep and wide, and which nodes to verify, to get the most tokens per unit of
// time, and never lets drafting cost more than the ledger's allowance. One planner per engine, one SequencePlan per
// conversation. docs/research/planner.md has the reasoning and the measured results.
//
// A round of the conversations that are decoded in one batch:
//
//     planner.begin_round(n_conversations);
//     for each plan: planner.decide(plan, request);
//     while any has a frontier: planner.grow(<those, with plan.k() candidates per frontier node>, ms);
//     planner.choose(plans);
//     <verify the plan.tree()s in one batch, match>
//     for each plan: planner.learn(plan, tokens emitted);
//     planner.end_round(verify_ms, round_ms);
//
// No clock and no random numbers: the same calls give the same plans. Vectors grow to their largest use and keep that
// size. A round that fails halfway is simply begun again.
#pragma once

#include <algorithm>
#include <climits>
#include <optional>
#include <vector>

#include "algo/acceptance.h"
#include "algo/cost_model.h"
#include "algo/costs.h"
#include "algo/decision.h"
#include "algo/ledger.h"
#include "algo/tree.h"

namespace eaglecpp {

// --- one conversation -----------------------------------------------------------------------------------------------

// Whether only batches are planned whose rows have the bits of single rows. automatic: where that costs little
enum class Exactness { off, automatic, on };

// What a round may use at most.
struct PlanLimits {
    int n_nodes = 64;        // draft nodes of one verification
    int n_leaves = 1;        // leaves of one verification; 1 = chains only
    int n_leaves_exact = 1;  // the same where rows must hold the bits of single rows
    int n_draft_rows = 128;  // rows the drafter can hold beyond its committed ones
    int n_level_rows = 128;  // rows the drafter can run at once
    int n_levels = INT_MAX;  // levels the drafter can give
    int n_block_rows = 0;    // rows that its commit runs beyond those that it appends
    bool replays = false;    // where a draft is rejected, the accepted ones before it have to be run again
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
};

// What was learned about the text.
struct LearnedText {
    RequestKind kind = RequestKind::greedy;
    TextState drafter;
    ChainTerms chain;
    MeanChances chances;
    RecentSpeed recent;
    double best_speed = 0.0;  // predicted for drafted rounds, mean over recent ones; 0 = unknown
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
    std::vector<float> text_a;  // per token of it: chance given those before
    double text_gain = 0.0;     // what verifying it alone is worth, in plain rounds

    DraftPool pool;
    DraftTree tree;  // what is verified
    std::vector<int32_t> frontier;
    NodeOrder order;
    int depth_max = 0, n_draft_rows = 0;
    DraftTime draft_time;
    int cursor = -1;      // pool node the target has reached; -1 = it left the pool
    int n_committed = 0;  // tokens

    // draft rows that the next level can have
    int n_rows_left() const { return std::min(limits.n_draft_rows - n_draft_rows, limits.n_level_rows); }

    // The round is a plain one until something is drafted.
    void begin(Token root, const PlanLimits & most, int n_left_now, int n_pending_now);

    // rows of the drafter's first call
    int n_commit_rows() const { return n_pending + limits.n_block_rows; }

    bool is_drafting() const { return decision.mode != Decision::Mode::plain; }
    bool is_verifying() const { return !decision.nodes.empty(); }
    // the text's proposals without the drafter's
    bool is_text_only() const { return is_drafting() && decision.levels.empty() && frontier.empty(); }
};

// The size that the batches of an answer keep on a device.
struct BatchSize {
    int n_rows = 0;    // 0 = each round has its own
    int n_rounds = 0;  // until it is chosen again
};

// The planner's side of one conversation: how it wants to draft, what was learned about its text, and the round under
// way. Owned by the conversation; filled by Planner. The engine reads frontier, tree and decision.
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

    // that a node of pool() is accepted
    float chance(int32_t node) const { return round.pool.p()[node]; }

    // this node of tree() was proposed by the text itself and by nobody else
    bool is_from_text(int node) const { return node > 0 && round.pool.is_from_text(round.decision.nodes[node - 1]); }

    // The node of pool() that a node of tree() is. For the root of a plain round: the pool node of an earlier draft
    // that the target has reached, -1 if there is none.
    int pool_node(int node) const { return node > 0 ? round.decision.nodes[node - 1] : round.cursor; }

    // --- reports ---------------------------------------------------------------------------------------------------
    int cut() const { return exact.cut; }

    // --- the planner's ---------------------------------------------------------------------------------------------
    bool is_auto_drafting() const { return round.is_drafting() && is_auto(); }

    ExactRule exact;
    LearnedText text;
    PlanRound round;
    BatchSize size;

  private:
    Strategy strategy_{Strategy::Kind::automatic};
};

// --- all conversations ----------------------------------------------------------------------------------------------

struct PlannerOptions {
    Ledger::Options ledger;
    int k = 4;       // children per node, at most AcceptanceModel::n_ranks_max
    int width = 8;   // rows of a drafter level for each conversation
    int depth = 10;  // levels

    bool pads_rows = false;  // for devices that keep a graph while the number of rows stays

    std::vector<Token> end_tokens;  // end a generation, so nothing is drafted after them
};

struct RoundRequest {
    Token root = 0;     // the last committed token
    int n_left = 0;     // tokens that may still be generated, at least 1
    int n_pending = 0;  // rows the drafter must commit before it can draft; 0 = no drafter
    PlanLimits limits;
    const TextDraft * text = nullptr;  // what the text itself proposes; null = the text is not drafted from
    int n_replay = 0;                  // rows that the target has to run again first; if any, nothing is drafted
};

// What the drafter proposed in one conversation; children[i]: candidates of plan->frontier()[i], best first.
struct Proposal {
    SequencePlan * plan;
    std::vector<std::vector<Candidate>> children;
};

class Planner {
  public:
    explicit Planner(const PlannerOptions & options = {}) : options_(options), ledger_(options.ledger) {
        // In a model of 8B the host builds a graph (0.4 to 1.5 ms), CUDA runs it once without a capture and captures it
        // the next time (3 to 5 ms on an H200).
        if (!options.pads_rows) return;
        costs_.assume_change(3.0);
        // a first draft has to cover the way back
        options_.ledger.start = 0.75 * options_.ledger.cap;
        ledger_ = Ledger(options_.ledger);
    }

    // A generation starts. A new conversation keeps little of what was learned about the last text.
    void begin_request(SequencePlan & plan, RequestKind kind, bool is_same_conversation,
                       Exactness exactness = Exactness::automatic);

    // Numbers of rows at which every row of a batch has the bits that it would have alone.
    void set_exact_rows(const RowCounts & counts) { exact_rows_ = counts; }

    // A conversation ends: keeps part of what its text taught. begin_request() calls this before a new conversation.
    void end_text(SequencePlan & plan);

    // `n_roots`: conversations in the coming batch. `is_timed`: the round will end with end_round(), not with
    // end_untimed_round().
    void begin_round(int n_roots, bool is_timed = true);

    // Plain round or draft: plan.decision().mode. In the latter plan.frontier() holds the root.
    void decide(SequencePlan & plan, const RoundRequest & request);

    // The grammar forces these tokens behind a node of the pool.
    void add_forced(SequencePlan & plan, int32_t node, const ForcedRun & run);

    // Takes what one call of the drafter proposed for these conversations together; either all of them are at their
    // first level or none is. `ms`: how long the call took (at the first level this includes committing the pending
    // rows). Sets the next frontiers; a frontier is empty when another level does not pay.
    void grow(const std::vector<Proposal> & proposals, double ms);

    // The drafter committed n_rows rows without being asked to draft, so that few rows are left waiting for it. The
    // round is charged for the time.
    void catch_up(SequencePlan & plan, int n_rows, double ms);

    // Picks the trees of all conversations of the batch, the ones in a plain round included.
    void choose(const std::vector<SequencePlan *> & plans);

    // rows that the batch should have beyond those of the trees
    int n_padding() const { return n_padding_; }

    // `tokens` the conversation got from this round
    void learn(SequencePlan & plan, const Tokens & tokens);

    // The batch's verification and the whole round, drafting and host work included; without prefills. Milliseconds.
    void end_round(double verify_ms, double round_ms);

    // Learns from a batch, in a round or not: the n_alike-th in a row with as many rows, from 1.
    void learn_decode(int n_alike, int n_rows, double ms) {
        tells_of_change(n_rows) && (options_.pads_rows || costs_.is_tried(n_rows))
            ? costs_.learn_alike(n_slow(), n_alike, n_rows, ms)
            : costs_.learn_verify(n_rows, std::max(ms / 2.0, ms - extra_ms(n_alike, n_rows)));
    }

    // The same for a round whose times say nothing about prices, because it ran with an unusual number of threads or
    // the threads did not get their cores. Nothing is learned from it and nothing is charged.
    void end_untimed_round();

    // The number of threads that rounds have from now on: with another one the machine has another speed.
    void set_n_threads(int n_threads);

    // What the last round took, in plain rounds: exactly 1 for a plain one, stalls of the machine left out. 0 = the
    // time of a plain round was not known yet.
    double charged() const { return charged_; }

    const PlannerOptions & options() const { return options_; }
    CostTable & costs() { return costs_; }
    const CostTable & costs() const { return costs_; }
    AcceptanceModel & acceptance() { return acceptance_; }
    const AcceptanceModel & acceptance() const { return acceptance_; }

    const Ledger & ledger() const { return ledger_; }

  private:
    using Mode = Decision::Mode;
    using Reason = Decision::Reason;

    // A node that a batch may verify, with its expected gain in target-only steps.
    struct NodeCandidate {
        float gain;
        SequencePlan * plan;
        int32_t node;

        static bool is_better(const NodeCandidate & a, const NodeCandidate & b) { return a.gain > b.gain; }
    };

    double rounds(double ms) const { return ms / plain_ms_; }
    bool is_calibration_due() const;

    // what the ledger still covers in this round, in what all who wait lose
    double budget(double more_ms = 0.0) const {
        return n_roots_ * (ledger_.balance() - rounds(round_draft_ms_ + more_ms + costs_.host()));
    }
    // what each of those who wait loses by so much time, together
    double loss(double ms) const { return n_roots_ * rounds(ms); }
    float expected_gain(const SequencePlan & plan, double p) const { return (float)(p / plan.text.recent.speed()); }

    // decide
    void decide_auto(SequencePlan & plan, bool has_drafter);
    void start(SequencePlan & plan, Reason reason, int k);
    void open_cost_model(int n_rows, const SequencePlan * plan);
    bool ends(Token token) const {
        return std::count(options_.end_tokens.begin(), options_.end_tokens.end(), token) > 0;
    }
    void take_text(SequencePlan & plan, const TextDraft * draft);
    double text_gain(const SequencePlan & plan);

    // grow
    void add_level(SequencePlan & plan, const std::vector<std::vector<Candidate>> & children);
    void set_frontiers(const std::vector<SequencePlan *> & plans);
    void find_candidates(SequencePlan & plan, int n_max);
    void collect_gains();
    double foresee(int n, int n_wide);

    // choose
    void choose_auto();
    void take(SequencePlan & plan, const std::vector<int32_t> & nodes, int n);

    // what drafts would bring on average
    std::vector<double> foreseen_speeds(const SequencePlan & plan) const;
    bool is_exact_cheap(const SequencePlan & plan);

    // another size of batch
    // Number of batches that take longer after a change of size.
    int n_slow() const { return options_.pads_rows ? CostTable::n_slow : 1; }
    bool is_change_dear() const { return rounds(costs_.change_ms()) > change_least; }
    // Elsewhere first uses are too much like a change to learn its price from drafts.
    bool tells_of_change(int n_rows) const { return options_.pads_rows || n_rows == n_roots_; }
    // The change that the price of a draft does not include: on a CPU, where nearly every one has another size, a dear.
    double extra_ms(int n_alike, int n_rows) const {
        return n_alike == 1 && !tells_of_change(n_rows) && is_change_dear() ? costs_.change_ms() : 0.0;
    }
    bool is_slow() const { return n_alike_ <= n_slow() && is_change_dear() && tells_of_change(n_rows_); }
    double change_risk(const SequencePlan & plan) const;
    bool keeps_size(const SequencePlan & plan) const { return n_roots_ == 1 && plan.is_auto() && plan.size.n_rows > 0; }
    void choose_size(SequencePlan & plan);
    void pad(SequencePlan & plan);
    static constexpr double change_least = 0.1;  // target-only steps; a cheaper change is ignored

    // fixed strategies (fixed.cpp)
    void decide_fixed(SequencePlan & plan, int n_left, bool has_drafter);
    void next_frontier_fixed(SequencePlan & plan);
    void choose_fixed();

    // learn
    void settle(double verify_ms, double round_ms, double draft_ms);

    PlannerOptions options_;
    CostTable costs_;
    int n_threads_ = 0;
    AcceptanceModel acceptance_;
    Ledger ledger_;
    RowCounts exact_rows_;
    std::optional<bool> is_exact_cheap_;  // for `auto`; empty = not decided yet
    RecentSpeed speed_;                   // of recent batches
    int n_plain_ = 0;                     // plain rounds measured
    int n_since_plain_ = 0;               // rounds since the last one
    bool is_plain_wanted_ = false;

    // the round under way
    int n_roots_ = 1;
    int n_replay_ = 0;
    double plain_ms_ = 1.0;  // a plain round of this batch
    double round_draft_ms_ = 0.0;
    bool is_calibrating_ = false;
    bool is_exact_ = false;  // some conversation wants exact rows
    double n_times_ = 1.0;   // that accepted rows are run
    std::vector<SequencePlan *> drafting_, plans_;
    CostModel cost_model_;
    int n_rows_ = 1;  // with the padding
    int n_padding_ = 0;
    int n_rows_last_ = 0;        // of the round before; 0 = a prompt came between
    int n_alike_ = 0;            // rounds with as many rows as the last one had, up to it
    bool is_size_free_ = false;  // the first of them came after a prompt
    double verify_ms_expected_ = 0.0;
    double first_use_ = 0.0;  // target-only steps that sizes recently took too long when they first ran
    double charged_ = 0.0;

    // kept to save allocations
    std::vector<NodeCandidate> candidates_, front_, next_;
    std::vector<float> gains_, candidate_gains_, merged_;
    std::vector<int32_t> nodes_;
};

}  // namespace eaglecpp
