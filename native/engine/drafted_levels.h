// SPDX-License-Identifier: MIT
// How many levels the drafts of one conversation have of late, and so how many the next one should ask for.
#pragma once

#include <algorithm>

namespace eaglecpp {

class DraftedLevels {
  public:
    double mean() const { return mean_; }

    // Where one pass gives several levels: the most that it should give, a power of two because each number is another
    // graph. Every level of a block costs a row of the output head, whether the planner goes that deep or not, and on a
    // CPU that may be more than half of the pass. So a round that used all it got doubles the number for the next, and
    // it is halved where twice what rounds have is less.
    int n_asked() const { return n_asked_; }

    // A round's draft had so many.
    void add(int n) {
        mean_ += rate * (n - mean_);
        if (n >= n_asked_) {
            n_asked_ = std::min(2 * n_asked_, n_asked_max);
        } else if (n_asked_ > 2 && 2.0 * (1.0 + std::max(mean_, (double)n)) < n_asked_) {
            n_asked_ /= 2;
        }
    }

  private:
    static constexpr double rate = 0.1;  // weight of a round in the mean
    static constexpr int n_asked_max = 1024;

    double mean_ = 2.0;
    int n_asked_ = 16;
};

}  // namespace eaglecpp
