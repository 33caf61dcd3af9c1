// SPDX-License-Identifier: MIT
// Runs one round of the planner in the same way as the engine, up to the verification.
#pragma once

#include <vector>

#include "algo/planner.h"

namespace eaglecpp::test {

// A conversation that takes part in a round.
struct Turn {
    SequencePlan * plan;
    RoundRequest request;
};

// Begins a round, drafts in all conversations together, and chooses the trees to verify. Returns the total time of the
// drafter calls. propose(turn) returns the candidates for each frontier node. ms(is_first, n_rows) returns the time of
// one drafter call.
template <class Propose, class Ms>
double draft(Planner & planner, const std::vector<Turn> & turns, const Propose & propose, const Ms & ms) {
    std::vector<SequencePlan *> plans;
    planner.begin_round((int)turns.size());
    for (const Turn & t : turns) {
        planner.decide(*t.plan, t.request);
        plans.push_back(t.plan);
    }
    double sum = 0.0;
    for (bool is_first = true;; is_first = false) {
        std::vector<Proposal> proposals;
        int n_rows = 0;
        for (const Turn & t : turns) {
            if (t.plan->frontier().empty()) continue;
            n_rows += is_first ? t.request.n_pending + t.request.limits.n_block_rows : (int)t.plan->frontier().size();
            proposals.push_back({t.plan, propose(t)});
        }
        if (proposals.empty()) break;
        const double one = ms(is_first, n_rows);
        sum += one;
        planner.grow(proposals, one);
    }
    planner.choose(plans);
    return sum;
}

}  // namespace eaglecpp::test
