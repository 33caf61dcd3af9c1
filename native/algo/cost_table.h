// SPDX-License-Identifier: MIT
// What a round costs on this machine with this model: verifying n rows, committing rows to the drafter, one drafter
// level, host work. Learned from the rounds themselves.
//
// The machine's speed (clock, temperature, other processes) is one factor, learned from verifications (StepCosts) and
// common to all times, so that a co-tenant spoils no shape. Verification has a table per bucket of conversation length.
// No clock inside: times are handed in, in milliseconds, and nonsense (not finite, not positive, absurdly long) is
// ignored.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "algo/step_costs.h"

namespace eaglecpp {

class CostTable {
  public:
    CostTable();

    // Cells the target's cache holds; picks the shape. Cheap when it stays in its bucket.
    void set_kv(int n_kv);

    // a plain round of n_rows conversations was measured at this length
    bool knows_plain() const { return shape().n_samples(1) >= 1.0; }

    // A round without drafting: n_rows roots and its host work. The same kind of round comes before and after it, so
    // nothing is rebuilt.
    double plain(int n_rows = 1) const;

    // n rows against one before anything was measured
    double prior_ratio(int n_rows) const { return shape().prior_ratio(n_rows); }

    // host work of a plain round
    double plain_host() const { return slowdown() * host_plain_; }

    // verifying n rows in a round after one of the same size
    double settled(int n_rows) const { return slowdown() * shape().ms(n_rows); }

    // what a round takes longer if the one before it was of another size
    double change() const { return slowdown() * shape().change_ms(); }

    // the same for the next round, if that has n rows
    double change(int n_rows) const { return n_rows != last_rows_ ? change() : 0.0; }

    // verifying n rows in the next round
    double verify(int n_rows) const { return settled(n_rows) + change(n_rows); }

    // the drafter commits n rows and gives its first distribution
    double commit(int n_rows) const;

    // one more drafter level of n_rows rows
    double level(int n_rows) const;

    // host work of a drafting round beyond a plain round's
    double host() const { return slowdown() * std::max(0.0, host_draft_ - host_plain_); }

    // the first rounds are over, and n rows have not been measured well since
    bool wants_sample(int n_rows) const { return shape().is_warm() && shape().n_warm(n_rows) < 2; }

    // Rows worth trying: sizes far above the measured ones wait until the ones between are known.
    int n_rows_max() const;

    // Is verify(n_rows) a measurement rather than a guess?
    bool is_known(int n_rows) const { return shape().n_samples(n_rows) >= 1.0; }

    // mean |log residual| of the verifications of late
    double noise() const { return shape().noise(); }

    // what the next verification of n rows may take beyond verify(n): the first use of a size builds things
    double first_use(int n_rows) const { return is_tried(n_rows) ? 0.0 : slowdown() * shape().first_use_ms(); }

    // n rows were verified before in this process
    bool is_tried(int n_rows) const { return shape().is_tried(n_rows); }

    // at the present speed
    Growth growth() const { return {slowdown() * shape().growth().per_step, slowdown() * shape().growth().per_row}; }

    // common factor of all times now against when the shapes were learned
    double slowdown() const { return shape().slowdown(); }

    // --- learning; times in ms -----------------------------------------------------------------------------------
    void learn_verify(int n_rows, double ms);
    void learn_commit(int n_rows, double ms);
    void learn_level(int n_rows, double ms);
    // what is left of a round's wall time
    void learn_host(bool drafted, double ms);

    // The plain reference should be measured again: the machine or the conversation's length has changed. Asked once.
    bool take_changed();

    // The machine may be another one now: the next samples set its speed, and a plain round is wanted.
    void expect_change();

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
    std::vector<Point> verify_points(int n_rows_max) const { return points(shape(), n_rows_max); }
    std::vector<Point> commit_points(int n_rows_max) const { return points(commit_, n_rows_max); }
    std::vector<Point> level_points(int n_rows_max) const { return points(level_, n_rows_max); }

  private:
    static constexpr int n_kv_buckets = 8;  // up to 1k cells, 2k, 4k, ...

    const StepCosts & shape() const { return shapes_[kv_bucket_]; }
    std::vector<Point> points(const StepCosts & costs, int n_rows_max) const;
    double guess(double share, int n_rows, const StepCosts & costs) const;
    bool is_sane(double ms, double expected) const;

    std::array<StepCosts, n_kv_buckets> shapes_;
    int kv_bucket_ = 0;
    StepCosts commit_, level_;
    double host_plain_ = 0.0, host_draft_ = 0.0;
    int n_host_plain_ = 0, n_host_draft_ = 0;
    int last_rows_ = 0;
    bool is_changed_ = false;
};

}  // namespace eaglecpp
