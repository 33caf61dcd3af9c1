// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

namespace eaglecpp {

// The account that keeps the promise "never slower". Its unit is the plain step: a round that commits n tokens earns
// (1 + allowance) * n and pays what it took; plain rounds pay exactly 1, so their noise neither fills nor drains it.
// Drafting may start only while the balance covers the round's worst case, so the balance stays at or above zero up to
// the error of the predicted time, and over any window of m tokens
//
//     time <= (1 + allowance) * m + cap        hence  speed / plain >= 1 / (1 + allowance + cap / m)
//
// whatever the acceptance model believes: 0.97 for every m >= 423 with the defaults. The cap is what keeps past gains
// from paying for a long loss later; it is the difference from a conservative bandit's running total.
class Ledger {
  public:
    struct Options {
        double allowance = 0.012;  // share of plain speed that may be spent on trying
        double cap = 8.0;          // plain steps
        double start = 4.0;        // plain steps: something to learn with
        double first_uses = 4.5;   // plain steps, granted once: for building graphs at the first use of a size
    };

    Ledger() : Ledger(Options{}) {}
    explicit Ledger(const Options & options) : options_(options), balance_(options.start) {}

    double balance() const { return balance_; }

    // Remainder of Options::first_uses.
    double first_uses() const { return options_.first_uses; }

    // May a round be started that might cost `extra` plain steps more than a plain round and gain nothing?
    // Of what is more than can be saved, all that can be has to be there.
    bool covers(double extra) const { return std::min(extra, options_.cap) <= balance_; }

    // A round that committed `n_tokens` tokens per sequence in the time of `cost` plain rounds. `first_use` is the part
    // of `cost` that exceeds what such a round should take and may be due to the first use of a size.
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
