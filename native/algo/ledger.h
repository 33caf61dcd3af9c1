// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

namespace eaglecpp {

// The budget that keeps the promise "never slower". Its unit is the time of a target-only step. A round that commits n
// tokens earns (1 + allowance) * n and pays its measured time in this unit. A target-only round pays exactly 1, so the
// noise of its measured time does not change the balance. Drafting starts only if the balance covers the round's worst
// case. So the balance stays at or above zero, up to the error of the predicted time. Over any window of m tokens this
// means
//
//     time <= (1 + allowance) * m + cap        hence  speed / plain >= 1 / (1 + allowance + cap / m)
//
// for every acceptance model. With the defaults, the relative speed is at least 0.97 for every m >= 423. The cap
// prevents past gains from paying for a long loss later, unlike the running total of a conservative bandit.
class Ledger {
  public:
    struct Options {
        double allowance = 0.012;  // share of the target-only speed that trial drafts may cost
        double cap = 8.0;          // maximum balance, in target-only steps
        double start = 4.0;        // initial balance, in target-only steps, for learning
        double first_uses = 4.5;   // target-only steps granted once, for building graphs at first uses of batch sizes
    };

    Ledger() : Ledger(Options{}) {}
    explicit Ledger(const Options & options) : options_(options), balance_(options.start) {}

    double balance() const { return balance_; }

    // Part of Options::first_uses that rounds have not used yet, in target-only steps.
    double first_uses() const { return options_.first_uses; }

    // Returns true if the balance covers a round that gains nothing and costs `extra` target-only steps more than a
    // target-only round. If `extra` exceeds the cap, a full balance is enough.
    bool covers(double extra) const { return std::min(extra, options_.cap) <= balance_; }

    // Adds a round that committed `n_tokens` tokens per sequence and took the time of `cost` target-only rounds. If
    // this process runs the round's batch size for the first time, `first_use` is the unexpected part of `cost`.
    void settle(double n_tokens, double cost, double first_use = 0.0) {
        const double free = std::min(first_use, options_.first_uses);
        options_.first_uses -= free;
        balance_ = std::min(options_.cap, balance_ + (1.0 + options_.allowance) * n_tokens - cost + free);
    }

  private:
    Options options_;
    double balance_;
};

}  // namespace eaglecpp
