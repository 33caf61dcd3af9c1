// SPDX-License-Identifier: MIT
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
#pragma once

#include <array>

namespace eaglecpp {

class StepCosts {
  public:
    static constexpr int n_buckets = 24;

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

    // mean |log residual| of recent samples
    double noise() const { return noise_; }

    // the least price of the larger sizes that were measured well; infinity if there is none
    double least_ms(int n_rows) const;

    // assumed price of n rows relative to one row, before anything is known
    double prior_ratio(int n_rows) const;

    // samples the price rests on; 0 = a guess
    int n_samples(int n_rows) const { return entries_[bucket_of(n_rows)].n_samples(); }

    // this size was run before in this process
    bool is_tried(int n_rows) const { return entries_[bucket_of(n_rows)].n_tried > 0; }

    // how much longer than the second use the first use of a size took recently
    double first_use_ms() const { return first_use_ms_; }

    // largest row count that was measured more than once, 0 if none
    int n_rows_measured() const;

    // one measurement
    void learn(int n_rows, double ms);

    // True if the machine was found to have changed its speed. Asking clears it.
    bool take_changed();

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
        int n = 0;                             // ever
        bool is_guessed = false;               // the first one was
        int n_odd = 0;                         // the last ones, far off the price
        int n_tried = 0;                       // in this process

        void restart(double ms, bool is_guess);
        void add(double ms);
        void scale(double factor);
        // A single first sample may include the building of graphs, so it does not yet outweigh a guess.
        int n_samples() const { return is_guessed && n <= 2 ? 0 : n; }
        double price() const;
    };

    double jump() const;
    void learn_first_use(const Entry & entry, double price, double ms);
    void learn_speed(double raw);
    void anchor(double raw);
    void guess_prices();
    void share_change(int bucket, double change);
    void doubt_prices();

    double slope_;
    bool has_slowdown_;
    std::array<Entry, n_buckets> entries_{};
    std::array<double, n_buckets> prices_{};
    std::array<double, n_buckets> believed_{};  // prices_, those that cannot be true replaced
    std::array<double, n_buckets> shares_{};    // of the last runs
    double slowdown_ = 1.0, noise_ = 0.05;
    double first_use_ms_ = 0.0, last_first_ms_ = 0.0;  // last_first_ms_: the last first use of a size
    int n_first_uses_ = 0;
    std::array<double, n_residuals> residuals_{};  // log(time / price), the slowdown in it
    int n_residuals_ = 0;
    int n_anchor_ = 0;  // samples still to come that set the slowdown outright
    bool is_changed_ = false;
};

}  // namespace eaglecpp
