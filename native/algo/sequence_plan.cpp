// SPDX-License-Identifier: MIT
#include "algo/sequence_plan.h"

namespace eaglecpp {

void PlanRound::begin(Token root, const PlanLimits & most, int n_left_now, int n_pending_now) {
    decision.mode = Decision::Mode::plain;
    decision.k = decision.depth = decision.n_leaves = decision.n_text = 0;
    decision.levels.clear();
    decision.nodes.clear();
    decision.n_tokens = decision.cost = 1.0;
    limits = most;
    n_left = n_left_now;
    n_pending = n_pending_now;
    tree.reset(root);
    frontier.clear();
    draft_time = {};
    n_committed = 0;
}

}  // namespace eaglecpp
