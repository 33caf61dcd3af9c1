// SPDX-License-Identifier: MIT
// Planner: batches whose rows hold the bits of single rows, and what it costs to plan only such.
#include <algorithm>
#include <cmath>
#include <functional>

#include "algo/planner.h"

namespace eaglecpp {

namespace {
// of the speed that all batches would give: what exactness may cost where it is wanted "where that is cheap"
constexpr double cheap = 0.95;
constexpr int n_depths_foreseen = 8;
constexpr double prior_commit = 0.08, prior_level = 0.06;  // plain rounds
}  // namespace

bool Planner::allows(const SequencePlan & plan, int n_rows) const {
    return !plan.exact.is_exact || exact_rows_.allows(n_rows);
}

// for every conversation of the batch; nobody drafting is nobody's choice
bool Planner::is_exact_enough(int n_rows) const {
    return n_rows == n_roots_ ||
           std::all_of(plans_.begin(), plans_.end(), [&](const SequencePlan * plan) { return allows(*plan, n_rows); });
}

// The fixed strategies of a batch share what an exact number of rows leaves; the last ones give way.
void Planner::cut_fixed() {
    int n_most = 0;
    const auto is_fixed = [](const SequencePlan * plan) { return plan->round.is_drafting() && !plan->is_auto(); };
    for (const SequencePlan * plan : plans_) n_most += is_fixed(plan) ? plan->round.order.size() : 0;
    int n = n_most;
    while (n > 0 && !is_exact_enough(n_rows_ + n)) --n;
    for (SequencePlan * plan : plans_) {
        if (!is_fixed(plan)) continue;
        const int n_own = std::min(n, plan->round.order.size());
        take(*plan, plan->round.order.nodes(), n_own);
        n -= n_own;
        n_rows_ += n_own;
    }
}

// A fixed strategy was asked for as it is; only exactness that was asked for, too, may cut it.
bool Planner::is_exact_cheap(const SequencePlan & plan) const {
    if (exact_rows_.allows_all(n_roots_ + plan.round.limits.n_nodes)) return true;
    if (!plan.is_auto()) return false;
    return foreseen_speed(plan, true) >= cheap * foreseen_speed(plan, false);
}

// plain rounds that a round of n_rows rows takes after `n_levels` drafter levels
double Planner::foreseen_rounds(int n_rows, int n_levels, int width) const {
    if (!costs_.knows_plain()) return costs_.prior_ratio(n_rows) + prior_commit + (n_levels - 1) * prior_level;
    const double draft_ms = costs_.commit(2) + (n_levels - 1) * costs_.level(width) + costs_.host();
    return rounds(costs_.verify(n_rows) + costs_.plain_host() + draft_ms);
}

// Tokens per plain round of the best draft, with chances as they are on average; at least plain.
double Planner::foreseen_speed(const SequencePlan & plan, bool is_exact) const {
    const int n_limit = std::min(plan.round.limits.n_nodes, std::max(1, costs_.n_rows_max() - n_roots_));
    const int width = plan.round.limits.n_leaves > 1 ? options_.k : 1;
    double best = 1.0;
    std::vector<float> p;
    for (int depth = 1; depth <= std::min(n_depths_foreseen, options_.depth); ++depth) {
        foresee_pool(plan, depth, p);
        double tokens = 1.0;
        for (int n = 1; n <= std::min(n_limit, (int)p.size()); ++n) {
            tokens += p[n - 1];
            if (is_exact && !exact_rows_.allows(n_roots_ + n)) continue;
            best = std::max(best, tokens / foreseen_rounds(n_roots_ + n, depth, width));
        }
    }
    return best;
}

// chances of the nodes of a pool of `depth` levels, falling
void Planner::foresee_pool(const SequencePlan & plan, int depth, std::vector<float> & p) const {
    const bool is_tree = plan.round.limits.n_leaves > 1;
    const int k = is_tree ? options_.k : 1, width = is_tree ? options_.width : 1;
    std::vector<float> front{1.0f}, next;
    p.clear();
    for (int d = 0; d < depth; ++d) {
        next.clear();
        for (float above : front) {
            for (int r = 0; r < std::min(k, MeanChances::n_ranks); ++r) {
                next.push_back(above * plan.text.chances.of(d + 1)[r]);
            }
        }
        std::sort(next.begin(), next.end(), std::greater<float>());
        p.insert(p.end(), next.begin(), next.end());
        next.resize(std::min(next.size(), (size_t)width));
        front = next;
    }
    std::sort(p.begin(), p.end(), std::greater<float>());
}

}  // namespace eaglecpp
