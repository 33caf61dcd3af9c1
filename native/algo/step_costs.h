// SPDX-License-Identifier: MIT
// Time of one kind of step over the number of rows it runs. Row counts share a bucket where they are far apart, and
// every bucket learns for itself: real curves are staircases with cliffs and even dips (five rows can cost more than
// eight), so no line or power law is fitted and nothing is forced to rise.
//
//     time(n rows, length) = slowdown * (shape[n] + growth(n, length) + change, if the size is not the last round's)
//
// All of it is one state with one covariance, an extended Kalman filter: whether a round that took longer than expected
// means a slower machine, a more expensive size, or a longer conversation is settled by what is uncertain and by the
// rounds of other sizes that follow. Sizes are tied to their neighbours along a prior curve that is on the cheap side
// of known machines, and untried ones are priced a little below what is expected, so that a size that might pay is
// tried.
#pragma once

#include <array>

namespace eaglecpp {

// What one more cell in the cache adds to a step: per step (K/V read once) and per row (attention computed).
struct Growth {
    double per_step = 0.0, per_row = 0.0;  // ms per cell
};

class StepCosts {
  public:
    static constexpr int n_buckets = 24;
    static constexpr int n_first_samples = 5;

    // `slope`: the prior curve is 1 + slope * (rows - 1)^0.8; `has_slowdown`: the machine's speed is learned, too
    explicit StepCosts(double slope, bool has_slowdown = false);

    static int bucket_of(int n_rows);
    static int rows_of(int bucket);

    // the length that prices are for, in cells
    void set_kv(double n_kv);

    // nothing was measured yet
    bool empty() const { return unit_ == 0.0; }

    // Expected times without the slowdown: n rows, 0 while nothing was measured; and what a change of the size adds.
    double ms(int n_rows) const { return predicted_[bucket_of(n_rows)]; }
    double change_ms() const { return unit_ * x_[change]; }
    Growth growth() const { return {unit_ * x_[per_step] / kv_unit, unit_ * x_[per_row] / kv_unit}; }

    // common factor of all times now against when the shapes were learned
    double slowdown() const { return slowdown_; }

    // mean |log residual| of late
    double noise() const { return noise_; }

    // least time of the well measured sizes above n rows; infinite if there are none
    double least_ms(int n_rows) const;

    // prior time of n rows relative to one row
    double prior_ratio(int n_rows) const;

    // samples behind the price of this size; 0 = a guess
    double n_samples(int n_rows) const { return entries_[bucket_of(n_rows)].count; }

    // this size was run before in this process
    bool is_tried(int n_rows) const { return entries_[bucket_of(n_rows)].n_first > 0; }

    // the first rounds of the process are over
    bool is_warm() const { return round_ > n_cold; }

    // samples of this size since then
    int n_warm(int n_rows) const { return entries_[bucket_of(n_rows)].n_warm; }

    // what the first use of a size took beyond the second, of late
    double first_use_ms() const { return first_use_ms_; }

    // largest row count that was measured more than once, 0 if none
    int n_rows_measured() const;

    // One measurement. The first ones of a size are believed with care: the first may include building graphs and
    // loading kernels, any may be stalled. `is_changed`: the round before had another size.
    void learn(int n_rows, double ms, bool is_changed = false);

    // The machine was found to have changed its speed. Asked once.
    bool take_changed();

    // The first samples to come set the slowdown: the machine may have changed since.
    void expect_change();

    // Another table's prices as guesses that one sample each may overrule; its slowdown.
    void assume(const StepCosts & other);
    void assume_slowdown(const StepCosts & other);

    // (de)serialisation: times at reference_kv()
    double reference_kv() const { return kv_ref_; }
    double reference_ms(int bucket) const;
    void set_entry(int bucket, double ms, double n_kv);
    void set_added(double change_ms, const Growth & growth);

  private:
    // what is learned
    static constexpr int slow = n_buckets, change = slow + 1, per_step = slow + 2, per_row = slow + 3;
    static constexpr int n_states = slow + 4;
    static constexpr int n_cold = 48;
    static constexpr double kv_unit = 1000.0;
    using Vector = std::array<double, n_states>;

    struct Entry {
        double count = 0.0;  // samples it rests on; 0 = unknown
        long round = 0;      // of the last sample
        // The first samples in this process, as log shapes: their lower median is what counts, so that neither the
        // building of a graph nor a stall sets the price.
        std::array<double, n_first_samples> first{};
        int n_first = 0;
        int n_warm = 0;  // samples after the first rounds of the process
    };

    // A step as the state expects it, and the derivatives of the log of its time.
    struct View {
        int bucket;
        double log_time;  // in units
        double shape, slow, change, per_step, per_row;
    };

    double doubt(int bucket) const;
    void begin(int bucket, double ms);
    View view(int bucket, bool is_changed) const;
    double added(int bucket, bool is_changed) const;
    double first_error(int bucket, double log_time, bool is_changed);
    void learn_first_use(double ms);
    double jump() const;
    void learn_speed(double raw);
    void anchor(double raw);
    void drift();
    void update(const View & view, double error, double variance, double n_sd);
    void forget();
    void refresh();

    double slope_;
    bool has_slowdown_;
    double unit_ = 0.0;  // ms; of the state
    double kv_ref_ = 0.0, n_kv_ = 0.0;
    Vector x_{};
    std::array<Vector, n_states> p_{};
    std::array<Entry, n_buckets> entries_{};
    std::array<double, n_buckets> predicted_{};
    double slowdown_ = 1.0;
    double noise_ = 0.05;
    long round_ = 0;
    double first_use_ms_ = 0.0;
    int n_first_uses_ = 0;

    static constexpr int n_residuals = 5;
    std::array<double, n_residuals> residuals_{};  // log(time / shape), without the slowdown
    int n_residuals_ = 0;
    int n_anchor_ = 0;  // samples still to come that set the slowdown outright
    bool is_changed_ = false;
};

}  // namespace eaglecpp
