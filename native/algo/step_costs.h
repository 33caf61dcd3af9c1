// SPDX-License-Identifier: MIT
// Time of one kind of step over the number of rows it runs. Row counts share a bucket where they are far apart, and
// every bucket learns for itself: real curves are staircases with cliffs and even dips (five rows can cost more than
// eight), so no line or power law is fitted and nothing is forced to rise.
//
// Sizes never tried are priced from their measured neighbours along a prior curve that is on the cheap side of known
// machines: a size that might pay gets tried, and two tries later its price is known. An entry that is not confirmed
// for long is forgotten sooner the fewer samples it rests on, so that one stall cannot ban a size for good.
//
// Attention makes every row dearer as the conversation grows. An entry remembers the length it was measured at, and
// prices are for the present one.
#pragma once

#include <array>

namespace eaglecpp {

// What one more cell in the cache adds to a step: per step (K/V read once) and per row (attention computed).
struct Growth {
    double per_step = 0.0, per_row = 0.0;  // ms per cell

    double ms(double n_cells, int n_rows) const { return n_cells * (per_step + per_row * n_rows); }
};

class StepCosts {
  public:
    static constexpr int n_buckets = 24;
    static constexpr int n_first_samples = 5;

    // `slope`: the prior curve is 1 + slope * (rows - 1)^0.8
    explicit StepCosts(double slope);

    static int bucket_of(int n_rows);
    static int rows_of(int bucket);

    // the length and the growth that prices are for
    void set_kv(double n_kv, const Growth & growth);

    // cells that the cache has now beyond those at which n rows were measured, on average
    double cells_beyond(int n_rows) const { return n_kv_ - entries_[bucket_of(n_rows)].n_kv; }

    // nothing was measured yet
    bool empty() const { return n_known_ == 0; }

    // expected time of n rows; 0 while nothing was measured
    double ms(int n_rows) const { return predicted_[bucket_of(n_rows)]; }

    // least time of the well measured sizes above n rows; infinite if there are none
    double least_ms(int n_rows) const;

    // prior time of n rows relative to one row
    double prior_ratio(int n_rows) const;

    // samples behind the price of this size; 0 = a guess
    double n_samples(int n_rows) const { return entries_[bucket_of(n_rows)].count; }

    // its price rests on enough samples of this process that later ones will be like
    bool is_trusted(int n_rows) const { return entries_[bucket_of(n_rows)].trust >= 1.0; }

    // this size was run before in this process
    bool is_tried(int n_rows) const { return entries_[bucket_of(n_rows)].n_first > 0; }

    // what the first use of a size took beyond the second, of late
    double first_use_ms() const { return first_use_ms_; }

    // largest row count that was measured more than once, 0 if none
    int n_rows_measured() const;

    // One measurement. The first ones of a size are believed with care: the first may include building graphs and
    // loading kernels, any may be stalled. `trust`: less than 1 for samples that later ones may not be like.
    void learn(int n_rows, double ms, long round, double trust = 1.0);

    // forgets what was not confirmed for long
    void forget(long round);

    // Another table's prices as guesses that one sample each may overrule.
    void assume(const StepCosts & other);

    // (de)serialisation
    struct Entry {
        double log_ms = 0.0;
        double n_kv = 0.0;   // cells in the cache, mean over the samples
        double count = 0.0;  // samples it rests on; 0 = unknown
        double trust = 0.0;  // 1: a price far above what its neighbours suggest is believed
        long round = 0;      // of the last sample
        // The first samples in this process: their lower median is what counts, so that neither the building of a graph
        // nor a stall sets the price.
        std::array<double, n_first_samples> first{};
        int n_first = 0;
    };
    const Entry & entry(int bucket) const { return entries_[bucket]; }
    void set_entry(int bucket, double ms, double n_kv);

  private:
    void learn_first(int bucket, double sample);
    void learn_first_use(double ms);
    double moved(double log_ms, double n_cells, int n_rows) const;
    double log_ms_now(int bucket) const;
    void refresh();
    void doubt();

    double slope_;
    double n_kv_ = 0.0;
    Growth growth_;
    int n_known_ = 0;
    double first_use_ms_ = 0.0;
    int n_first_uses_ = 0;
    std::array<Entry, n_buckets> entries_{};
    std::array<double, n_buckets> predicted_{};
};

}  // namespace eaglecpp
