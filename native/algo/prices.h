// SPDX-License-Identifier: MIT
// What verifying n more nodes costs in the coming batch, and the node count worth most at a given price of time. The
// whole staircase is looked at: cost curves have cliffs, plateaus and dips, so the first descent is no maximum.
#pragma once

#include <vector>

#include "algo/cost_table.h"

namespace eaglecpp {

// n nodes and what they are worth in tokens: the sum of their chances less the price of the time they take
struct Offer {
    int n = 0;
    double value = 0.0;
};

class Prices {
  public:
    // costs of 0 to n_nodes_max nodes in a batch that has n_rows other rows
    void set(const CostTable & table, int n_rows, int n_nodes_max);

    int n_nodes_max() const { return (int)ms_.size() - 1; }

    // ms that n nodes add to a round that verifies none
    double ms(int n) const { return ms_[n]; }

    // cheapest price of a node at any size
    double ms_per_node() const { return ms_per_node_; }

    // A target that cannot take rejected rows back runs the accepted ones again: after[j] ms if j nodes of a chain were
    // accepted and not all. Empty = it can.
    std::vector<double> replay;

    // Best count for nodes with chances p[0..n), best first. `lambda`: tokens per ms that the time could earn
    // elsewhere; sizes that add more than `ms_most` are out.
    Offer best(const float * p, int n, double lambda, double ms_most) const;

  private:
    std::vector<double> ms_{0.0};
    double ms_per_node_ = 0.0;
};

}  // namespace eaglecpp
