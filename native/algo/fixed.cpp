// SPDX-License-Identifier: MIT
// Implements the fixed strategies: chains, and the trees of EAGLE-2 (SafeAILab/EAGLE: eagle/model/cnets.py,
// topK_genrate). Drafts are shortened only by the request's limits and by exact row counts.
#include <algorithm>

#include "algo/planner.h"

namespace eaglecpp {

void Planner::decide_fixed(SequencePlan & plan) {
    const Strategy & s = plan.strategy();
    BatchPart & round = plan.round;
    round.decision.reason = Reason::off;
    if (s.kind == Strategy::Kind::off) return;
    // Limits the depth. The last token of a generation is the bonus token, so a draft of n_left tokens is too long.
    // Drafts beyond the rows of a batch cannot be verified.
    round.depth_max = std::min(s.depth, round.n_left - 1);
    if (plan.exact.is_exact && n_roots_ == 1) {
        const int n_max = std::min(s.nodes, round.limits.n_nodes), n_nodes = exact_rows_.largest(1 + n_max) - 1;
        round.depth_max = std::min(round.depth_max, n_nodes);
        if (n_nodes < n_max) plan.exact.cut = n_nodes;
        if (n_nodes == 0) round.decision.reason = Reason::inexact;
        if (n_nodes == 0) return;
    }
    round.decision.reason = Reason::no_match;
    if (round.has_drafter() || !round.text_draft.empty()) start(plan, Reason::fixed, s.k);
}

// Sets the frontier to the k new nodes whose paths have the highest probability, as estimated by the drafter.
void Planner::next_frontier_fixed(SequencePlan & plan) {
    const DraftPool & pool = plan.round.pool;
    nodes_ = pool.step();
    const auto & logp = pool.tree().logp;
    std::stable_sort(nodes_.begin(), nodes_.end(), [&](int32_t a, int32_t b) { return logp[a] > logp[b]; });
    const int n = std::min({(int)nodes_.size(), plan.round.decision.k, plan.round.n_rows_left()});
    if (n > 0) plan.round.frontier.assign(nodes_.begin(), nodes_.begin() + n);
}

// Cuts the drafts of fixed strategies so that the batch has an exact number of rows. The nodes of the last
// conversations are removed first.
void Planner::choose_fixed() {
    std::vector<SequencePlan *> fixed;
    int n = 0;
    for (SequencePlan * plan : plans_) {
        if (!plan->round.is_drafting() || plan->is_auto()) continue;
        const int n_nodes = std::min(plan->strategy().nodes, plan->round.limits.n_nodes);
        plan->round.order.build(plan->pool(), plan->pool().logp, n_nodes, plan->round.limits.n_leaves);
        fixed.push_back(plan);
        n += plan->round.order.size();
    }
    while (n > 0 && is_exact_ && !exact_rows_.allows(n_rows_ + n)) --n;
    for (SequencePlan * plan : fixed) {
        const int n_own = std::min(n, plan->round.order.size());
        take(*plan, plan->round.order.nodes(), n_own);
        n -= n_own;
        n_rows_ += n_own;
    }
}

}  // namespace eaglecpp
