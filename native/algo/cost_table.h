// SPDX-License-Identifier: MIT
// What a round costs on this machine with this model: verifying n rows, committing rows to the drafter, one drafter
// level, host work. Learned from the rounds themselves.
//
//     verify(n) = slowdown * (shape[n] + growth(n, length) + rebuild if n differs from the last round's rows)
//
// `shape` learns slowly and per size; `slowdown` is one fast factor for everything (clock, temperature, other
// processes) and jumps when the last five residuals agree that the machine changed, so that a co-tenant spoils neither
// the plain reference nor the shape. Shapes are kept per bucket of conversation length. No clock inside: times are
// handed in, in milliseconds, and nonsense (not finite, not positive, absurdly long) is ignored.
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

    // host work of a plain round
    double plain_host() const { return slowdown_ * host_plain_; }

    // verifying n rows in a round after one of the same size
    double settled(int n_rows) const { return slowdown_ * shape().ms(n_rows); }

    // what a round takes longer if the one before it was of another size
    double change() const { return slowdown_ * rebuild(); }

    // the same for the next round, if that has n rows
    double change(int n_rows) const { return n_rows != last_rows_ ? change() : 0.0; }

    // verifying n rows in the next round
    double verify(int n_rows) const { return settled(n_rows) + change(n_rows); }

    // the drafter commits n rows and gives its first distribution
    double commit(int n_rows) const;

    // one more drafter level of n_rows rows
    double level(int n_rows) const;

    // host work of a drafting round beyond a plain round's
    double host() const { return slowdown_ * std::max(0.0, host_draft_ - host_plain_); }

    // the first rounds are over, and n rows have not been measured well since
    bool wants_sample(int n_rows) const { return round_ > n_cold && !shape().is_trusted(n_rows); }

    // Rows worth trying: sizes far above the measured ones wait until the ones between are known.
    int n_rows_max() const;

    // Is verify(n_rows) a measurement rather than a guess?
    bool is_known(int n_rows) const { return shape().n_samples(n_rows) >= 1.0; }

    // mean |log residual| of the verifications of late
    double noise() const { return mean_error_; }

    // what the next verification of n rows may take beyond verify(n): the first use of a size builds things
    double first_use(int n_rows) const { return is_tried(n_rows) ? 0.0 : slowdown_ * shape().first_use_ms(); }

    // n rows were verified before in this process
    bool is_tried(int n_rows) const { return shape().is_tried(n_rows); }

    // at the present speed
    Growth growth() const { return {slowdown_ * growth_.per_step, slowdown_ * growth_.per_row}; }

    // common factor of all times now against when the shapes were learned
    double slowdown() const { return slowdown_; }

    // --- learning; times in ms -----------------------------------------------------------------------------------
    void learn_verify(int n_rows, double ms);
    void learn_commit(int n_rows, double ms);
    void learn_level(int n_rows, double ms);
    // what is left of a round's wall time
    void learn_host(bool drafted, double ms);

    // The plain reference should be measured again: the machine or the conversation's length has changed. Asked once.
    bool take_changed();

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
    static constexpr int n_residuals = 5;
    static constexpr int n_cold = 48;  // rounds that are not like the later ones

    const StepCosts & shape() const { return shapes_[kv_bucket_]; }
    std::vector<Point> points(const StepCosts & costs, int n_rows_max) const;
    double guess(double share, int n_rows, const StepCosts & costs) const;
    double rebuild() const;
    void learn_rebuild(double sample_ms, double shape_ms);
    void learn_growth(int n_rows, double error_ms, double shape_ms);
    void learn_slowdown(double raw, double trust);
    void anchor(double raw);
    bool is_sane(double ms, double expected) const;

    std::array<StepCosts, n_kv_buckets> shapes_;
    int kv_bucket_ = 0;
    StepCosts commit_, level_;
    double host_plain_ = 0.0, host_draft_ = 0.0;
    int n_host_plain_ = 0, n_host_draft_ = 0;
    double rebuild_raw_ = 0.0;  // may be below zero: noise
    int n_rebuilds_ = 0;        // samples of it in this process
    double rebuilt_ms_ = 0.0;   // the last round, if it changed the size; else 0
    Growth growth_;
    std::array<double, 3> growth_variance_{};  // per step, both, per row
    double slowdown_ = 1.0;
    int last_rows_ = 0;
    long round_ = 0;

    std::array<double, n_residuals> residuals_{};  // log(time / shape), without the slowdown
    int n_residuals_ = 0;
    int n_anchor_ = 0;  // samples still to come that set the slowdown outright
    double mean_error_ = 0.05;
    bool is_changed_ = false;
};

}  // namespace eaglecpp
