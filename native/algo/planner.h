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
#include <map>
#include <string>
#include <vector>

#include "algo/acceptance.h"
#include "algo/costs.h"
#include "algo/tree.h"
#include "base/error.h"

namespace eaglecpp {

// What was decided for one round of one conversation, as a value that explains itself and prints as a line of a log.
//
//     plain reason=parked speed=0.93
//     probe k=4 levels=0/1 reason=probe tokens=1.42 cost=1.21
//     draft k=4 levels=0/1,2/5,6 nodes=1,2,5 reason=pays tokens=2.91 cost=1.31
//     draft k=0 levels= text=9 nodes=1,2,3,4,5 reason=pays tokens=5.12 cost=1.44
//
// `levels` are the nodes whose children the drafter proposed, level by level, `nodes` the drafts that were verified;
// both are indices into the pool of proposed nodes, whose root is 0. `text` is the number of nodes that the text itself
// proposed; they come first.
struct Decision {
    enum class Mode { plain, probe, draft };
    enum class Reason {
        off,        // the strategy says so, or there is no drafter
        room,       // too few tokens are left to generate
        measuring,  // a plain round, to know what one costs
        parked,     // drafting does not pay here; the next probe is not due
        saving,     // the ledger cannot cover a drafting round
        probe,      // a shadow probe: drafted, not verified
        vain,       // drafted, but no node is worth verifying
        pays,       // drafted and verified
        pinned,     // a fixed strategy
        inexact,    // only exact batches may be planned, and none of several rows gives the bits of single rows
        unmatched,  // the text proposes nothing that pays, and there is no drafter
        again,      // accepted rows that were lost along with rejected ones are run again
    };

    Mode mode = Mode::plain;
    Reason reason = Reason::off;
    int k = 0;  // candidates asked for per node
    std::vector<std::vector<int32_t>> levels;
    std::vector<int32_t> nodes;
    int depth = 0;            // of the verified tree
    int n_leaves = 0;         // of the verified tree
    int n_text = 0;           // pool nodes that the text itself proposed: 1 .. n_text
    double n_tokens = 1.0;    // expected, the bonus token included
    double cost = 1.0;        // expected, in plain rounds; 0 = not known
    double best_speed = 0.0;  // in a plain round: predicted speed of the best recent draft, plain = 1; 0 = unknown

    // one line, without a line break
    std::string to_line() const;

    // "tree 8 nodes, depth 3: expected 2.9 tokens in the time of 1.31 plain steps",
    // "off: the best draft would reach 0.93 of plain speed"
    std::string explain() const;

    bool is_chain() const { return n_leaves <= 1; }
};

const char * reason_name(Decision::Reason reason);

// The decisions of one generation, added up.
class PlanSummary {
  public:
    // `n_tokens` were committed in the time of `n_steps` plain rounds; 0 steps = a plain round's time is not known yet
    void add(const Decision & decision, int n_tokens, double n_steps);

    int n_rounds() const { return n_rounds_; }
    int n_drafted() const { return n_chains_ + n_trees_; }
    int n_probes() const { return n_probes_; }

    // means over the rounds with a verified draft; 0 without one
    double n_nodes() const { return mean(n_nodes_); }
    double depth() const { return mean(depth_); }
    double n_tokens_expected() const { return mean(n_tokens_); }
    double cost_expected() const { return mean(cost_); }

    // tokens per plain round's time; 0 = not known
    double speedup() const { return n_steps_ > 0.0 ? n_committed_ / n_steps_ : 0.0; }

    // The typical round and how often drafting was chosen, on one line:
    // "tree 8 nodes, depth 3: expected 2.9 tokens in the time of 1.31 plain steps; drafted in 210 of 230 rounds"
    std::string explain() const;

  private:
    double mean(double sum) const { return n_drafted() > 0 ? sum / n_drafted() : 0.0; }

    int n_rounds_ = 0, n_chains_ = 0, n_trees_ = 0, n_probes_ = 0;
    double n_nodes_ = 0.0, depth_ = 0.0, n_tokens_ = 0.0, cost_ = 0.0;  // sums over drafted rounds
    double n_committed_ = 0.0, n_steps_ = 0.0;  // sums over the rounds whose time in plain rounds is known
    Decision last_plain_;
};

// --- strategy -------------------------------------------------------------------------------------------------------

// How a round uses the drafter.
struct Strategy {
    enum class Kind { off, chain, tree, automatic };  // automatic: the planner decides each round

    Kind kind = Kind::off;
    int k = 1;      // children per frontier node; 1 for a chain
    int depth = 0;  // draft levels
    int nodes = 0;  // draft nodes kept for verification

    static Strategy make(const std::string & kind, int k, int depth, int nodes) {
        if (kind == "off") return {};
        if (kind == "auto") return {Kind::automatic, 1, 0, 0};
        if (kind != "chain" && kind != "tree") {
            fail(ErrorKind::value, "strategy: '%s' is not one of auto, off, chain, tree", kind.c_str());
        }
        if (k < 1 || depth < 1 || nodes < 1) {
            fail(ErrorKind::value, "strategy %s: k=%d depth=%d nodes=%d, expected at least 1 each", kind.c_str(), k,
                 depth, nodes);
        }
        if (kind == "chain") return {Kind::chain, 1, depth, depth};
        return {Kind::tree, k, depth, nodes};
    }

    bool is_fixed() const { return kind == Kind::chain || kind == Kind::tree; }

    const char * kind_name() const {
        switch (kind) {
            case Kind::off:
                return "off";
            case Kind::chain:
                return "chain";
            case Kind::tree:
                return "tree";
            case Kind::automatic:
                return "auto";
        }
        return "";
    }
};

// --- ledger ---------------------------------------------------------------------------------------------------------

// The account that keeps the promise "never slower". Its unit is the plain step: a round that commits n tokens earns
// (1 + allowance) * n and pays what it took; plain rounds pay exactly 1, so their noise neither fills nor drains it.
// Drafting may start only while the balance covers the round's worst case, so the balance stays at or above zero up to
// the error of the predicted time, and over any window of m tokens
//
//     time <= (1 + allowance) * m + cap        hence  speed / plain >= 1 / (1 + allowance + cap / m)
//
// whatever the acceptance model believes: 0.97 for every m >= 503 with the defaults. The cap is what keeps past gains
// from paying for a long loss later; it is the difference from a conservative bandit's running total.
class Ledger {
  public:
    struct Options {
        double allowance = 0.015;  // share of plain speed that may be spent on trying
        double cap = 8.0;          // plain steps
        double start = 4.0;        // plain steps: something to learn with
        double first_uses = 4.5;   // plain steps, granted once: for building graphs at the first use of a size
    };

    Ledger() : Ledger(Options{}) {}
    explicit Ledger(const Options & options) : options_(options), balance_(options.start) {}

    double balance() const { return balance_; }

    // what is left of Options::first_uses
    double first_uses() const { return options_.first_uses; }

    // may a round be started that might cost `extra` plain steps more than a plain round and gain nothing?
    bool covers(double extra) const { return extra <= balance_; }

    // A round that committed `n_tokens` tokens per sequence in the time of `cost` plain rounds. `first_use` is the part
    // of `cost` that exceeds what such a round should take and may be due to the first use of a size.
    void settle(double n_tokens, double cost, double first_use = 0.0) {
        const double free = std::min(first_use, options_.first_uses);
        options_.first_uses -= free;
        balance_ = std::min(options_.cap, balance_ + (1.0 + options_.allowance) * n_tokens - cost + free);
    }

  private:
    Options options_;
    double balance_;
};

// --- the switch -----------------------------------------------------------------------------------------------------

// Decides whether drafting is on for one conversation, from the mean predicted value of a drafted round, which is far
// less noisy than counts of accepted tokens. While drafting is off, rounds are plain, with a shadow probe now and then:
// a draft that is not verified, made only to see whether it would have been right.
class DraftSwitch {
  public:
    bool is_on() const { return is_on_; }

    // mean predicted gain of drafting a round, in tokens
    double advantage() const { return advantage_; }

    // predicted speed of a drafted round, mean over recent ones
    double best_speed() const { return best_speed_; }

    // A request begins with drafting on.
    void begin_request();

    // A drafted round or a probe: its predicted value in tokens, and the speed it would have.
    void weigh(double value, double speed);

    // While drafting is off: counts one more plain round. Is a probe that costs `cost` plain rounds due?
    bool is_probe_due(double cost);
    void begin_probe();

    // A probe turned out right against the odds: the text has changed, so more probes follow in quick succession.
    void surprise();

  private:
    bool is_on_ = true;
    double advantage_ = 0.1, variance_ = 0.03;
    double best_speed_ = 0.0;
    int n_off_ = 0;  // rounds since drafting went off
    int n_since_probe_ = 0;
    int n_burst_ = 0;  // probes left to take in quick succession
};

// --- one conversation -----------------------------------------------------------------------------------------------

// The planner's side of one conversation: how it wants to draft, what was learned about its text, whether drafting is
// on, and the round under way. Owned by the conversation; filled by Planner. The engine reads frontier, tree and
// decision.

// Whether only batches are planned whose rows have the bits of single rows. automatic: where that costs little
enum class Exactness { off, automatic, on };

// What a round may use at most.
struct PlanLimits {
    int n_nodes = 64;         // draft nodes of one verification
    int n_leaves = 1;         // leaves of one verification; 1 = chains only
    int n_leaves_exact = 1;   // the same where rows must hold the bits of single rows
    int n_draft_rows = 128;   // rows the drafter can hold beyond its committed ones
    int n_level_rows = 128;   // rows the drafter can run at once
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
    std::vector<float> text_a;  // per node of it: chance given its parent
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

    // draft rows that the next level can have
    int n_rows_left() const { return std::min(limits.n_draft_rows - n_draft_rows, limits.n_level_rows); }

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
    bool takes_trees = false;   // on a device
    int n_rounds_to_trees = 0;  // until that is asked again

  private:
    Strategy strategy_{Strategy::Kind::automatic};
};

// --- all conversations ----------------------------------------------------------------------------------------------

struct PlannerOptions {
    Ledger::Options ledger;
    int k = 4;       // children per node
    int width = 8;   // rows of a drafter level
    int depth = 10;  // levels

    bool pads_rows = false;  // for devices that keep a graph while the number of rows stays: few sizes of batches

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

    // rows that the batch should have beyond those of the trees
    int n_padding() const { return n_padding_; }

    // `tokens` the conversation got from this round
    void learn(SequencePlan & plan, const Tokens & tokens);

    // The batch's verification and the whole round, drafting and host work included; without prefills. Milliseconds.
    void end_round(double verify_ms, double round_ms);

    // A batch beside all rounds, the n_alike-th in a row with as many rows, from 1.
    void learn_decode(int n_alike, int n_rows, double ms) {
        options_.pads_rows ? costs_.learn_alike(n_alike, n_rows, ms) : costs_.learn_verify(n_rows, ms);
    }

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

    // decide
    bool is_measuring_due() const;
    void decide_auto(SequencePlan & plan, bool has_drafter);
    void decide_drafter(SequencePlan & plan);
    void decide_parked(SequencePlan & plan, int k);
    void decide_fixed(SequencePlan & plan, int n_left, bool has_drafter);
    void start(SequencePlan & plan, Mode mode, Reason reason, int k);
    int n_buyers(const SequencePlan & plan) const;
    void set_prices(SequencePlan & plan);

    // drafts from the text
    void take_text(SequencePlan & plan, const TextDraft * draft);
    void keep_reachable(const SequencePlan & plan, TextDraft & draft) const;
    double text_value(SequencePlan & plan);
    void start_text(SequencePlan & plan, Reason reason, int k);
    void add_text(SequencePlan & plan);

    // grow
    void set_frontier(SequencePlan & plan);
    double level_ms(const SequencePlan & plan, int n_rows) const;
    void add_level(SequencePlan & plan, const std::vector<std::vector<Candidate>> & children);
    void add_children(SequencePlan & plan, int32_t parent, const std::vector<Candidate> & children);
    void next_frontier_auto(SequencePlan & plan);
    void next_frontier_fixed(SequencePlan & plan);
    void find_candidates(const SequencePlan & plan);
    int best_width(const SequencePlan & plan, int n_candidates);
    double foresee(const SequencePlan & plan, int width);

    // choose
    void choose_alone(SequencePlan & plan);
    bool takes_trees(SequencePlan & plan);
    bool pads(const SequencePlan & plan) const;
    void pad(const SequencePlan & plan);
    void learn_size(const SequencePlan & plan);
    double chain_gain(const SequencePlan & plan, int n) const;
    void choose_shared(int n_rows);
    void find_shared(int n_rows, int n_most);
    void weigh_shared(SequencePlan & plan, int n, double ms_per_node);
    void take(SequencePlan & plan, const std::vector<int32_t> & nodes, int n);
    void weigh(SequencePlan & plan, double value, double speed);

    // exact batches
    bool is_exact_cheap(const SequencePlan & plan) const;
    double foreseen_rounds(int n_rows, int n_levels, int width) const;
    double foreseen_speed(const SequencePlan & plan, bool is_exact, bool is_chain = false) const;
    void foresee_pool(const SequencePlan & plan, int depth, bool is_tree, std::vector<float> & p) const;
    bool allows(const SequencePlan & plan, int n_rows) const;
    bool is_exact_enough(int n_rows) const;
    void cut_fixed();

    // learn
    bool is_new_size() const { return options_.pads_rows && n_alike_ <= BatchSizes::n_slow; }
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
    int n_drafting_last_ = 0;  // conversations of the last batch that drafted
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
    int n_rows_ = 1;  // with the padding
    int n_padding_ = 0;
    BatchSizes sizes_;
    int n_rows_last_ = 0;        // of the round before; 0 = a prompt came between
    int n_alike_ = 0;            // rounds with as many rows as the last one had, up to it
    bool is_size_free_ = false;  // the first of them came after a prompt
    double verify_ms_expected_ = 0.0;
    double charged_ = 0.0;

    // kept to save allocations
    std::vector<float> merged_, level_p_, front_;
    std::vector<int32_t> nodes_;
    std::vector<double> worth_;
    std::vector<int> heads_, best_heads_;  // per plan: nodes taken
    std::vector<double> sums_;             // per plan: expected tokens
};

}  // namespace eaglecpp
