// SPDX-License-Identifier: MIT
// What rounds cost on this machine with this model, learned from the rounds themselves.
// No clock inside: times are handed in, in milliseconds.
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

// The numbers of rows for which a row of a batch has the same bits as it has alone ("exact"). Kernels change at certain
// numbers (ggml's repacked products from 4 rows on, F32 products from 2), so exactness is measured at some of them; a
// number between two measured ones counts as exact only if both are, one beyond the largest never does.
class RowCounts {
  public:
    // nothing measured: one row alone is exact
    RowCounts() = default;

    void set(int n_rows, bool is_exact);

    bool allows(int n_rows) const;

    // the largest exact number not above n_rows, at least 1
    int largest(int n_rows) const;

    // the smallest exact number above n_rows, 0 if there is none
    int next(int n_rows) const;

    // every number up to n_rows is exact
    bool allows_all(int n_rows) const;

    // an exact number in (n_above, n_max] exists
    bool allows_any(int n_above, int n_max) const { return largest(n_max) > n_above; }

    // "1-3, 8" up to the largest that was measured
    std::string to_string() const;

    const std::vector<std::pair<int, bool>> & points() const { return points_; }

  private:
    std::vector<std::pair<int, bool>> points_;  // by number of rows
};

// --- median ---------------------------------------------------------------------------------------------------------

// The lower median of the first n values, 1 <= n <= N.
template <size_t N>
double lower_median(std::array<double, N> values, int n) {
    for (int i = 1; i < n; ++i) {
        for (int j = i; j > 0 && values[j] < values[j - 1]; --j) std::swap(values[j], values[j - 1]);
    }
    return values[(n - 1) / 2];
}

// --- step costs -----------------------------------------------------------------------------------------------------

// Time of one kind of step over the number of rows it runs. Row counts share a bucket where they are far apart, and
// every bucket learns for itself: real curves are staircases with cliffs and even dips (five rows can cost more than
// eight), so no line or power law is fitted and nothing is forced to rise.
//
//     time(n rows) = slowdown * price[n]
//
// A price is the median of a size's last samples, so that neither the building of a graph nor a stall sets it. Sizes
// that nobody ran follow their measured neighbours along a prior curve on the cheap side of known machines, so that a
// size that might pay is tried. A price that another size proves wrong is not believed: a size that was only run while
// something else kept the machine busy would else look too expensive to be tried ever again.
class StepCosts {
  public:
    static constexpr int n_buckets = 28;

    // `slope`: the prior curve is 1 + slope * (rows - 1)^0.8; `has_slowdown`: the machine's speed is learned, too
    explicit StepCosts(double slope, bool has_slowdown = false) : slope_(slope), has_slowdown_(has_slowdown) {}

    static int bucket_of(int n_rows);
    static int rows_of(int bucket);

    // nothing was measured yet
    bool empty() const { return prices_[0] == 0.0; }

    // expected time without the slowdown; 0 while nothing was measured
    double ms(int n_rows) const { return believed_[bucket_of(n_rows)]; }

    // how much slower everything is now than when the prices were learned, as one factor
    double slowdown() const { return slowdown_; }

    // the least price of the larger sizes that were measured well; infinity if there is none
    double least_ms(int n_rows) const;

    // assumed price of n rows relative to one row, before anything is known
    double prior_ratio(int n_rows) const;

    // samples the price rests on; 0 = a guess
    int n_samples(int n_rows) const { return entries_[bucket_of(n_rows)].n_samples(); }

    // this size was run before in this process
    bool is_tried(int n_rows) const { return entries_[bucket_of(n_rows)].n_tried > 0; }

    // largest row count that was measured more than once, 0 if none
    int n_rows_measured() const;

    // one measurement
    void learn(int n_rows, double ms);

    // True if the machine was found to have changed its speed. Asking clears it.
    bool take_changed() { return std::exchange(is_changed_, false); }

    // The first samples to come set the slowdown: the machine may have changed since.
    void expect_change() { n_anchor_ = has_slowdown_ ? n_residuals : 0; }

    // (de)serialisation, without the slowdown; 0 = unknown
    double saved_ms(int bucket) const { return entries_[bucket].n_samples() > 0 ? believed_[bucket] : 0.0; }
    void set_saved(int bucket, double ms);

  private:
    static constexpr int n_kept = 15;  // samples of a size
    static constexpr int n_residuals = 5;

    struct Entry {
        std::array<double, n_kept> samples{};  // without the slowdown, the last ones; the first may be a guess
        int n = 0;                             // ever, up to 2 * n_kept
        bool is_guessed = false;               // the first one was
        int n_outliers = 0;                    // the last ones, far off the price
        int n_tried = 0;                       // in this process

        void restart(double ms, bool is_guess);
        void add(double ms);
        // A single first sample may include the building of graphs, so it does not yet outweigh a guess.
        int n_samples() const { return is_guessed && n <= 2 ? 0 : n; }
        double price() const;
    };

    double jump() const;
    void learn_speed(double raw);
    void anchor(double raw);
    void guess_prices();
    void share_change(int bucket, double change);
    void doubt_prices();

    double slope_;
    bool has_slowdown_;
    std::array<Entry, n_buckets> entries_{};
    std::array<double, n_buckets> prices_{};
    std::array<double, n_buckets> believed_{};     // prices_, those that cannot be true replaced
    std::array<double, n_buckets> shares_{};       // of the last runs
    double slowdown_ = 1.0, noise_ = 0.05;         // of recent samples: mean |log residual|
    std::array<double, n_residuals> residuals_{};  // log(time / price), the slowdown in it
    int n_residuals_ = 0;
    int n_anchor_ = 0;  // samples still to come that set the slowdown outright
    bool is_changed_ = false;
};

// --- cost table -----------------------------------------------------------------------------------------------------

// What a round costs on this machine with this model: verifying n rows, committing rows to the drafter, one drafter
// level, host work. Learned from the rounds themselves.
//
// The machine's speed (clock, temperature, other processes) is one factor, learned from verifications (StepCosts) and
// common to all times, so that a co-tenant spoils no shape. No clock inside: times are handed in, in milliseconds,
// and nonsense (not finite, not positive, absurdly long) is ignored.
class CostTable {
  public:
    // a plain round of n_rows conversations was measured at this length
    bool knows_plain() const { return is_known(1); }

    // a round without drafting: n_rows roots and its host work
    double plain(int n_rows = 1) const {
        return slowdown() * std::min(verify_.ms(n_rows), verify_.least_ms(n_rows)) + plain_host();
    }

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

    // n rows were verified before in this process
    bool is_tried(int n_rows) const { return verify_.is_tried(n_rows); }

    // how much slower everything is now than when the prices were learned, as one factor
    double slowdown() const { return verify_.slowdown(); }

    // Extra time of the first batches after the batch size changed: the graph is built, and on a device captured.
    double change_ms() const { return slowdown() * change_; }

    // --- learning; times in ms -----------------------------------------------------------------------------------
    void learn_verify(int n_rows, double ms);
    void learn_commit(int n_rows, double ms) { learn_drafter(commit_, n_rows, ms); }
    void learn_level(int n_rows, double ms) { learn_drafter(level_, n_rows, ms); }
    // what is left of a round's wall time after verification and drafting
    void learn_host(bool drafted, double ms);

    // The price of a change of size before one is measured.
    void assume_change(double ms) { change_ = ms; }

    // Batches that take longer after a change of size on a device: it builds the graph, and captures it while it runs
    // the second one.
    static constexpr int n_slow = 2;

    // The i-th batch in a row of n_rows rows, from 1. The first n_first measure a change of size, as soon as the next
    // one measures what they should have taken.
    void learn_alike(int n_first, int i, int n_rows, double ms);

    // True if the price of a plain round should be measured again, because the machine's speed or the conversation's
    // length has changed. Asking clears it.
    bool take_changed();

    // The machine may have changed since: the next samples set its speed, and a plain round should be measured.
    void expect_change() {
        verify_.expect_change();
        is_changed_ = true;
    }

    // --- persistence and reports ---------------------------------------------------------------------------------
    // Rows and milliseconds in turn. set_state() keeps the old one and returns false if `state` does not fit.
    LearnedState state() const;
    bool set_state(const LearnedState & state);

    // rows, milliseconds, and samples they rest on, 0 = interpolated
    using Point = std::tuple<int, double, int>;
    // at the present length and speed
    std::vector<Point> verify_points(int n_rows_max) const { return points(verify_, n_rows_max); }
    std::vector<Point> commit_points(int n_rows_max) const { return points(commit_, n_rows_max); }
    std::vector<Point> level_points(int n_rows_max) const { return points(level_, n_rows_max); }

  private:
    std::vector<Point> points(const StepCosts & costs, int n_rows_max) const;
    double guess(double share, int n_rows, const StepCosts & costs) const;
    bool is_sane(double ms, double expected) const;
    void learn_drafter(StepCosts & costs, int n_rows, double ms);

    StepCosts verify_{0.06, true}, commit_{0.06}, level_{0.1};
    double host_plain_ = 0.0, host_draft_ = 0.0;
    int n_host_plain_ = 0, n_host_draft_ = 0;
    double change_ = 0.0;
    int n_changes_ = 0;
    double slow_ms_ = 0.0;  // of the first batches of the present size
    bool is_changed_ = false;
};

}  // namespace eaglecpp
