// SPDX-License-Identifier: MIT
#include "algo/market.h"

#include <algorithm>
#include <limits>

namespace eaglecpp {

static constexpr double never = std::numeric_limits<double>::infinity();

double Market::price_of(const CostTable & costs, int n) const {
    return per_ms_ * (costs.verify(n_rows_ + n) - costs.verify(n_rows_));
}

void Market::open(const CostTable & costs, int n_rows, int n_max, double round_ms, int n_waiting, double n_times,
                  double first_use) {
    n_rows_ = n_rows;
    round_ms_ = round_ms;
    per_ms_ = n_times * n_waiting / round_ms;
    price_.assign(std::max(n_max, 0) + 1, 0.0);
    once_ = price_;
    for (int n = 1; n <= n_max; ++n) {
        price_[n] = price_of(costs, n);
        if (!costs.is_tried(n_rows + n)) once_[n] = n_waiting * first_use;
    }
}

void Market::fix_rows(int n) {
    price_.assign(std::max(n - n_rows_, 0) + 1, 0.0);
    once_ = price_;
}

void Market::keep_exact(const RowCounts & exact, const CostTable & costs) {
    const int next = exact.next(n_rows_) - n_rows_;
    while (n_max() < next) price_.push_back(price_of(costs, n_max() + 1));
    once_.resize(price_.size(), 0.0);
    for (int n = 1; n <= n_max(); ++n) {
        if (!exact.allows(n_rows_ + n)) price_[n] = never;
    }
}

Market::Offer Market::best(const std::vector<float> & worth, double budget) const {
    Offer out;
    double sum = 0.0;
    for (int n = 1; n <= std::min((int)worth.size(), n_max()); ++n) {
        sum += worth[n - 1];
        if (sum - price_[n] > out.gain && price_[n] + once_[n] <= budget) out = {n, sum - price_[n]};
    }
    return out;
}

}  // namespace eaglecpp
