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

#include <map>
#include <vector>

#include "algo/acceptance_model.h"
#include "algo/cost_table.h"
#include "algo/ledger.h"
#include "algo/row_counts.h"
#include "algo/sequence_plan.h"

namespace eaglecpp {

struct PlannerOptions {
    Ledger::Options ledger;
    int k = 4;       // children per node
    int width = 8;   // rows of a drafter level
    int depth = 10;  // levels

    std::vector<Token> end_tokens;  // end a generation, so nothing is drafted after them
};

struct RoundRequest {
    Token root = 0;     // the last committed token
    int n_left = 0;     // tokens that may still be generated, at least 1
    int n_pending = 0;  // rows the drafter must commit before it can draft; 0 = no drafter
    PlanLimits limits;
    const TextDraft * text = nullptr;  // what the text itself proposes; null = the text is not drafted from
    int n_again = 0;                   // rows that the target has to run again first; if any, nothing is drafted
};

// What the drafter proposed in one conversation; children[i]: candidates of plan->frontier()[i], best first.
struct Proposal {
    SequencePlan * plan;
    std::vector<std::vector<Candidate>> children;
};

class Planner {
  public:
    // Error(value)
    explicit Planner(const PlannerOptions & options = {});

    // A generation starts. A new conversation keeps little of what was learned about the last text.
    void begin_request(SequencePlan & plan, RequestKind kind, bool is_same_conversation,
                       Exactness exactness = Exactness::off);

    // Numbers of rows at which every row of a batch has the bits that it would have alone.
    void set_exact_rows(const RowCounts & counts) { exact_rows_ = counts; }

    // A conversation ends: keeps part of what its text taught. begin_request() calls this before a new conversation.
    void end_text(SequencePlan & plan);

    // `n_roots`: conversations in the coming batch. `is_odd`: the round will end with end_odd_round().
    void begin_round(int n_roots, bool is_odd = false);

    // Plain round, shadow probe or draft: plan.decision().mode. In the last two plan.frontier() holds the root.
    void decide(SequencePlan & plan, const RoundRequest & request);

    // Takes what one call of the drafter proposed for these conversations together; either all of them are at their
    // first level or none is. `ms`: how long the call took (at the first level this includes committing the pending
    // rows). Sets the next frontiers; a frontier is empty when another level does not pay.
    void grow(const std::vector<Proposal> & proposals, double ms);
    // of one conversation
    void grow(SequencePlan & plan, const std::vector<std::vector<Candidate>> & children, double ms);

    // The drafter committed n_rows rows without being asked to draft, so that few rows are left waiting for it. The
    // round is charged for the time.
    void catch_up(SequencePlan & plan, int n_rows, double ms);

    // Picks the trees of all conversations of the batch, the ones in a plain round included.
    void choose(const std::vector<SequencePlan *> & plans);

    // `tokens` the conversation got from this round
    void learn(SequencePlan & plan, const Tokens & tokens);

    // The batch's verification and the whole round, drafting and host work included; without prefills. Milliseconds.
    void end_round(double verify_ms, double round_ms);

    // The same for a round whose times say nothing about prices, because it ran with an unusual number of threads or
    // the threads did not get their cores. Nothing is learned from it and nothing is charged.
    void end_odd_round();

    // The number of threads that rounds have from now on. Each number has prices of its own, so that a busy hour does
    // not spoil those of the quiet machine; a new number starts with the prices of the previous one. The first number
    // given counts as the usual one.
    void set_n_threads(int n_threads);

    // prices at the usual number of threads
    const CostTable & usual_costs() const;

    // What the last round took, in plain rounds: exactly 1 for a plain one, stalls of the machine left out. 0 = the
    // time of a plain round was not known yet.
    double charged() const { return charged_; }

    const PlannerOptions & options() const { return options_; }
    CostTable & costs() { return costs_; }
    const CostTable & costs() const { return costs_; }
    AcceptanceModel & acceptance() { return acceptance_; }
    const AcceptanceModel & acceptance() const { return acceptance_; }
    const TextAcceptance & text_acceptance() const { return text_acceptance_; }

    // What was learned about the drafter's and the text's proposals, as text to be kept; reading it returns false if
    // any of it does not fit.
    std::string acceptance_to_text(const std::string & key) const;
    bool acceptance_from_text(const std::string & text, const std::string & key);

    const Ledger & ledger() const { return ledger_; }

  private:
    using Mode = Decision::Mode;
    using Reason = Decision::Reason;

    double rounds(double ms) const { return ms / plain_ms_; }

    // price of time for this conversation, in its tokens per ms: all others wait, too
    double lambda(const SequencePlan & plan) const { return n_roots_ * plan.text.recent.speed() / plain_ms_; }

    // what the ledger still covers in this round; each of those who draft together may spend its part
    double ms_left(const SequencePlan & plan) const {
        return (ledger_.balance() * plain_ms_ - round_draft_ms_ - costs_.host()) / plan.round.n_peers;
    }

    // decide (planner.cpp)
    bool is_measuring_due() const;
    void decide_auto(SequencePlan & plan, bool has_drafter);
    void decide_drafter(SequencePlan & plan);
    void decide_parked(SequencePlan & plan, int k);
    void decide_fixed(SequencePlan & plan, int n_left, bool has_drafter);
    void start(SequencePlan & plan, Mode mode, Reason reason, int k);
    int n_buyers(const SequencePlan & plan) const;
    void set_prices(SequencePlan & plan);

    // drafts from the text (planner_text.cpp)
    void take_text(SequencePlan & plan, const TextDraft * draft);
    double text_value(SequencePlan & plan);
    void start_text(SequencePlan & plan, Reason reason, int k, int reach);
    void add_text(SequencePlan & plan, int k, int reach);

    // grow (planner_grow.cpp)
    void set_frontier(SequencePlan & plan);
    double level_ms(const SequencePlan & plan, int n_rows) const;
    void add_level(SequencePlan & plan, const std::vector<std::vector<Candidate>> & children);
    void add_children(SequencePlan & plan, int32_t parent, const std::vector<Candidate> & children);
    void next_frontier_auto(SequencePlan & plan);
    void next_frontier_fixed(SequencePlan & plan);
    void find_candidates(const SequencePlan & plan, double p_least);
    int best_width(const SequencePlan & plan, int n_candidates);
    double foresee(const SequencePlan & plan, int width);

    // choose (planner_choose.cpp)
    void choose_alone(SequencePlan & plan);
    void choose_shared(int n_rows);
    void find_shared(int n_rows, int n_most);
    void weigh_shared(SequencePlan & plan, int n, double ms_per_node);
    void take(SequencePlan & plan, const std::vector<int32_t> & nodes, int n);
    void weigh(SequencePlan & plan, double value, double speed);

    // exactness (planner_exact.cpp)
    bool is_exact_cheap(const SequencePlan & plan) const;
    double foreseen_rounds(int n_rows, int n_levels, int width) const;
    double foreseen_speed(const SequencePlan & plan, bool is_exact) const;
    void foresee_pool(const SequencePlan & plan, int depth, std::vector<float> & p) const;
    bool allows(const SequencePlan & plan, int n_rows) const;
    bool is_exact_enough(int n_rows) const;
    void cut_fixed();

    // learn (planner.cpp)
    void walk(SequencePlan & plan, const Tokens & tokens);
    void settle(double verify_ms, double round_ms, double draft_ms);

    PlannerOptions options_;
    CostTable costs_;  // at n_threads_
    int n_threads_ = 0, n_threads_usual_ = 0;
    std::map<int, CostTable> other_costs_;
    AcceptanceModel acceptance_;
    TextAcceptance text_acceptance_;
    Ledger ledger_;
    RowCounts exact_rows_;
    RecentSpeed speed_;        // of the batches of late
    int n_nodes_last_ = 0;     // draft nodes of the last batch
    int n_drafting_last_ = 0;  // conversations of it that drafted
    int n_plain_ = 0;          // plain rounds measured
    int n_since_plain_ = 0;    // rounds since the last one
    bool is_plain_wanted_ = false;

    // the round under way
    int n_roots_ = 1;
    int n_again_ = 0;
    double plain_ms_ = 1.0;  // a plain round of this batch
    double round_draft_ms_ = 0.0;
    bool is_measuring_ = false;
    std::vector<SequencePlan *> plans_;
    int n_rows_ = 1;
    double verify_ms_expected_ = 0.0;
    double charged_ = 0.0;

    // kept to save allocations
    std::vector<float> merged_, level_p_, front_;
    std::vector<int32_t> nodes_;
    std::vector<int> heads_, best_heads_;  // per plan: nodes taken
    std::vector<double> sums_;             // per plan: expected tokens
};

}  // namespace eaglecpp
