// SPDX-License-Identifier: MIT
// Drafting strategies, and the planner's decision for each round.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace eaglecpp {

// Names of the Decision::Reason values, in the same order.
constexpr int n_reasons = 10;
const std::array<const char *, n_reasons> & decision_reasons();

// The planner's decision for one round of one conversation, logged as one line:
//
//     plain reason=over_budget speed=0.93
//     probe k=4 levels=0/1 reason=all_rejected tokens=1 cost=1
//     draft k=4 levels=0/1,2/5,6 nodes=1,2,5 reason=pays tokens=2.91 cost=1.31
//     draft k=0 levels= text=9 nodes=1,2,3,4,5 reason=pays tokens=5.12 cost=1.44
//
// `levels` (member `steps`) has one list per draft step: the nodes whose children the drafter proposed. `nodes` are the
// verified drafts. Both contain indices into the pool of proposed nodes, whose root is 0. `text` is the number of nodes
// copied from the text. These nodes come first in the pool.
struct Decision {
    enum class Mode { target_only, probe, draft };  // probe: a round that drafts but does not verify the draft
    enum class Reason {
        off,           // the strategy is off, or there is no drafter
        room,          // too few tokens may still be generated
        calibrating,   // the time of a target-only step is being measured
        over_budget,   // the ledger's balance is below the worst case of a drafting round
        all_rejected,  // drafted, but verifying any node costs more than it gains
        pays,          // the draft was verified
        fixed,         // the strategy is fixed (a chain or a tree)
        inexact,       // only exact batches are allowed, and no batch of several rows is known to be exact
        no_match,      // no drafter, and verifying a copy from the text costs more than it gains
        replay,        // the target runs accepted rows again that were lost together with rejected rows
    };

    Mode mode = Mode::target_only;
    Reason reason = Reason::off;
    int k = 0;  // number of candidates requested per node
    std::vector<std::vector<int32_t>> steps;
    std::vector<int32_t> nodes;
    int depth = 0;            // depth of the verified tree
    int n_leaves = 0;         // number of leaves of the verified tree
    int n_text = 0;           // number of pool nodes from the text or a grammar: nodes 1 to n_text
    int n_forced = 0;         // number of nodes forced by a grammar, which come before the nodes copied from the text
    double n_tokens = 1.0;    // expected tokens of this round, including the bonus token
    double cost = 1.0;        // expected cost of this round, in target-only rounds; 0 = unknown
    double best_speed = 0.0;  // in target-only rounds: speed of recent drafts relative to target-only decoding

    // Returns the decision as one line, without a line break.
    std::string to_line() const;

    bool is_chain() const { return n_leaves <= 1; }
};

// Statistics over the decisions of one generation.
class PlanSummary {
  public:
    // Adds a round that committed `n_tokens` tokens in the time of `n_steps` target-only rounds; 0 = the time is
    // unknown.
    void add(const Decision & decision, int n_tokens, double n_steps);

    int n_rounds() const { return n_rounds_; }
    int n_drafted() const { return n_chains_ + n_trees_; }
    int n_probes() const { return n_probes_; }

    // Mean number of nodes per round with a verified draft; 0 if no round had such a draft.
    double n_nodes() const { return mean(n_nodes_); }
    double depth() const { return mean(depth_); }
    double n_tokens_expected() const { return mean(n_tokens_); }
    double cost_expected() const { return mean(cost_); }

    // Speed relative to target-only decoding: tokens per time of a target-only round; 0 = unknown. The result never
    // exceeds the tokens per round: a round that seems cheaper than a target-only round is only a measurement error.
    double speedup() const { return n_steps_ > 0.0 ? n_committed_ / std::max(n_steps_, n_counted_) : 0.0; }

    // Describes a typical round and the number of drafting rounds in one line: "tree 8 nodes, depth 3: expected 2.9
    // tokens in the time of 1.31 target-only steps; drafted in 210 of 230 rounds"
    std::string explain() const;
    // Returns the name of Decision::Reason in the last round without a draft, or "" if most rounds drafted.
    std::string reason() const;

  private:
    bool drafts() const { return n_rounds_ > 0 && 2 * n_drafted() >= n_rounds_; }
    double mean(double sum) const { return n_drafted() > 0 ? sum / n_drafted() : 0.0; }

    int n_rounds_ = 0, n_chains_ = 0, n_trees_ = 0, n_probes_ = 0;
    double n_nodes_ = 0.0, depth_ = 0.0, n_tokens_ = 0.0, cost_ = 0.0;  // sums over rounds with a verified draft
    double n_committed_ = 0.0, n_steps_ = 0.0, n_counted_ = 0.0;        // sums over rounds with a measured time
    Decision::Reason why_off_ = Decision::Reason::off;
    double best_speed_ = 0.0;
};

// How to use the drafter in each round.
struct Strategy {
    enum class Kind { off, chain, tree, automatic };  // automatic: the planner decides in each round

    Kind kind = Kind::off;
    int k = 1;      // number of children per frontier node; 1 for a chain
    int depth = 0;  // number of draft steps
    int nodes = 0;  // maximum number of draft nodes to verify

    static Strategy make(const std::string & kind, int k, int depth, int nodes) {
        if (kind == "off") return {};
        if (kind == "auto") return {Kind::automatic, 1, 0, 0};
        if (kind != "chain" && kind != "tree") {
            fail(ErrorKind::value, "strategy: expected auto, off, chain or tree, found '%s'", kind.c_str());
        }
        if (k < 1 || depth < 1 || nodes < 1) {
            fail(ErrorKind::value,
                 "strategy %s: expected k, depth and nodes of at least 1, found k=%d depth=%d nodes=%d", kind.c_str(),
                 k, depth, nodes);
        }
        if (kind == "chain") return {Kind::chain, 1, depth, depth};
        return {Kind::tree, k, depth, nodes};
    }

    bool is_fixed() const { return kind == Kind::chain || kind == Kind::tree; }

    const char * kind_name() const {
        constexpr const char * names[] = {"off", "chain", "tree", "auto"};
        return names[(int)kind];
    }
};

}  // namespace eaglecpp
