// SPDX-License-Identifier: MIT
#include "algo/prices.h"

#include <algorithm>
#include <limits>

namespace eaglecpp {

// A size that turns out well is used many times; the extra time of its first use is spread over them.
static constexpr double first_use_share = 0.02;
// plain rounds; no first use may look more expensive than a full ledger can pay, or no size would ever be tried
static constexpr double first_use_most = 6.0;

void SizeHabit::add(int n_rows) {
    const double weight = std::max(rate, 1.0 / ++n_seen_);
    mean_share_ = 0.0;
    for (int n = 0; n < n_sizes; ++n) {
        shares_[n] += weight * ((n == n_rows) - shares_[n]);
        mean_share_ += shares_[n] * shares_[n];
    }
}

void Prices::set(const CostTable & table, const SizeHabit & habit, int n_rows, int n_nodes_max, double ms_free,
                 const RowCounts * allowed, int n_buyers) {
    const int n_sizes = std::max(n_nodes_max, 0) + 1;
    ms_.assign(n_sizes, 0.0);
    ms_changes_.assign(n_sizes, 0.0);
    ms_once_.assign(n_sizes, 0.0);
    ms_per_node_ = std::numeric_limits<double>::infinity();
    // Against a round without nodes as it is while plain rounds follow each other: a change is drafting's fault.
    const double none = table.plain(n_rows) - table.plain_host();
    for (int n = 1; n < n_sizes; ++n) {
        const int rows = n_rows + n * n_buyers;
        if (allowed && !allowed->allows(rows)) {
            ms_[n] = std::numeric_limits<double>::infinity();
            continue;
        }
        const double first_ms = table.first_use(rows), change_ms = table.change(rows);
        ms_[n] = (table.settled(rows) - none + first_use_share * first_ms) / n_buyers;
        ms_changes_[n] = table.change() * habit.n_changes(rows, change_ms > 0.0) / n_buyers;
        ms_once_[n] = std::max(0.0, std::min(first_ms, first_use_most * table.plain(n_rows)) - ms_free) + change_ms;
        ms_per_node_ = std::min(ms_per_node_, ms_[n] / n);
    }
    ms_per_node_ = n_sizes > 1 ? std::max(ms_per_node_, 0.0) : 0.0;
}

Offer Prices::best(const std::vector<float> & p, double lambda, double ms_most) const {
    return best_of(p, lambda, ms_most, 1.0);
}

Offer Prices::best_settled(const std::vector<float> & p, double lambda, double ms_most) const {
    return best_of(p, lambda, ms_most, 0.0);
}

Offer Prices::best_of(const std::vector<float> & p, double lambda, double ms_most, double changes) const {
    Offer out;
    double sum = 0.0;
    for (int n = 1; n <= std::min((int)p.size(), n_nodes_max()); ++n) {
        sum += p[n - 1];
        const double value = sum - lambda * (ms_[n] + changes * ms_changes_[n]);
        if (value > out.value && ms_[n] + ms_once_[n] <= ms_most) out = {n, value};
    }
    return out;
}

}  // namespace eaglecpp
