// SPDX-License-Identifier: MIT
// What verifying n more nodes costs in the coming batch, and the node count worth most at a given price of time. The
// whole staircase is looked at: cost curves have cliffs, plateaus and dips, so the first descent is no maximum.
#pragma once

#include <array>
#include <vector>

#include "algo/cost_table.h"
#include "algo/row_counts.h"

namespace eaglecpp {

// n nodes and what they are worth in tokens: the sum of their chances less the price of the time they take
struct Offer {
    int n = 0;
    double value = 0.0;
};

// How often each batch size would have been the best of late if changing it were free.
class SizeHabit {
  public:
    void add(int n_rows);

    // What choosing n rows costs in changes of the size: the one it makes now, and the ones it makes likelier or less
    // likely later. A size that is seldom wanted costs a second change, back; a size that is wanted again and again
    // none, so that drafting does not stay at the size it happens to run for the sake of a change that pays only once
    // made. On average over the sizes wanted it is the number of changes.
    double n_changes(int n_rows, bool is_change) const { return is_change - share(n_rows) + mean_share_; }

  private:
    static constexpr int n_sizes = 65;
    static constexpr double rate = 0.1;
    double share(int n_rows) const { return n_rows < n_sizes ? shares_[n_rows] : 0.0; }

    std::array<double, n_sizes> shares_{};
    double mean_share_ = 0.0;  // of the sizes, each as often as it is wanted
    int n_seen_ = 0;
};

class Prices {
  public:
    // Costs of 0 to n_nodes_max nodes in a batch that has n_rows other rows. `ms_free`: what the first use of a size
    // may take without being charged. `allowed`: other numbers of rows are not for sale; null = all are. `n_buyers`: so
    // many conversations, this one included, take as many nodes each and share what they cost together.
    void set(const CostTable & table, const SizeHabit & habit, int n_rows, int n_nodes_max, double ms_free,
             const RowCounts * allowed = nullptr, int n_buyers = 1);

    int n_nodes_max() const { return (int)ms_.size() - 1; }

    // ms that n nodes add to a round that verifies none, changes of the size left out
    double ms(int n) const { return ms_[n]; }

    // the same with the changes it causes
    double ms_with_changes(int n) const { return ms_[n] + ms_changes_[n]; }

    // cheapest price of a node at any size
    double ms_per_node() const { return ms_per_node_; }

    // Best count for nodes with chances p[0..n), best first. `lambda`: tokens per ms that the time could earn
    // elsewhere; sizes that may add more than `ms_most` are out.
    Offer best(const std::vector<float> & p, double lambda, double ms_most) const;

    // the same, if a change of the size were free
    Offer best_settled(const std::vector<float> & p, double lambda, double ms_most) const;

  private:
    Offer best_of(const std::vector<float> & p, double lambda, double ms_most, double changes) const;

    std::vector<double> ms_{0.0};
    std::vector<double> ms_changes_{0.0};
    std::vector<double> ms_once_{0.0};  // charged beyond that: a change now, and the first use of the size
    double ms_per_node_ = 0.0;
};

}  // namespace eaglecpp
