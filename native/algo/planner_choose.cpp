// SPDX-License-Identifier: MIT
// Planner, after drafting: which nodes of the pools go into the verify batch.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "algo/planner.h"
#include "base/error.h"

namespace eaglecpp {

namespace {
constexpr double no_limit = std::numeric_limits<double>::infinity();

double sum_of(const std::vector<float> & p, int n) {
    return std::accumulate(p.begin(), p.begin() + n, 0.0);
}
}  // namespace

void Planner::choose(const std::vector<SequencePlan *> & plans) {
    plans_ = plans;
    n_rows_ = n_roots_ + n_again_;
    for (SequencePlan * plan : plans_) {
        plan->round.frontier.clear();
        if (!plan->round.is_drafting() || plan->is_auto()) continue;
        const int n_nodes = std::min(plan->strategy().nodes, plan->round.limits.n_nodes);
        plan->round.order.build(plan->pool(), plan->pool().logp, n_nodes, plan->round.limits.n_leaves);
    }
    cut_fixed();
    if (n_roots_ > 1) {
        choose_shared(n_rows_);
    } else if (plans_.size() == 1 && plans_[0]->is_auto_drafting()) {
        choose_alone(*plans_[0]);
    }
    n_rows_ = n_roots_ + n_again_;
    for (SequencePlan * plan : plans_) n_rows_ += plan->round.tree.n_draft();
    n_drafting_last_ = 0;
    for (SequencePlan * plan : plans_) {
        plan->round.has_drafted_last = plan->round.decision.mode == Mode::draft;
        n_drafting_last_ += plan->round.has_drafted_last;
    }
    verify_ms_expected_ = costs_.verify(n_rows_);
    const double ms = verify_ms_expected_ + round_draft_ms_ + costs_.plain_host() + costs_.host();
    for (SequencePlan * plan : plans_) {
        if (plan->round.is_verifying()) plan->round.decision.cost = costs_.is_known(n_roots_) ? rounds(ms) : 0.0;
    }
}

// One conversation: the best of all sizes at the price of time.
void Planner::choose_alone(SequencePlan & plan) {
    const double price = lambda(plan);
    const bool is_probe = plan.round.decision.mode == Mode::probe;
    plan.round.order.build(plan.pool(), plan.round.pool.p(), plan.round.prices.n_nodes_max(),
                           plan.round.limits.n_leaves);
    const std::vector<float> & p = plan.round.order.p();
    const double spent_ms = plan.round.draft_time.fair_ms() + costs_.host();
    const Offer wish = plan.round.prices.best(p, price, no_limit);
    const double ms = spent_ms + plan.round.prices.ms(wish.n);
    if (!plan.round.is_text_only()) {
        weigh(plan, wish.value - price * spent_ms, (1.0 + sum_of(p, wish.n)) / rounds(plain_ms_ + ms));
    }
    const bool is_vain = is_probe && wish.value <= price * spent_ms;
    take(plan, plan.round.order.nodes(), is_vain ? 0 : plan.round.prices.best(p, price, ms_left(plan)).n);
}

// --- several conversations -----------------------------------------------------------------------------------------

// Nodes of all pools in one order, as many as serve all best.
void Planner::choose_shared(int n_rows) {
    const int n_most = std::max(1, costs_.n_rows_max() - n_rows);
    for (SequencePlan * plan : plans_) {
        if (!plan->is_auto_drafting()) continue;
        const int n = plan->round.decision.mode == Mode::probe ? 0 : std::min(plan->round.limits.n_nodes, n_most);
        plan->round.order.build(plan->pool(), plan->round.pool.p(), n, plan->round.limits.n_leaves);
    }
    find_shared(n_rows, n_most);
    const int n = std::accumulate(best_heads_.begin(), best_heads_.end(), 0);
    const double ms_per_node = n > 0 ? (costs_.verify(n_rows + n) - costs_.verify(n_rows)) / n : 0.0;
    for (size_t i = 0; i < plans_.size(); ++i) {
        SequencePlan & plan = *plans_[i];
        if (!plan.is_auto_drafting()) continue;
        if (!plan.round.is_text_only()) weigh_shared(plan, best_heads_[i], ms_per_node);
        take(plan, plan.round.order.nodes(), best_heads_[i]);
    }
}

// best_heads_: nodes of each plan, to maximise the product of the conversations' speeds. For a fixed count its
// logarithm is separable and concave, so taking the node that raises it most is exact; every count is looked at,
// because the cost is not convex.
void Planner::find_shared(int n_rows, int n_most) {
    heads_.assign(plans_.size(), 0);
    best_heads_ = heads_;
    sums_.assign(plans_.size(), 1.0);
    const double rest_ms = costs_.plain_host() + costs_.host() + round_draft_ms_;
    const auto goal = [&](double ms) {
        double logs = 0.0;
        for (double tokens : sums_) logs += std::log(tokens);
        return logs - n_roots_ * std::log(ms);
    };
    double best = goal(costs_.verify(n_rows) + rest_ms);
    for (int n = 1; n <= n_most; ++n) {
        int pick = -1;
        double pick_gain = 0.0;
        for (size_t i = 0; i < plans_.size(); ++i) {
            if (!plans_[i]->is_auto_drafting() || heads_[i] == plans_[i]->round.order.size()) continue;
            const double gain = plans_[i]->round.order.p()[heads_[i]] / sums_[i];
            if (pick < 0 || gain > pick_gain) pick = (int)i, pick_gain = gain;
        }
        if (pick < 0) return;
        sums_[pick] += plans_[pick]->round.order.p()[heads_[pick]++];
        const double ms = costs_.verify(n_rows + n) + rest_ms;
        if (ledger_.covers(rounds(ms) - 1.0) && is_exact_enough(n_rows + n) && goal(ms) > best) {
            best = goal(ms);
            best_heads_ = heads_;
        }
    }
}

void Planner::weigh_shared(SequencePlan & plan, int n, double ms_per_node) {
    const double price = lambda(plan);
    const double spent_ms = plan.round.draft_time.fair_ms() + costs_.host() / n_roots_;
    if (plan.round.decision.mode == Mode::probe) {
        const double value = plan.round.prices.best(plan.round.best_p, price, no_limit).value - price * spent_ms;
        return weigh(plan, value, 1.0 + value);
    }
    const double gain = sum_of(plan.round.order.p(), n), ms = spent_ms + n * ms_per_node;
    weigh(plan, gain - price * ms, (1.0 + gain) / rounds(plain_ms_ + ms));
}

// -------------------------------------------------------------------------------------------------------------------

namespace {
// Children right behind their parents, best first: the likeliest path comes first and without gaps.
void append_depth_first(const DraftTree & pool, const std::vector<int32_t> & nodes, int32_t parent,
                        std::vector<int32_t> & out) {
    for (int32_t node : nodes) {
        if (pool.parent[node] != parent) continue;
        out.push_back(node);
        append_depth_first(pool, nodes, node, out);
    }
}
}  // namespace

// Builds the tree of the first n of `nodes`.
void Planner::take(SequencePlan & plan, const std::vector<int32_t> & nodes, int n) {
    Decision & d = plan.round.decision;
    nodes_.assign(nodes.begin(), nodes.begin() + n);
    std::sort(nodes_.begin(), nodes_.end());
    d.nodes.clear();
    append_depth_first(plan.pool(), nodes_, 0, d.nodes);
    if (n == 0) {
        if (d.mode == Mode::draft) d.mode = Mode::probe, d.reason = Reason::vain;
        return;
    }
    if (d.reason == Reason::probe) d.mode = Mode::draft, d.reason = Reason::pays;
    plan.round.tree = plan.round.pool.tree().take(d.nodes);
    d.n_leaves = (int)plan.round.tree.leaves().size();
    d.depth = *std::max_element(plan.round.tree.depth.begin(), plan.round.tree.depth.end());
    for (int32_t node : d.nodes) d.n_tokens += plan.round.pool.p()[node];
}

void Planner::weigh(SequencePlan & plan, double value, double speed) {
    if (!std::isfinite(value) || !std::isfinite(speed)) return;
    // what the text alone would have brought is not the drafter's merit
    plan.on_off.weigh(value - plan.round.text_value, speed);
    plan.round.decision.best_speed = plan.on_off.best_speed();
}

}  // namespace eaglecpp
