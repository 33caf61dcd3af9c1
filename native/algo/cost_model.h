// SPDX-License-Identifier: MIT
// Computes the marginal cost of draft nodes in a batch, and chooses the number of nodes to verify.
#pragma once

#include <vector>

#include "algo/costs.h"

namespace eaglecpp {

// Cost of the draft nodes of one batch. Costs and gains are measured in target-only steps. If a conversation runs at s
// times the target-only speed, a node that is accepted with probability p saves p / s steps. With this common unit, the
// nodes of all conversations can be ranked in one list.
class CostModel {
  public:
    // Number of nodes to verify, and their total gain minus their cost.
    struct Selection {
        int n = 0;
        double gain = 0.0;
    };

    // Computes the cost of adding 0 to n_max nodes to a batch of `n_rows` rows. The unit is a target-only step of
    // `round_ms` milliseconds. Each of `n_waiting` conversations waits for the batch. n_times: 2 if accepted nodes must
    // be run again, otherwise 1. first_use: extra cost of a number of rows that this process has not run yet.
    void open(const CostTable & costs, int n_rows, int n_max, double round_ms, int n_waiting, double n_times,
              double first_use);

    // Fixes the batch size at n rows: trees below this size are free, larger trees are not allowed.
    void fix_rows(int n);

    // Allows only exact numbers of rows. If no number up to n_max nodes is exact, extends the range of nodes to the
    // next exact number.
    void keep_exact(const RowCounts & exact, const CostTable & costs);

    int n_max() const { return (int)cost_.size() - 1; }

    // Returns the smallest cost of n or more nodes. This cost includes running a batch size for the first time.
    double least(int n) const;

    // Returns the best number of nodes within `budget`. `gains` are the expected gains in falling order. Compares all
    // numbers of nodes, because the net gain may fall and rise again: cost curves have cliffs, plateaus and dips.
    Selection best(const std::vector<float> & gains, double budget) const;

  private:
    double cost_of(const CostTable & costs, int n) const;

    std::vector<double> cost_{0.0};  // cost of adding n nodes to the batch; infinite if n nodes are not allowed
    std::vector<double> once_{0.0};  // additional cost of a batch size that this process has not run yet
    int n_rows_ = 1;
    double round_ms_ = 1.0, per_ms_ = 1.0;
};

}  // namespace eaglecpp
