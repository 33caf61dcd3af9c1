// SPDX-License-Identifier: MIT
// What rows of the coming batch cost, and how many of them are worth it.
#pragma once

#include <vector>

#include "algo/costs.h"

namespace eaglecpp {

// The unit is the time of a plain round. A node that is accepted with chance p, in a conversation that runs at s times
// plain speed, is worth p / s of them: what its token takes there. So the nodes of all conversations stand in one list.
class Market {
  public:
    // n nodes, and what they bring beyond their price
    struct Offer {
        int n = 0;
        double gain = 0.0;
    };

    // For 0 to n_max nodes beside `n_rows` other rows, in plain rounds of `round_ms`, of which each of `n_waiting`
    // conversations waits for them. `n_times`: 2 where accepted nodes have to be run again. `first_use`: what a number
    // of rows may cost besides when this process runs it for the first time.
    void open(const CostTable & costs, int n_rows, int n_max, double round_ms, int n_waiting, double n_times,
              double first_use);

    // The batch has n rows in any case: more are not for sale, fewer cost nothing.
    void fix_rows(int n);

    // Only numbers of rows whose bits are those of single rows, and the next such number where none of these is.
    void keep_exact(const RowCounts & exact, const CostTable & costs);

    int n_max() const { return (int)price_.size() - 1; }

    // of n nodes together; infinite where that many are not for sale
    double price(int n) const { return price_[n]; }

    // Best number of nodes with these worths, best first, that may cost no more than `budget` plain rounds. All numbers
    // are looked at: cost curves have cliffs, plateaus and dips, so the gain may fall and rise again.
    Offer best(const std::vector<float> & worth, double budget) const;

  private:
    double price_of(const CostTable & costs, int n) const;

    std::vector<double> price_{0.0};
    std::vector<double> once_{0.0};  // beyond that, of a first use
    int n_rows_ = 1;
    double round_ms_ = 1.0, per_ms_ = 1.0;
};

}  // namespace eaglecpp
