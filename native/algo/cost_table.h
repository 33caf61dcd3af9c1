// SPDX-License-Identifier: MIT
// What a round costs on this machine with this model: verifying n rows, committing rows to the drafter, one drafter
// level, host work. Learned from the rounds themselves.
//
// The machine's speed (clock, temperature, other processes) is one factor, learned from verifications (StepCosts) and
// common to all times, so that a co-tenant spoils no shape. No clock inside: times are handed in, in milliseconds,
// and nonsense (not finite, not positive, absurdly long) is ignored.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "algo/step_costs.h"

namespace eaglecpp {

class CostTable {
  public:
    // a plain round of n_rows conversations was measured at this length
    bool knows_plain() const { return is_known(1); }

    // a round without drafting: n_rows roots and its host work
    double plain(int n_rows = 1) const {
        return slowdown() * std::min(verify_.ms(n_rows), verify_.least_ms(n_rows)) + plain_host();
    }

    // assumed price of n rows relative to one row, before anything is measured
    double prior_ratio(int n_rows) const { return verify_.prior_ratio(n_rows); }

    // host work of a plain round
    double plain_host() const { return slowdown() * host_plain_; }

    // verifying n rows
    double verify(int n_rows) const { return slowdown() * verify_.ms(n_rows); }

    // time for the drafter to commit n rows and give its first distribution
    double commit(int n_rows) const;

    // one more drafter level of n_rows rows
    double level(int n_rows) const;

    // host work of a drafting round beyond a plain round's
    double host() const { return slowdown() * std::max(0.0, host_draft_ - host_plain_); }

    // Most rows worth trying: sizes far above the measured ones have to wait until those in between are known.
    int n_rows_max() const;

    // Is verify(n_rows) a measurement rather than a guess?
    bool is_known(int n_rows) const { return verify_.n_samples(n_rows) > 0; }

    // mean |log residual| of recent verifications
    double noise() const { return verify_.noise(); }

    // How much longer than verify(n) the next verification of n rows may take: the first use of a size builds graphs.
    double first_use(int n_rows) const { return is_tried(n_rows) ? 0.0 : slowdown() * verify_.first_use_ms(); }

    // n rows were verified before in this process
    bool is_tried(int n_rows) const { return verify_.is_tried(n_rows); }

    // how much slower everything is now than when the prices were learned, as one factor
    double slowdown() const { return verify_.slowdown(); }

    // --- learning; times in ms -----------------------------------------------------------------------------------
    void learn_verify(int n_rows, double ms);
    void learn_commit(int n_rows, double ms);
    void learn_level(int n_rows, double ms);
    // what is left of a round's wall time after verification and drafting
    void learn_host(bool drafted, double ms);

    // True if the price of a plain round should be measured again, because the machine's speed or the conversation's
    // length has changed. Asking clears it.
    bool take_changed();

    // The machine may have changed since: the next samples set its speed, and a plain round should be measured.
    void expect_change() {
        verify_.expect_change();
        is_changed_ = true;
    }

    // --- persistence and reports ---------------------------------------------------------------------------------
    // from_text() keeps the old state and returns false if the text is damaged or of another key
    std::string to_text(const std::string & key) const;
    bool from_text(const std::string & text, const std::string & key);

    struct Point {
        int n_rows;
        double ms;
        double n_samples;  // 0: interpolated
    };
    // at the present length and speed
    std::vector<Point> verify_points(int n_rows_max) const { return points(verify_, n_rows_max); }
    std::vector<Point> commit_points(int n_rows_max) const { return points(commit_, n_rows_max); }
    std::vector<Point> level_points(int n_rows_max) const { return points(level_, n_rows_max); }

  private:
    std::vector<Point> points(const StepCosts & costs, int n_rows_max) const;
    double guess(double share, int n_rows, const StepCosts & costs) const;
    bool is_sane(double ms, double expected) const;

    StepCosts verify_{0.06, true}, commit_{0.06}, level_{0.1};
    double host_plain_ = 0.0, host_draft_ = 0.0;
    int n_host_plain_ = 0, n_host_draft_ = 0;
    bool is_changed_ = false;
};

}  // namespace eaglecpp
