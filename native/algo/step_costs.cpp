// SPDX-License-Identifier: MIT
#include "algo/step_costs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "algo/median.h"

namespace eaglecpp {

namespace {
constexpr std::array<int, StepCosts::n_buckets> bucket_rows = {1,  2,  3,  4,  5,  6,  7,  8,   10,  12,  14,  16,
                                                               20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1 << 20};
constexpr double n_trusted = 2.0;  // samples that are believed without a doubt
constexpr double rise_kept = 0.3;
constexpr int n_direct = 65;

std::array<signed char, n_direct> make_direct() {
    std::array<signed char, n_direct> out{};
    int b = 0;
    for (int n = 0; n < n_direct; ++n) {
        while (bucket_rows[b] < n) ++b;
        out[n] = (signed char)b;
    }
    return out;
}
const std::array<signed char, n_direct> direct = make_direct();

// Samples are noisy and sometimes stalled: a step in the log is clipped, never dropped, for a dropped one would keep a
// wrong entry wrong.
double clipped(double step, double count) {
    const double most = count < 4.0 ? 0.7 : 0.25;
    return std::clamp(step, -most, most);
}
}  // namespace

StepCosts::StepCosts(double slope) : slope_(slope) {}

int StepCosts::bucket_of(int n_rows) {
    if (n_rows < n_direct) return direct[std::max(n_rows, 0)];
    return (int)(std::lower_bound(bucket_rows.begin(), bucket_rows.end() - 1, n_rows) - bucket_rows.begin());
}

int StepCosts::rows_of(int bucket) {
    return bucket_rows[bucket];
}

double StepCosts::prior_ratio(int n_rows) const {
    return 1.0 + slope_ * std::pow((double)std::max(n_rows - 1, 0), 0.8);
}

double StepCosts::least_ms(int n_rows) const {
    double least = std::numeric_limits<double>::infinity();
    for (int b = bucket_of(n_rows) + 1; b < n_buckets; ++b) {
        if (entries_[b].count >= 3.0) least = std::min(least, predicted_[b]);
    }
    return least;
}

int StepCosts::n_rows_measured() const {
    for (int b = n_buckets - 1; b >= 0; --b) {
        if (entries_[b].count >= 1.0) return bucket_rows[b];
    }
    return 0;
}

void StepCosts::set_kv(double n_kv, const Growth & growth) {
    if (n_kv == n_kv_ && growth.per_step == growth_.per_step && growth.per_row == growth_.per_row) return;
    n_kv_ = n_kv;
    growth_ = growth;
    refresh();
}

// A time at another length. However wrong the growth may be, it changes a time only so much.
double StepCosts::moved(double log_ms, double n_cells, int n_rows) const {
    const double ms = std::exp(log_ms);
    return std::log(std::clamp(ms + growth_.ms(n_cells, n_rows), 0.5 * ms, 2.0 * ms));
}

double StepCosts::log_ms_now(int bucket) const {
    const Entry & e = entries_[bucket];
    return moved(e.log_ms, n_kv_ - e.n_kv, bucket_rows[bucket]);
}

void StepCosts::learn(int n_rows, double ms, long round, double trust) {
    const int b = bucket_of(n_rows);
    Entry & e = entries_[b];
    const double sample = std::log(ms);
    e.round = round;
    e.trust = std::min(e.trust + trust / n_trusted, 1.0);
    if (e.n_first < n_first_samples) {
        learn_first(b, sample);
    } else {
        // the means of time and length, so that the line of growth goes through both
        const double rate = std::max(0.012, 1.0 / (e.count + 1.0)), now = log_ms_now(b);
        e.n_kv += rate * (n_kv_ - e.n_kv);
        e.log_ms = moved(now + rate * clipped(sample - now, e.count), e.n_kv - n_kv_, bucket_rows[b]);
        e.count = std::min(e.count + 1.0, 1000.0);
    }
    refresh();
}

// A guess or an entry from disk (count 1) stands against a slow first sample: a size that looked dear the first time it
// ran, for the graphs that had to be built, would never be tried again.
void StepCosts::learn_first(int bucket, double sample) {
    Entry & e = entries_[bucket];
    const double predicted = predicted_[bucket];
    const bool is_guess = e.count < 1.0 && e.n_first == 0;
    if (is_guess) e.n_kv = n_kv_;
    const double n_cells = e.n_kv - n_kv_;
    e.first[e.n_first++] = moved(sample, n_cells, bucket_rows[bucket]);
    if (e.n_first == 1) {
        const double most = predicted > 0.0 ? std::log((is_guess ? 1.0 : 1.1) * predicted) : sample;
        e.log_ms = moved(std::min(sample, most), n_cells, bucket_rows[bucket]);
        e.count = is_guess ? 0.5 : 1.0;
        if (!is_guess) learn_first_use(std::exp(sample) - predicted);
        return;
    }
    if (e.n_first == 2 && e.count < 1.0) learn_first_use(std::exp(e.first[0]) - std::exp(e.first[1]));
    e.log_ms = lower_median(e.first, e.n_first);
    e.count = e.n_first - 1;
}

void StepCosts::learn_first_use(double ms) {
    first_use_ms_ += std::max(0.3, 1.0 / ++n_first_uses_) * (std::max(0.0, ms) - first_use_ms_);
}

void StepCosts::forget(long round) {
    bool is_changed = false;
    for (int b = 1; b < n_buckets; ++b) {
        Entry & e = entries_[b];
        const long patience = e.n_first == 0 ? 300 : 2000 + 1000 * (long)std::min(e.count, 32.0);
        if (e.count == 0.0 || round - e.round <= patience) continue;
        e.count = e.trust = 0.0;
        e.n_first = 0;
        is_changed = true;
    }
    if (is_changed) refresh();
}

void StepCosts::assume(const StepCosts & other) {
    n_kv_ = other.n_kv_;
    growth_ = other.growth_;
    for (int b = 0; b < n_buckets; ++b) {
        entries_[b] = other.entries_[b];
        entries_[b].count = std::min(entries_[b].count, 1.0);
        entries_[b].n_first = 0;
    }
    refresh();
}

void StepCosts::set_entry(int bucket, double ms, double n_kv) {
    entries_[bucket].log_ms = std::log(ms);
    entries_[bucket].n_kv = n_kv;
    entries_[bucket].count = 1.0;
    refresh();
}

// Between measured sizes the deviation from the prior curve is interpolated over log(rows); outside them it is kept.
void StepCosts::refresh() {
    int lowest = -1, below = -1;
    n_known_ = 0;
    std::array<double, n_buckets> log_ms{};
    for (int b = 0; b < n_buckets; ++b) {
        if (entries_[b].count == 0.0) continue;
        log_ms[b] = log_ms_now(b);
        ++n_known_;
    }
    if (n_known_ == 0) {
        predicted_.fill(0.0);
        return;
    }
    const auto deviation = [&](int b) { return log_ms[b] - std::log(prior_ratio(bucket_rows[b])); };
    int above = 0;
    for (int b = 0; b < n_buckets; ++b) {
        if (entries_[b].count > 0.0) {
            below = b;
            if (lowest < 0) lowest = b;
            predicted_[b] = std::exp(log_ms[b]);
            continue;
        }
        above = std::max(above, b);
        while (above < n_buckets && entries_[above].count == 0.0) ++above;
        double d;
        if (below < 0) {
            d = deviation(above);
        } else if (above == n_buckets) {
            // beyond them rows go on rising, at part of the slope so far if that is above the prior's
            const double rise =
                lowest < below ? (predicted_[below] - predicted_[lowest]) / (bucket_rows[below] - bucket_rows[lowest])
                               : 0.0;
            const double least = predicted_[below] + rise_kept * rise * (bucket_rows[b] - bucket_rows[below]);
            predicted_[b] = std::max(prior_ratio(bucket_rows[b]) * std::exp(deviation(below)), least);
            continue;
        } else {
            const double from = std::log(bucket_rows[below]), to = std::log(bucket_rows[above]);
            const double t = (std::log(bucket_rows[b]) - from) / (to - from);
            d = (1.0 - t) * deviation(below) + t * deviation(above);
        }
        predicted_[b] = prior_ratio(bucket_rows[b]) * std::exp(d);
    }
    doubt();
}

// The first rounds of a process are slow and change their size all the time. A size that looks dear after a few of them
// is not believed entirely as long as well-known sizes below and above it say otherwise; or it would not be run again,
// and stay wrong.
void StepCosts::doubt() {
    for (int b = 1; b < n_buckets; ++b) {
        if (entries_[b].count == 0.0 || entries_[b].trust >= 1.0) continue;
        int below = b - 1, above = b + 1;
        while (below > 0 && entries_[below].trust < 1.0) --below;
        while (above < n_buckets && entries_[above].trust < 1.0) ++above;
        if (above == n_buckets || entries_[below].count == 0.0) continue;
        const double from = std::log(bucket_rows[below]), to = std::log(bucket_rows[above]);
        const double t = (std::log(bucket_rows[b]) - from) / (to - from);
        const double guess = std::exp((1.0 - t) * std::log(predicted_[below]) + t * std::log(predicted_[above]));
        if (guess < predicted_[b]) predicted_[b] += (1.0 - entries_[b].trust) * (guess - predicted_[b]);
    }
}

}  // namespace eaglecpp
