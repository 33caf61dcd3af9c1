// SPDX-License-Identifier: MIT
#include "algo/prices.h"

#include <algorithm>

namespace eaglecpp {

void Prices::set(const CostTable & table, int n_rows, int n_nodes_max) {
    ms_.resize(std::max(n_nodes_max, 0) + 1);
    ms_per_node_ = 0.0;
    // Against a round without nodes as it is while plain rounds follow each other: a rebuild is drafting's fault.
    const double none = table.plain(n_rows) - table.plain_host();
    for (int n = 0; n < (int)ms_.size(); ++n) {
        ms_[n] = n == 0 ? 0.0 : table.verify(n_rows + n) - none;
        if (n == 0) continue;
        const double per_node = ms_[n] / n;
        ms_per_node_ = n == 1 ? per_node : std::min(ms_per_node_, per_node);
    }
    ms_per_node_ = std::max(ms_per_node_, 0.0);
}

Offer Prices::best(const float * p, int n, double lambda, double ms_most) const {
    Offer out;
    double sum = 0.0, again = 0.0;
    for (int i = 1; i <= std::min(n, n_nodes_max()); ++i) {
        // the walk stops after i - 1 accepted nodes
        if (!replay.empty()) again += ((i == 1 ? 1.0 : p[i - 2]) - p[i - 1]) * replay[std::min<size_t>(i - 1, replay.size() - 1)];
        sum += p[i - 1];
        const double ms = ms_[i] + again;
        const double value = sum - lambda * ms;
        if (value > out.value && ms <= ms_most) out = {i, value};
    }
    return out;
}

}  // namespace eaglecpp
