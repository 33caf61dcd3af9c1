// SPDX-License-Identifier: MIT
#include "algo/cost_model.h"

#include <algorithm>
#include <limits>

namespace eaglecpp {

static constexpr double never = std::numeric_limits<double>::infinity();

double CostModel::cost_of(const CostTable & costs, int n) const {
    return per_ms_ * (costs.verify(n_rows_ + n) - costs.verify(n_rows_));
}

void CostModel::open(const CostTable & costs, int n_rows, int n_max, double round_ms, int n_waiting, double n_times,
                     double first_use) {
    n_rows_ = n_rows;
    round_ms_ = round_ms;
    per_ms_ = n_times * n_waiting / round_ms;
    cost_.assign(std::max(n_max, 0) + 1, 0.0);
    once_ = cost_;
    for (int n = 1; n <= n_max; ++n) {
        cost_[n] = cost_of(costs, n);
        if (!costs.is_tried(n_rows + n)) once_[n] = n_waiting * first_use;
    }
}

void CostModel::fix_rows(int n) {
    cost_.assign(std::max(n - n_rows_, 0) + 1, 0.0);
    once_ = cost_;
}

void CostModel::keep_exact(const RowCounts & exact, const CostTable & costs) {
    const int next = exact.next(n_rows_) - n_rows_;
    while (n_max() < next) cost_.push_back(cost_of(costs, n_max() + 1));
    once_.resize(cost_.size(), 0.0);
    for (int n = 1; n <= n_max(); ++n) {
        if (!exact.allows(n_rows_ + n)) cost_[n] = never;
    }
}

double CostModel::least(int n) const {
    double out = never;
    for (; n <= n_max(); ++n) out = std::min(out, cost_[n] + once_[n]);
    return out;
}

CostModel::Selection CostModel::best(const std::vector<float> & gains, double budget) const {
    Selection out;
    double sum = 0.0;
    for (int n = 1; n <= std::min((int)gains.size(), n_max()); ++n) {
        sum += gains[n - 1];
        if (sum - cost_[n] > out.gain && cost_[n] + once_[n] <= budget) out = {n, sum - cost_[n]};
    }
    return out;
}

}  // namespace eaglecpp
