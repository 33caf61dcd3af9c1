// SPDX-License-Identifier: MIT
// Runs one round of the planner in the same way as the engine, up to the verification.
#pragma once

#include <vector>

#include "algo/planner.h"

namespace eaglecpp::test {

// The fields of BatchPart that the caller sets.
struct RoundRequest {
    Token root = 0;
    int n_left = 0, n_pending = 0;
    PlanLimits limits;
    const TextDraft * text = nullptr;  // null = do not draft from the text
    int n_replay = 0;
};

// A conversation that takes part in a round.
struct Turn {
    SequencePlan * plan;
    RoundRequest request;
};

inline void decide(Planner & planner, const Turn & turn) {
    BatchPart & round = turn.plan->round;
    const RoundRequest & request = turn.request;
    round.begin(request.root);
    round.limits = request.limits;
    round.n_left = request.n_left, round.n_pending = request.n_pending, round.n_replay = request.n_replay;
    round.drafts_text = request.text != nullptr;
    if (request.text) round.text_draft = *request.text;
    planner.decide(*turn.plan);
}

// Begins a round, drafts in all conversations together, and chooses the trees to verify. Returns the total time of the
// drafter calls. propose(turn) returns the candidates for each frontier node. ms(is_first, n_rows) returns the time of
// one drafter call.
template <class Propose, class Ms>
double draft(Planner & planner, const std::vector<Turn> & turns, const Propose & propose, const Ms & ms) {
    std::vector<SequencePlan *> plans;
    planner.begin_round((int)turns.size());
    for (const Turn & t : turns) {
        decide(planner, t);
        plans.push_back(t.plan);
    }
    double sum = 0.0;
    for (bool is_first = true;; is_first = false) {
        std::vector<SequencePlan *> growing;
        int n_rows = 0;
        for (const Turn & t : turns) {
            if (t.plan->frontier().empty()) continue;
            n_rows += is_first ? t.plan->round.n_commit_rows() : (int)t.plan->frontier().size();
            t.plan->round.children = propose(t);
            growing.push_back(t.plan);
        }
        if (growing.empty()) break;
        const double one = ms(is_first, n_rows);
        sum += one;
        planner.grow(growing, one);
    }
    planner.choose(plans);
    return sum;
}

}  // namespace eaglecpp::test
