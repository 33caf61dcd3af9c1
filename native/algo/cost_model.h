// SPDX-License-Identifier: MIT
// Marginal cost of the draft nodes of a batch, and how many of them to verify.
#pragma once

#include <vector>

#include "algo/costs.h"

namespace eaglecpp {

// Costs and gains are in target-only steps. A node accepted with probability p saves p / s of them in a conversation
// that runs at s times target-only speed, so nodes of all conversations can be ranked together.
class CostModel {
  public:
    // Number of nodes, and their gain beyond their cost.
    struct Selection {
        int n = 0;
        double gain = 0.0;
    };

    // Prices 0 to n_max nodes added to a batch of `n_rows` rows, in steps of `round_ms`, which each of `n_waiting`
    // conversations waits for. `n_times`: 2 if accepted nodes have to be run again. `first_use`: additional cost of a
    // number of rows that this process has not run yet.
    void open(const CostTable & costs, int n_rows, int n_max, double round_ms, int n_waiting, double n_times,
              double first_use);

    // Fixes the batch size at n rows: smaller trees are free, larger ones not allowed.
    void fix_rows(int n);

    // Adds what it costs that a batch has another size than the last one, of `n_last` rows, did.
    void add_change(int n_last, double cost);

    // Allows exact numbers of rows only, up to the next one if there is none within n_max.
    void keep_exact(const RowCounts & exact, const CostTable & costs);

    int n_max() const { return (int)cost_.size() - 1; }

    // Cost of n nodes together; infinite if that number is not allowed.
    double marginal_cost(int n) const { return cost_[n]; }

    // Least cost of at least n nodes, a first use included.
    double least(int n) const;

    // Best number of nodes with these expected gains, in falling order, that cost at most `budget`. Compares all
    // numbers: cost curves have cliffs, plateaus and dips, so the gain may fall and rise again.
    Selection best(const std::vector<float> & gains, double budget) const;

  private:
    double cost_of(const CostTable & costs, int n) const;

    std::vector<double> cost_{0.0};
    std::vector<double> once_{0.0};  // additional, of a first use
    int n_rows_ = 1;
    double round_ms_ = 1.0, per_ms_ = 1.0;
};

}  // namespace eaglecpp
