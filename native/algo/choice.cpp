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
constexpr double weight_on = 0.10, weight_off = 0.35;  // of a new value in the advantage
constexpr double value_max = 10.0;                     // tokens
constexpr double stall = 1.5;
constexpr double no_limit = std::numeric_limits<double>::infinity();
}  // namespace

void Planner::choose(const std::vector<SequencePlan *> & plans) {
    plans_ = plans;
    n_rows_ = n_roots_;
    int n_auto = 0;
    for (SequencePlan * plan : plans_) {
        if (!plan->is_drafting()) continue;
        plan->frontier_.clear();
        switch (plan->rule_) {
            case SequencePlan::Rule::automatic: ++n_auto; continue;
            case SequencePlan::Rule::fixed: choose_fixed(*plan); break;
            case SequencePlan::Rule::replay: choose_replay(*plan); break;
        }
        n_rows_ += plan->tree_.n_draft();
    }
    if (n_auto > 0 && n_roots_ > 1) {
        choose_shared(n_rows_);
    } else {
        for (SequencePlan * plan : plans_) {
            if (plan->is_drafting() && plan->rule_ == SequencePlan::Rule::automatic) choose_alone(*plan);
        }
    }
    n_rows_ = n_roots_;
    for (SequencePlan * plan : plans_) n_rows_ += plan->tree_.n_draft();
    verify_ms_expected_ = costs_.verify(n_rows_);
    const double rest_ms = verify_ms_expected_ + round_draft_ms_ + costs_.plain_host() + costs_.host();
    for (SequencePlan * plan : plans_) {
        if (plan->tree_.n_draft() > 0) plan->decision_.cost = rounds(rest_ms);
    }
}

void Planner::choose_fixed(SequencePlan & plan) {
    const int n_nodes = std::min(plan.strategy_.nodes, plan.limits_.n_nodes);
    // the order of the drafter's own path probabilities
    plan.order_.build(plan.pool_, plan.pool_.logp, n_nodes, plan.limits_.n_leaves);
    take(plan, plan.order_.nodes().data(), plan.order_.size());
}

void Planner::choose_replay(SequencePlan & plan) {
    const Decision & logged = plan.replay_[plan.n_replayed_ - 1];
    std::vector<uint8_t> is_in(plan.pool_.size(), 0);
    is_in[0] = 1;
    for (int32_t node : logged.nodes) {
        if (node < 1 || node >= plan.pool_.size() || is_in[node] || !is_in[plan.pool_.parent[node]]) {
            fail(ErrorKind::value, "plan log: round %zu verifies node %d, which the %d drafted nodes do not allow; the "
                                   "log belongs to another run", plan.n_replayed_, node, plan.pool_.n_draft());
        }
        is_in[node] = 1;
    }
    take(plan, logged.nodes.data(), (int)logged.nodes.size());
}

// One conversation: the best of all sizes at the price of time.
void Planner::choose_alone(SequencePlan & plan) {
    const double price = lambda(plan);
    const Prices & prices = plan.prices_;
    plan.order_.build(plan.pool_, plan.p_, prices.n_nodes_max(), plan.limits_.n_leaves);
    const float * p = plan.order_.p().data();
    const double spent_ms = std::min(plan.draft_ms_, stall * plan.draft_ms_expected_) + costs_.host();
    const Offer wish = prices.best(p, plan.order_.size(), price, no_limit);
    double value = wish.value;
    double ms = spent_ms + prices.ms(wish.n);
    double n_tokens = 1.0 + std::accumulate(p, p + wish.n, 0.0);
    if (plan.decision_.mode == Mode::probe && plan.depth_max_ > 2) {
        // a probe stops early; what drafting would do counts
        nodes_.assign(1, 0);
        int best = 0;
        for (int i = plan.first_new_; i < plan.pool_.size(); ++i) {
            if (best == 0 || plan.p_[i] > plan.p_[best]) best = i;
        }
        nodes_[0] = best;
        if (best > 0) {
            const Offer later = foresee(plan, 1);
            value = std::max(value, later.value);
        }
    }
    value -= price * spent_ms;
    weigh(plan, value, n_tokens / rounds(plain_ms_ + ms));
    Offer offer = prices.best(p, plan.order_.size(), price, ms_left(plan));
    if (plan.decision_.mode == Mode::probe && wish.value <= price * spent_ms) offer = {};
    take(plan, plan.order_.nodes().data(), offer.n);
}

// Several conversations: nodes of all pools in one order, taken as long as the goal rises.
void Planner::choose_shared(int n_rows) {
    const bool is_fair = options_.goal == PlannerOptions::Goal::fair;
    heads_.assign(plans_.size(), 0);
    sums_.assign(plans_.size(), 1.0);
    std::vector<int> best_heads(plans_.size(), 0);
    const int n_most = std::max(1, costs_.n_rows_max() - n_rows);
    const double host_ms = costs_.plain_host() + costs_.host() + round_draft_ms_;
    double lambda_all = 0.0;
    for (SequencePlan * plan : plans_) {
        lambda_all += plan->recent_.speed() / plain_ms_;
        if (plan->is_drafting() && plan->rule_ == SequencePlan::Rule::automatic) {
            const int n = plan->decision_.mode == Mode::probe ? 0 : std::min(plan->limits_.n_nodes, n_most);
            plan->order_.build(plan->pool_, plan->p_, n, plan->limits_.n_leaves);
        }
    }
    const auto is_open = [&](size_t i) {
        const SequencePlan & p = *plans_[i];
        return p.is_drafting() && p.rule_ == SequencePlan::Rule::automatic && heads_[i] < p.order_.size();
    };
    const auto goal = [&](double ms) {
        double sum = 0.0;
        for (double s : sums_) sum += is_fair ? std::log(s) : s;
        return is_fair ? sum - n_roots_ * std::log(ms) : sum - lambda_all * ms;
    };
    double best = goal(costs_.verify(n_rows) + host_ms);
    for (int n = 1; n <= n_most; ++n) {
        int pick = -1;
        double pick_gain = 0.0;
        for (size_t i = 0; i < plans_.size(); ++i) {
            if (!is_open(i)) continue;
            const double p = plans_[i]->order_.p()[heads_[i]];
            const double gain = is_fair ? p / sums_[i] : p;
            if (pick < 0 || gain > pick_gain) pick = (int)i, pick_gain = gain;
        }
        if (pick < 0) break;
        sums_[pick] += plans_[pick]->order_.p()[heads_[pick]++];
        const double ms = costs_.verify(n_rows + n) + host_ms;
        if (!ledger_.covers(rounds(ms) - 1.0)) continue;
        if (options_.floor > 0.0 && *std::min_element(sums_.begin(), sums_.end()) < options_.floor * rounds(ms)) continue;
        const double value = goal(ms);
        if (value > best) {
            best = value;
            best_heads = heads_;
        }
    }
    const int n_taken = std::accumulate(best_heads.begin(), best_heads.end(), 0);
    const double extra_ms = costs_.verify(n_rows + n_taken) - costs_.verify(n_rows);
    for (size_t i = 0; i < plans_.size(); ++i) {
        SequencePlan & plan = *plans_[i];
        if (!plan.is_drafting() || plan.rule_ != SequencePlan::Rule::automatic) continue;
        const double price = lambda(plan);
        const double spent_ms = std::min(plan.draft_ms_, stall * plan.draft_ms_expected_) + costs_.host() / n_roots_;
        double value, speed;
        if (plan.decision_.mode == Mode::probe) {
            const Offer offer = plan.prices_.best(plan.best_p_.data(), (int)plan.best_p_.size(), price, no_limit);
            value = offer.value - price * spent_ms;
            speed = 1.0 + value;
        } else {
            const float * p = plan.order_.p().data();
            const double gain = std::accumulate(p, p + best_heads[i], 0.0);
            const double own_ms = n_taken > 0 ? extra_ms * best_heads[i] / n_taken : 0.0;
            value = gain - price * (own_ms + spent_ms);
            speed = (1.0 + gain) / rounds(plain_ms_ + own_ms + spent_ms);
        }
        weigh(plan, value, speed);
        take(plan, plan.order_.nodes().data(), best_heads[i]);
    }
}

// Builds the tree of the given pool nodes, parents before children.
void Planner::take(SequencePlan & plan, const int32_t * nodes, int n) {
    Decision & d = plan.decision_;
    d.nodes.assign(nodes, nodes + n);
    std::sort(d.nodes.begin(), d.nodes.end());  // pool indices rise with depth
    if (n == 0) {
        if (d.mode == Mode::draft) d.mode = Mode::probe, d.reason = Reason::vain;
        return;
    }
    if (d.mode == Mode::probe) d.mode = Mode::draft, d.reason = Reason::pays;
    const DraftTree & pool = plan.pool_;
    DraftTree & tree = plan.tree_;
    number_.assign(pool.size(), 0);
    d.n_leaves = 0;
    double n_tokens = 1.0;
    for (int32_t node : d.nodes) {
        tree.token.push_back(pool.token[node]);
        tree.parent.push_back(number_[pool.parent[node]]);
        tree.depth.push_back(pool.depth[node]);
        tree.logp.push_back(pool.logp[node]);
        number_[node] = tree.size() - 1;
        d.depth = std::max(d.depth, (int)pool.depth[node]);
        n_tokens += plan.p_[node];
    }
    d.n_leaves = (int)tree.leaves().size();
    d.n_tokens = n_tokens;
}

// Drafting stays on or off by the mean predicted value of a drafted round: far less noisy than accepted counts.
void Planner::weigh(SequencePlan & plan, double value, double speed) {
    if (!std::isfinite(value) || !std::isfinite(speed)) return;
    const double weight = plan.is_on_ ? weight_on : weight_off;
    plan.advantage_ += weight * (std::clamp(value, -value_max, value_max) - plan.advantage_);
    plan.best_speed_ += (plan.best_speed_ > 0.0 ? weight : 1.0) * (speed - plan.best_speed_);
    plan.decision_.best_speed = plan.best_speed_;
    if (plan.is_on_ && plan.advantage_ < options_.off_below) {
        plan.is_on_ = false;
        plan.n_since_probe_ = 0;
    } else if (!plan.is_on_ && plan.advantage_ > options_.on_above) {
        plan.is_on_ = true;
    }
}

}  // namespace eaglecpp
