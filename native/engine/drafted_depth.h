// SPDX-License-Identifier: MIT
// Learns how many draft steps the rounds of one conversation use, and chooses the number to request next.
#pragma once

#include <algorithm>

namespace eaglecpp {

class DraftedDepth {
  public:
    double mean() const { return mean_; }

    // Number of draft steps to request from a drafter that gives several steps in one pass. It is a power of two,
    // because each number needs a separate graph. A round that uses all steps doubles the number for the next round. If
    // the number is more than twice the mean number of used steps, it is halved. Unused steps are not free: each step
    // of a block costs a row of the output head. On a CPU this row can cost more than half of the pass.
    int n_requested() const { return n_requested_; }

    // Adds the number of draft steps that a round used.
    void add(int n) {
        mean_ += rate * (n - mean_);
        if (n >= n_requested_) {
            n_requested_ = std::min(2 * n_requested_, n_requested_max);
        } else if (n_requested_ > 2 && 2.0 * (1.0 + std::max(mean_, (double)n)) < n_requested_) {
            n_requested_ /= 2;
        }
    }

  private:
    static constexpr double rate = 0.1;  // weight of a round in the mean
    static constexpr int n_requested_max = 1024;

    double mean_ = 2.0;
    int n_requested_ = 16;
};

}  // namespace eaglecpp
