// SPDX-License-Identifier: MIT
// What verifying n more nodes costs in the coming batch, and which number of nodes is worth most at a given price of
// time. All numbers are looked at: cost curves have cliffs, plateaus and dips, so the search must not stop at the first
// number after which the value falls.
#pragma once

#include <vector>

#include "algo/cost_table.h"
#include "algo/row_counts.h"

namespace eaglecpp {

// n nodes and what they are worth in tokens: the sum of their chances less the price of the time they take
struct Offer {
    int n = 0;
    double value = 0.0;
};

class Prices {
  public:
    // Costs of 0 to n_nodes_max nodes in a batch that has n_rows other rows. `ms_free`: what the first use of a size
    // may take without being charged. `allowed`: the only numbers of rows that may be chosen; null = any. `n_buyers`:
    // the number of conversations, this one included, that are assumed to take equally many nodes each and to share
    // the cost. `n_times`: 2 where accepted nodes have to be run again.
    void set(const CostTable & table, int n_rows, int n_nodes_max, double ms_free, const RowCounts * allowed = nullptr,
             int n_buyers = 1, double n_times = 1.0);

    int n_nodes_max() const { return (int)ms_.size() - 1; }

    // ms that n nodes add to a round that verifies none
    double ms(int n) const { return ms_[n]; }

    // price of one node at the size where nodes are cheapest
    double ms_per_node() const { return ms_per_node_; }

    // Best count for nodes with chances p[0..n), best first. `lambda`: tokens per ms that the time could earn
    // elsewhere; sizes that may add more than `ms_most` are out.
    Offer best(const std::vector<float> & p, double lambda, double ms_most) const;

  private:
    std::vector<double> ms_{0.0};
    std::vector<double> ms_once_{0.0};  // charged beyond that for the first use of a size
    double ms_per_node_ = 0.0;
};

}  // namespace eaglecpp
