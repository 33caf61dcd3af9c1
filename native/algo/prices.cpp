// SPDX-License-Identifier: MIT
#include "algo/prices.h"

#include <algorithm>
#include <limits>

namespace eaglecpp {

// A size that turns out well is used many times; the extra time of its first use is spread over them.
static constexpr double first_use_share = 0.02;
// plain rounds; no first use may look more expensive than a full ledger can pay, or no size would ever be tried
static constexpr double first_use_most = 6.0;

void Prices::set(const CostTable & table, int n_rows, int n_nodes_max, double ms_free, const RowCounts * allowed,
                 int n_buyers, double n_times) {
    const int n_sizes = std::max(n_nodes_max, 0) + 1;
    ms_.assign(n_sizes, 0.0);
    ms_once_.assign(n_sizes, 0.0);
    ms_per_node_ = std::numeric_limits<double>::infinity();
    const double none = table.verify(n_rows);
    for (int n = 1; n < n_sizes; ++n) {
        const int rows = n_rows + n * n_buyers;
        if (allowed && !allowed->allows(rows)) {
            ms_[n] = std::numeric_limits<double>::infinity();
            continue;
        }
        const double first_ms = table.first_use(rows);
        ms_[n] = (n_times * (table.verify(rows) - none) + first_use_share * first_ms) / n_buyers;
        ms_once_[n] = std::max(0.0, std::min(first_ms, first_use_most * table.plain(n_rows)) - ms_free);
        ms_per_node_ = std::min(ms_per_node_, ms_[n] / n);
    }
    ms_per_node_ = n_sizes > 1 ? std::max(ms_per_node_, 0.0) : 0.0;
}

Offer Prices::best(const std::vector<float> & p, double lambda, double ms_most) const {
    Offer out;
    double sum = 0.0;
    for (int n = 1; n <= std::min((int)p.size(), n_nodes_max()); ++n) {
        sum += p[n - 1];
        const double value = sum - lambda * ms_[n];
        if (value > out.value && ms_[n] + ms_once_[n] <= ms_most) out = {n, value};
    }
    return out;
}

}  // namespace eaglecpp
