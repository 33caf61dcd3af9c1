// SPDX-License-Identifier: MIT
// Learns how long rounds take on this machine with this model, from the rounds themselves. The classes have no clock:
// callers pass times in milliseconds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "algo/learned_state.h"

namespace eaglecpp {

// --- row counts -----------------------------------------------------------------------------------------------------

// Numbers of rows at which a batch is exact: each row of the batch has the same bits as in a batch of one row.
// Exactness is measured at a few numbers, because kernels change only at certain numbers (ggml's repacked products at 4
// rows, F32 products at 2). A number between two measured numbers counts as exact only if both are exact. A number
// above the largest measured number is never exact.
class RowCounts {
  public:
    // Makes an object without measurements, for which only a single row is exact.
    explicit RowCounts(bool is_complete = true) : is_complete(is_complete) {}

    void set(int n_rows, bool is_exact);

    bool allows(int n_rows) const;

    // Returns the largest exact number up to n_rows; 1 or more.
    int largest(int n_rows) const;

    // Returns the smallest exact number above n_rows, or 0.
    int next(int n_rows) const;

    // Returns true if every number of rows up to n_rows is exact.
    bool allows_all(int n_rows) const;

    // Returns true if there is an exact number in the range (n_above, n_max].
    bool allows_any(int n_above, int n_max) const { return largest(n_max) > n_above; }

    // Formats the exact numbers up to the largest measured number, for example "1-3, 8".
    std::string to_string() const;

    const std::vector<std::pair<int, bool>> & points() const { return points_; }

    bool is_complete;  // all numbers are measured that will be measured

  private:
    std::vector<std::pair<int, bool>> points_;  // pairs of a number of rows and whether it is exact, in ascending order
};

// --- median ---------------------------------------------------------------------------------------------------------

// Returns the lower median of the first n values, 1 <= n <= N.
template <size_t N>
double lower_median(std::array<double, N> values, int n) {
    for (int i = 1; i < n; ++i) {
        for (int j = i; j > 0 && values[j] < values[j - 1]; --j) std::swap(values[j], values[j - 1]);
    }
    return values[(n - 1) / 2];
}

// --- step costs -----------------------------------------------------------------------------------------------------

// Time of one kind of step as a function of its number of rows. Large numbers of rows share buckets, and each bucket
// learns separately. No line or power law is fitted, because real curves are staircases with cliffs and even dips: five
// rows can cost more than eight. So the price may fall as the number of rows grows.
//     time(n rows) = slowdown * price[n]
//
// A bucket's price is the median of its last samples, so a stall or the building of a graph does not change the price.
// A bucket without samples follows its measured neighbour along a prior curve. The prior curve assumes lower costs than
// known machines have, so that promising sizes are tried.
class StepCosts {
  public:
    static constexpr int n_buckets = 28;

    // slope: the prior curve is 1 + slope * (rows - 1)^0.8, in units of the price of one row. has_slowdown: the object
    // also learns the machine's current slowdown.
    explicit StepCosts(double slope, bool has_slowdown = false) : slope_(slope), has_slowdown_(has_slowdown) {}

    static int bucket_of(int n_rows);
    static int rows_of(int bucket);

    // Returns true if no step was measured yet.
    bool empty() const { return prices_[0] == 0.0; }

    // Returns the expected time of a step of n rows, without the machine's slowdown; 0 if no step was measured.
    double ms(int n_rows) const { return prices_[bucket_of(n_rows)]; }

    // Returns the current slowdown of the machine: the ratio of measured times to prices.
    double slowdown() const { return slowdown_; }

    // Returns the prior price of n rows relative to the price of one row.
    double prior_ratio(int n_rows) const;

    // Returns the number of samples for the price of n rows; 0 = the price is a guess.
    int n_samples(int n_rows) const { return entries_[bucket_of(n_rows)].n_samples(); }

    // Returns true if this process has run a step of n rows.
    bool is_tried(int n_rows) const { return entries_[bucket_of(n_rows)].n_tried > 0; }

    // The largest row count that was measured more than once, or 0.
    int n_rows_measured() const;

    // Adds a measured step.
    void learn(int n_rows, double ms);

    // Returns the price of a bucket for the saved state, without the slowdown; 0 = unknown.
    double saved_ms(int bucket) const { return entries_[bucket].n_samples() > 0 ? prices_[bucket] : 0.0; }

    // Sets prices of a saved state: pairs of a number of rows and ms. Ignores prices from a busy machine: more than
    // twice the time of smaller batches with the same rows, or more than 1.25 times the time of one larger batch. Two
    // rows of a target with experts can cost three times as much as one row.
    void set_saved(const std::vector<double> & saved);

  private:
    static constexpr int n_kept = 15;  // samples kept per bucket
    static constexpr int n_residuals = 5;

    struct Entry {
        std::array<double, n_kept> samples{};  // last samples, without the slowdown; the first may be a guess
        int n = 0;                             // samples so far, up to 2 * n_kept
        bool is_guessed = false;               // the first sample was a guess
        int n_outliers = 0;                    // number of consecutive samples far from the price
        int n_tried = 0;                       // number of samples in this process, up to n_settled

        void restart(double ms, bool is_guess);
        void add(double ms);
        // Number of measured samples. A single sample may include the time to build a graph, so a price from a guess
        // and one sample counts as a guess.
        int n_samples() const { return is_guessed && n <= 2 ? 0 : n; }
        double price() const;
    };

    double jump() const;
    void learn_speed(double raw);
    void guess_prices();
    void share_change(int bucket, double change);

    double slope_;
    bool has_slowdown_;
    std::array<Entry, n_buckets> entries_{};
    std::array<double, n_buckets> prices_{};
    std::array<double, n_buckets> shares_{};       // share of each bucket in the recent runs
    double slowdown_ = 1.0, noise_ = 0.05;         // noise_: mean |log residual| of recent samples
    std::array<double, n_residuals> residuals_{};  // log(time / price), including the slowdown
    int n_residuals_ = 0;
};

// --- cost table -----------------------------------------------------------------------------------------------------

// Times of the parts of a round on this machine with this model: verifying n rows, committing rows to the drafter, one
// draft step, and work on the host. The table learns these times from the rounds.
//
// The machine's speed (clock, temperature, other processes) is one factor common to all times. Verifications measure
// this factor (StepCosts), so other processes do not distort the curves. The class has no clock: callers pass times in
// milliseconds. Invalid times (not finite, not positive or absurdly long) are ignored.
class CostTable {
  public:
    // Returns true if the time of a target-only round of one row was measured.
    bool knows_target_only() const { return is_known(1); }

    // Returns the time of a target-only round of n_rows conversations, including the work on the host.
    double target_only(int n_rows = 1) const { return verify(n_rows) + target_only_host(); }

    // Returns the time of the host's work in a target-only round.
    double target_only_host() const { return slowdown() * host_target_only_; }

    // Returns the time to verify n rows.
    double verify(int n_rows) const { return slowdown() * verify_.ms(n_rows); }

    // Time for the drafter to commit n rows and compute its first distribution.
    double commit(int n_rows) const;

    // Returns the time of one more draft step with n_rows rows.
    double step(int n_rows) const;

    // Additional time of the host's work in a drafting round, compared with a target-only round.
    double host() const { return slowdown() * std::max(0.0, host_draft_ - host_target_only_); }

    // Returns the maximum number of rows to try. Before a much larger number of rows is tried, the numbers in between
    // must be measured.
    int n_rows_max() const;

    // Returns true if the time to verify n rows was measured rather than guessed.
    bool is_known(int n_rows) const { return verify_.n_samples(n_rows) > 0; }

    // Returns true if this process has verified n rows.
    bool is_tried(int n_rows) const { return verify_.is_tried(n_rows); }

    // Returns the current slowdown of the machine: the ratio of measured times to prices.
    double slowdown() const { return verify_.slowdown(); }

    // Extra time of the first batches after the batch size changed. These batches build the graph and, on a device,
    // capture it.
    double change_ms() const { return slowdown() * change_; }

    // --- learning; times in ms -----------------------------------------------------------------------------------
    void learn_verify(int n_rows, double ms);
    void learn_commit(int n_rows, double ms) { learn_drafter(commit_, n_rows, ms); }
    void learn_step(int n_rows, double ms) { learn_drafter(step_, n_rows, ms); }
    // Learns the time of the host's work: the part of a round's wall time that is not verification or drafting.
    void learn_host(bool drafted, double ms);

    // Sets the assumed time of a change of batch size. It is used until this time is measured.
    void assume_change(double ms) { change_ = ms; }

    // Number of slow batches after the batch size changed on a device. The first batch builds the graph, and the second
    // batch captures it.
    static constexpr int n_slow = 2;

    // Learns from the i-th consecutive batch of n_rows rows, counted from 1. The first n_first batches measure the time
    // of a change of batch size. The next batch measures the usual time of a batch of n_rows rows.
    void learn_alike(int n_first, int i, int n_rows, double ms);

    // --- persistence and reports ---------------------------------------------------------------------------------
    // Row counts and milliseconds, alternating. set_state() returns false and keeps the old state if `state` has the
    // wrong form.
    LearnedState state() const;
    bool set_state(const LearnedState & state);

    // Number of rows, milliseconds, and number of samples. With 0 samples the time is interpolated.
    using Point = std::tuple<int, double, int>;
    // Times to verify batches, at the machine's current slowdown and the current length of the text.
    std::vector<Point> verify_points(int n_rows_max) const { return points(verify_, n_rows_max); }
    std::vector<Point> commit_points(int n_rows_max) const { return points(commit_, n_rows_max); }
    std::vector<Point> step_points(int n_rows_max) const { return points(step_, n_rows_max); }

  private:
    std::vector<Point> points(const StepCosts & costs, int n_rows_max) const;
    double guess(double share, int n_rows, const StepCosts & costs) const;
    bool is_sane(double ms, double expected) const;
    void learn_drafter(StepCosts & costs, int n_rows, double ms);

    StepCosts verify_{0.06, true}, commit_{0.06}, step_{0.1};
    double host_target_only_ = 0.0, host_draft_ = 0.0;
    int n_host_target_only_ = 0, n_host_draft_ = 0;
    double change_ = 0.0;
    bool knows_change_ = false;
    double slow_ms_ = 0.0;  // time of the first batches since the batch size changed
};

}  // namespace eaglecpp
