// SPDX-License-Identifier: MIT
// Decides in each round whether to draft, how deep and wide the draft is, and which of its nodes to verify. The aim is
// the most tokens per unit of time. Drafting never costs more than the ledger allows. An engine has one Planner, and
// each conversation has one SequencePlan. docs/research/planner.md explains the design and lists the measurements.
//
// The calls of one round, for the conversations that share a batch:
//
//     planner.begin_round(n_conversations);
//     for each plan: plan.round.begin(root); <set the fields of plan.round that the caller sets>; planner.decide(plan);
//     while any plan has a frontier: <set plan.round.children of these plans>; planner.grow(<these plans>, ms);
//     planner.choose(plans);
//     <verify the plan.tree()s in one batch, match>
//     for each plan: planner.learn(plan, tokens emitted);
//     planner.end_round(verify_ms, round_ms);
//
// The planner uses no clock and no randomness: the same calls give the same plans. Vectors grow to their largest size
// and keep it. After a round that failed before its end, begin the next round as usual.
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

// Exactness of the batches. In an exact batch, every row has the same bits as in a batch of one row. on: run only exact
// batches. automatic: run only exact batches if this costs little speed.
enum class Exactness { off, automatic, on };

// Upper limits of a round.
struct PlanLimits {
    int n_nodes = 64;         // maximum draft nodes per verification
    int n_leaves = 1;         // maximum leaves per verification; 1 = chains only
    int n_leaves_exact = 1;   // maximum leaves per verification if batches must be exact
    int n_draft_rows = 128;   // drafter rows per round, in addition to the committed rows
    int n_step_rows = 128;    // maximum rows that the drafter runs at once
    int depth_max = INT_MAX;  // maximum draft steps of the drafter
    int n_block_rows = 0;     // extra rows that a block drafter computes in a commit and then drops
    bool replays = false;     // after a rejected draft the target must run the accepted rows again
};

// Recent speed: a decaying sum of tokens divided by a decaying sum of target-only rounds. It is never below the
// target-only speed.
class RecentSpeed {
  public:
    void add(double n_tokens, double n_rounds) {
        n_tokens_ = n_tokens_ * decay + n_tokens;
        n_rounds_ = n_rounds_ * decay + n_rounds;
    }

    double speed() const { return std::max(1.0, n_tokens_ / n_rounds_); }

  private:
    static constexpr double decay = 0.985;  // the weight of a round halves in 46 rounds
    // A new conversation is assumed to have run 16 rounds at 1.6 times target-only speed. At target-only speed, a token
    // would be worth a whole step. The first drafts would then be so large that two rejected drafts use up the balance.
    double n_rounds_ = 16.0, n_tokens_ = 1.6 * n_rounds_;
};

// Exactness of one request's batches. With Exactness::automatic, the planner decides in the request's first round.
struct ExactRule {
    bool is_exact = false, is_settled = true;
    // Maximum number of nodes of a fixed strategy, because larger batches are not exact; -1 = no maximum.
    int cut = -1;
};

// Statistics of one conversation's text.
struct LearnedText {
    RequestKind kind = RequestKind::greedy;
    TextState drafter;
    ChainTerms chain;
    MeanChances chances;
    RecentSpeed recent;
    double best_speed = 0.0;  // predicted speed, averaged over recent drafting rounds; 0 = unknown
};

// One conversation's part of a batch: what the caller asks for, the planner's state, and the rows of the target.
struct BatchPart {
    // Set by the caller between begin() and Planner::decide(). The planner may lower the limits and shorten the draft.
    PlanLimits limits;
    int n_left = 0;            // tokens that may still be generated, 1 or more
    int n_pending = 0;         // rows that the drafter must commit before it drafts; 0 = there is no drafter
    int n_replay = 0;          // rows that the target must run again first; drafting requires 0
    bool drafts_text = false;  // draft from text_draft
    TextDraft text_draft;      // tokens copied from the text, proposed to follow the root

    // Set by the caller before Planner::grow(): for each frontier node the candidates for its children, best first.
    std::vector<std::vector<Candidate>> children;

    Decision decision;
    std::vector<float> text_a;  // per token of text_draft: probability of acceptance, given the tokens before it

    DraftPool pool;
    DraftTree tree;         // the nodes to verify
    int first_row = 0;      // the part's first row in the target's batch
    int n_prompt_rows = 0;  // number of prompt rows; 0 = the rows are the tree's nodes
    std::vector<int32_t> frontier;
    NodeOrder order;
    int depth_max = 0, n_draft_rows = 0;
    double draft_ms_expected = 0.0;
    int cursor = -1;      // pool node that the target has reached; -1 = the target left the pool
    int n_committed = 0;  // tokens emitted in this round

    // Number of rows that the drafter may still run in the next draft step.
    int n_rows_left() const { return std::min(limits.n_draft_rows - n_draft_rows, limits.n_step_rows); }

    // Resets the state to a target-only round. `root` is the last committed token.
    void begin(Token root);

    bool has_drafter() const { return n_pending > 0; }
    // Number of rows of the drafter's first call in this round.
    int n_commit_rows() const { return n_pending + limits.n_block_rows; }

    bool is_drafting() const { return decision.mode != Decision::Mode::target_only; }
    bool is_verifying() const { return !decision.nodes.empty(); }
    // Returns true if the draft of this round is only copied from the text.
    bool is_text_only() const { return is_drafting() && decision.steps.empty() && frontier.empty(); }
};

// Batch size that a generation on a device keeps for several rounds.
struct BatchSize {
    int n_rows = 0;    // 0 = each round chooses its own size
    int n_rounds = 0;  // rounds until the size is chosen again
};

// The planner's state for one conversation: strategy, statistics of the text, and the current round. The conversation
// owns this object. The planner fills it, except the fields of the round that the caller sets. The engine reads
// frontier, tree and decision.
class SequencePlan {
  public:
    // Sets the strategy from the next round on.
    void use(const Strategy & strategy) { strategy_ = strategy; }
    const Strategy & strategy() const { return strategy_; }
    bool is_auto() const { return strategy_.kind == Strategy::Kind::automatic; }

    // --- the current round ------------------------------------------------------------------------------------------
    // Pool nodes whose children the drafter should propose next. In the first step this is only the root (0). An empty
    // frontier means that drafting is finished.
    const std::vector<int32_t> & frontier() const { return round.frontier; }

    // The pool: all nodes proposed in this round.
    const DraftTree & pool() const { return round.pool.tree(); }

    // The tree to verify. In a target-only round it has only the root.
    const DraftTree & tree() const { return round.tree; }

    const Decision & decision() const { return round.decision; }

    // Probability that the target accepts a node of pool().
    float chance(int32_t node) const { return round.pool.p()[node]; }

    // Returns true if this node of tree() was copied from the text and was not proposed by the drafter.
    bool is_from_text(int node) const { return node > 0 && round.pool.is_from_text(round.decision.nodes[node - 1]); }

    // Returns the node of pool() that corresponds to a node of tree(). For the root of a target-only round, returns the
    // node of an earlier round's pool that the target has reached. Returns -1 if the target left that pool.
    int pool_node(int node) const { return node > 0 ? round.decision.nodes[node - 1] : round.cursor; }

    // --- for the planner -------------------------------------------------------------------------------------------
    bool is_auto_drafting() const { return round.is_drafting() && is_auto(); }

    ExactRule exact;
    LearnedText text;
    BatchPart round;
    BatchSize size;

  private:
    Strategy strategy_{Strategy::Kind::automatic};
};

// --- all conversations ----------------------------------------------------------------------------------------------

struct PlannerOptions {
    Ledger::Options ledger;
    int k = 4;       // maximum children per node, up to AcceptanceModel::n_ranks_max
    int width = 8;   // maximum rows of a draft step per conversation
    int depth = 10;  // maximum draft steps

    bool pads_rows = false;  // pads batches to one size, for devices that reuse a graph per number of rows

    std::vector<Token> end_tokens;  // tokens that end a generation, so no token is drafted after them
};

class Planner {
  public:
    explicit Planner(const PlannerOptions & options = {}) : options_(options), ledger_(options.ledger) {
        // Assumed time of a change of batch size on a device, for a model of 8B parameters. The host builds a graph in
        // 0.4 to 1.5 ms. CUDA runs the graph once without capturing it and captures it in the next round: 3 to 5 ms on
        // an H200.
        if (!options.pads_rows) return;
        costs_.assume_change(3.0);
        // The first balance must cover the first draft and the change of batch size back to one row.
        options_.ledger.start = 0.75 * options_.ledger.cap;
        ledger_ = Ledger(options_.ledger);
    }

    // Starts a generation. If the conversation is new, keeps only a small part of the last text's statistics.
    void begin_request(SequencePlan & plan, RequestKind kind, bool is_same_conversation,
                       Exactness exactness = Exactness::automatic);

    // Sets the exact batch sizes: numbers of rows at which every row of a batch has the same bits as in a batch of one
    // row.
    void set_exact_rows(const RowCounts & counts) { exact_rows_ = counts; }

    // Ends a conversation's text and keeps part of its statistics. begin_request() calls this function before it starts
    // a new conversation.
    void end_text(SequencePlan & plan);

    // Starts a round of n_roots conversations. is_timed: the round will end with end_round() instead of
    // end_untimed_round().
    void begin_round(int n_roots, bool is_timed = true);

    // Chooses between a target-only round and a draft, and stores the choice in plan.decision().mode. For a draft,
    // plan.frontier() then contains the root.
    void decide(SequencePlan & plan);

    // Adds the tokens that a grammar forces after `node` to the pool.
    void add_forced(SequencePlan & plan, int32_t node, const ForcedRun & run);

    // Adds the proposals of one drafter call, BatchPart::children, to the pools of these conversations. All of these
    // conversations must be at their first draft step, or all must be past it. `ms` is the time of the call; at the
    // first step it includes committing the pending rows. Sets the next frontiers. If another draft step would cost a
    // conversation more than it gains, that conversation's frontier is empty.
    void grow(const std::vector<SequencePlan *> & plans, double ms);

    // Reports that the drafter committed n_rows rows without drafting, to keep the number of pending rows low. The call
    // took `ms` milliseconds, which are charged to the round.
    void catch_up(SequencePlan & plan, int n_rows, double ms);

    // Chooses the trees to verify for all conversations of the batch, including conversations in a target-only round.
    void choose(const std::vector<SequencePlan *> & plans);

    // Returns the number of rows to pad the batch with, in addition to the nodes of the trees.
    int n_padding() const { return n_padding_; }

    // Learns from the tokens that the target emitted for this conversation in this round.
    void learn(SequencePlan & plan, const Tokens & tokens);

    // Ends a round. Both times are in milliseconds. verify_ms is the time of the batch's verification. round_ms is the
    // time of the whole round: it includes drafting and work on the host, but no prompts.
    void end_round(double verify_ms, double round_ms);

    // Learns from a batch of n_rows rows, inside or outside of a round. The batch is number n_alike (from 1) of the
    // consecutive batches of this size.
    void learn_decode(int n_alike, int n_rows, double ms) {
        tells_of_change(n_rows) && (options_.pads_rows || costs_.is_tried(n_rows))
            ? costs_.learn_alike(n_slow(), n_alike, n_rows, ms)
            : costs_.learn_verify(n_rows, std::max(ms / 2.0, ms - extra_ms(n_alike, n_rows)));
    }

    // Ends a round whose times are not representative, because the round used an unusual number of threads or the
    // system did not schedule its threads. Learns nothing from the round and charges nothing to the ledger.
    void end_untimed_round();

    // Cost of the last round in target-only rounds, without stalls of the machine. The cost is exactly 1 for a
    // target-only round, and 0 while the time of a target-only round is unknown.
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

    double rounds(double ms) const { return ms / target_only_ms_; }
    bool is_calibration_due() const;

    // Part of the balance that is left in this round after `more_ms` more milliseconds. The unit is target-only steps,
    // summed over the conversations that wait for the batch.
    double budget(double more_ms = 0.0) const {
        return n_roots_ * (ledger_.balance() - rounds(round_draft_ms_ + more_ms + costs_.host()));
    }
    // Cost in target-only steps, summed over all waiting conversations, if the batch takes `ms` milliseconds longer.
    double loss(double ms) const { return n_roots_ * rounds(ms); }
    float expected_gain(const SequencePlan & plan, double p) const { return (float)(p / plan.text.recent.speed()); }

    // decide
    void decide_auto(SequencePlan & plan);
    void start(SequencePlan & plan, Reason reason, int k);
    void open_cost_model(int n_rows, const SequencePlan * plan);
    bool ends(Token token) const {
        return std::count(options_.end_tokens.begin(), options_.end_tokens.end(), token) > 0;
    }
    void trim_text(SequencePlan & plan);
    double text_gain(const SequencePlan & plan);

    // grow
    void add_step(SequencePlan & plan);
    void set_frontiers(const std::vector<SequencePlan *> & plans);
    void find_candidates(SequencePlan & plan, int n_max);
    void collect_gains();
    double foresee(int n);

    // choose
    void choose_auto();
    void take(SequencePlan & plan, const std::vector<int32_t> & nodes, int n);

    // Returns the best expected tokens per target-only step of an average draft; the index is the number of nodes.
    std::vector<double> foreseen_speeds(const SequencePlan & plan) const;
    bool is_exact_cheap(const SequencePlan & plan);

    // Number of consecutive batches that take longer after the batch size changed.
    int n_slow() const { return options_.pads_rows ? CostTable::n_slow : 1; }
    bool is_change_dear() const { return rounds(costs_.change_ms()) > change_least; }
    // Returns true if the time of a batch of this size shows the cost of a change of size. On a CPU only target-only
    // batches do, because the first use of a draft's size is hard to tell from a change.
    bool tells_of_change(int n_rows) const { return options_.pads_rows || n_rows == n_roots_; }
    // Time of a change of batch size that is not part of a draft's cost. On a CPU, nearly every draft has a different
    // size, so a draft does not pay for an expensive change.
    double extra_ms(int n_alike, int n_rows) const {
        return n_alike == 1 && !tells_of_change(n_rows) && is_change_dear() ? costs_.change_ms() : 0.0;
    }
    bool is_slow() const { return n_alike_ <= n_slow() && is_change_dear() && tells_of_change(n_rows_); }
    double change_risk(const SequencePlan & plan) const;
    bool keeps_size(const SequencePlan & plan) const { return n_roots_ == 1 && plan.is_auto() && plan.size.n_rows > 0; }
    void choose_size(SequencePlan & plan);
    void pad(SequencePlan & plan);
    static constexpr double change_least = 0.1;  // in target-only steps; smaller costs are ignored

    // fixed strategies (fixed.cpp)
    void decide_fixed(SequencePlan & plan);
    void next_frontier_fixed(SequencePlan & plan);
    void choose_fixed();

    // learn
    void settle(double verify_ms, double round_ms, double draft_ms);

    PlannerOptions options_;
    CostTable costs_;
    AcceptanceModel acceptance_;
    Ledger ledger_;
    RowCounts exact_rows_;
    std::optional<bool> is_exact_cheap_;  // decision for Exactness::automatic; empty = not decided yet
    int n_target_only_ = 0;               // number of measured target-only rounds, up to n_target_only_first
    int n_since_target_only_ = 0;         // rounds since the last target-only round, up to n_refresh

    // State of the current round.
    int n_roots_ = 1;
    int n_replay_ = 0;
    double target_only_ms_ = 1.0;  // time of a target-only round with this batch's conversations
    double round_draft_ms_ = 0.0;
    bool is_calibrating_ = false;
    bool is_exact_ = false;  // at least one conversation requires exact batches
    double n_times_ = 1.0;   // number of times that accepted rows are run: 1 or 2
    std::vector<SequencePlan *> drafting_, plans_;
    CostModel cost_model_;
    int n_rows_ = 1;  // number of rows of the batch, including the padding
    int n_padding_ = 0;
    int n_rows_last_ = 0;        // rows of the previous round's batch; 0 = a prompt ran after that round
    int n_alike_ = 0;            // number of consecutive rounds with n_rows_ rows
    int n_unverified_ = 0;       // drafts that were not verified, minus twice the drafts that were
    bool is_size_free_ = false;  // the first of the n_alike_ rounds followed a prompt
    double verify_ms_expected_ = 0.0;
    double first_use_ = 0.0;  // average excess time of recent first uses of batch sizes, in target-only steps
    double charged_ = 0.0;

    // Members instead of local variables, to save allocations.
    std::vector<NodeCandidate> candidates_;
    std::vector<float> gains_, candidate_gains_, merged_;
    std::vector<int32_t> nodes_;
};

}  // namespace eaglecpp
