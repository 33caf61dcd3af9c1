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

// Before anything is known: standard deviations of log shapes around the prior curve
constexpr double sd_common = 1.0;   // of all together
constexpr double sd_slope = 0.15;   // per e-fold of rows
constexpr double sd_smooth = 0.15;  // of neighbours together
constexpr double sd_alone = 0.08;   // of each for itself: steps and dips
// and of what comes on top, in units: of a change, and of a thousand cells per step and per row
constexpr double sd_change = 0.05, sd_per_step = 0.2, sd_per_row = 0.2;

// of an entry as it was saved and today; of one taken over from another length; of one nobody confirmed for long
constexpr double sd_exact = 1e-3, sd_from_disk = 0.12, sd_assumed = 0.10, sd_forgotten = 0.25;

// What a process measures in its first rounds is off: cold, and changing sizes all the time. By how much, for a size.
constexpr double sd_cold = 0.10;

// of the first samples of a size, beyond the noise
constexpr std::array<double, StepCosts::n_first_samples> sd_first = {0.6, 0.06, 0.05, 0.04, 0.03};

// Drift per sample: of slowdown and shapes as the rate at which a long run of samples is followed, of the others as a
// share of what was unknown.
constexpr double rate_slow = 0.06, rate_shape = 0.012, rate_change = 0.005, rate_growth = 3e-4;
constexpr double noise_fine = 0.05;   // noise up to which the slowdown drifts in proportion
constexpr double noise_least = 0.02;  // of a sample

// standard deviations that an error may look like: usually; where it may be a jump of the machine; of a first sample
constexpr double clip = 3.0, clip_jump = 0.5, clip_first = 8.0;

constexpr double optimism = 0.25;  // standard deviations that the price of an untried size is below the expectation

constexpr double jump_min = 0.2;    // median residual that counts as a change of the machine ...
constexpr double jump_noise = 3.0;  // ... if it is also this many mean residuals
constexpr double sd_jump = 0.05;

constexpr double ms_least = 1e-6, ms_most = 1e7;
constexpr double log_most = 60.0;  // of a state; ms_most is 30 above ms_least

double square(double v) {
    return v * v;
}
}  // namespace

StepCosts::StepCosts(double slope, bool has_slowdown) : slope_(slope), has_slowdown_(has_slowdown) {}

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

void StepCosts::set_kv(double n_kv) {
    if (n_kv == n_kv_) return;
    n_kv_ = n_kv;
    refresh();
}

bool StepCosts::take_changed() {
    const bool was = is_changed_;
    is_changed_ = false;
    return was;
}

void StepCosts::expect_change() {
    n_anchor_ = has_slowdown_ ? n_residuals : 0;
}

// The first sample of all gives the unit of time.
void StepCosts::begin(int bucket, double ms) {
    unit_ = ms;
    kv_ref_ = n_kv_;
    for (int a = 0; a < n_buckets; ++a) {
        const double log_a = std::log(bucket_rows[a]);
        x_[a] = std::log(prior_ratio(bucket_rows[a]) / prior_ratio(bucket_rows[bucket]));
        for (int b = 0; b < n_buckets; ++b) {
            const double log_b = std::log(bucket_rows[b]);
            p_[a][b] = square(sd_common) + square(sd_slope) * log_a * log_b +
                       square(sd_smooth) * std::exp(-std::fabs(log_a - log_b)) + square(sd_alone) * (a == b);
        }
    }
    p_[change][change] = square(sd_change);
    p_[per_step][per_step] = square(sd_per_step);
    p_[per_row][per_row] = square(sd_per_row);
}

// units on top of a shape; however wrong the growth may be, it changes a time only so much
double StepCosts::added(int bucket, bool is_changed) const {
    const double shape = std::exp(x_[bucket]), cells = (n_kv_ - kv_ref_) / kv_unit;
    const double grown = cells * (x_[per_step] + bucket_rows[bucket] * x_[per_row]);
    return std::clamp(grown, -0.5 * shape, shape) + is_changed * x_[change];
}

StepCosts::View StepCosts::view(int bucket, bool is_changed) const {
    // Pulling one state back to zero may push another below: a little, but a machine that stands still and goes on
    // again can make it more than the shape.
    const double shape = std::exp(x_[bucket]), time = std::max(0.1 * shape, shape + added(bucket, is_changed));
    const double cells = (n_kv_ - kv_ref_) / kv_unit;
    return {bucket,       x_[slow] + std::log(time),         shape / time, has_slowdown_ ? 1.0 : 0.0, is_changed / time,
            cells / time, cells * bucket_rows[bucket] / time};
}

void StepCosts::drift() {
    const double noise = std::max(1.25 * noise_, noise_least);
    for (int b = 0; b < n_buckets; ++b) p_[b][b] += square(rate_shape * noise);
    if (has_slowdown_) p_[slow][slow] += square(rate_slow * std::min(noise, noise_fine));
    p_[change][change] += square(rate_change * sd_change);
    p_[per_step][per_step] += square(rate_growth * sd_per_step);
    p_[per_row][per_row] += square(rate_growth * sd_per_row);
    ++round_;
}

// An error too large for its variance is a stall or a change of the machine: it counts as one of `n_sd` standard
// deviations, and as little is learned from it; dropped it is not, for then a wrong price would stay wrong.
void StepCosts::update(const View & v, double error, double variance, double n_sd) {
    Vector to;
    for (int i = 0; i < n_states; ++i) {
        to[i] = v.shape * p_[i][v.bucket] + v.slow * p_[i][slow] + v.change * p_[i][change] +
                v.per_step * p_[i][per_step] + v.per_row * p_[i][per_row];
    }
    const double doubt = v.shape * to[v.bucket] + v.slow * to[slow] + v.change * to[change] +
                         v.per_step * to[per_step] + v.per_row * to[per_row];
    variance += std::max(0.0, doubt);  // rounding can leave less than nothing
    variance *= std::max(1.0, std::fabs(error) / (n_sd * std::sqrt(variance)));
    for (int i = 0; i < n_states; ++i) {
        x_[i] += to[i] * error / variance;
        for (int j = 0; j < n_states; ++j) p_[i][j] -= to[i] * to[j] / variance;
    }
    // None of these is below zero. What is known of the others goes with them: set to zero alone, it would spoil them.
    for (int c : {change, per_step, per_row}) {
        if (x_[c] >= 0.0 || p_[c][c] <= 0.0) continue;
        const double back = x_[c] / p_[c][c];
        for (int i = 0; i < n_states; ++i) x_[i] -= p_[i][c] * back;
        x_[c] = 0.0;
    }
}

void StepCosts::learn(int n_rows, double ms, bool is_changed) {
    ms = std::clamp(ms, ms_least, ms_most);
    const int b = bucket_of(n_rows);
    if (empty()) begin(b, ms);
    drift();
    Entry & e = entries_[b];
    e.round = round_;
    if (is_warm() && e.n_warm++ == 0 && e.count > 0.0) p_[b][b] += square(sd_cold);
    const View v = view(b, is_changed);
    const double log_time = std::log(ms / unit_), raw = log_time - v.log_time + x_[slow];
    double variance = square(std::max(1.25 * noise_, noise_least));
    const bool is_settled = e.count >= 2.0;
    if (has_slowdown_ && n_anchor_ > 0 && e.count >= 1.0) anchor(raw);
    if (e.n_first < n_first_samples) {
        variance += square(sd_first[e.n_first]);
        update(v, first_error(b, log_time, is_changed), variance, clip_first);
    } else {
        const double error = raw - x_[slow];
        noise_ += 0.05 * (std::min(std::fabs(error), 1.0) - noise_);
        const bool is_jump = has_slowdown_ && std::fabs(error) > jump();
        update(v, error, variance, is_jump ? clip_jump : clip);
        e.count = std::min(e.count + 1.0, 1000.0);
    }
    if (is_settled && has_slowdown_) learn_speed(raw);
    // Times that no machine has, one after another, can leave a state that says nothing: better to know nothing.
    if (!std::all_of(x_.begin(), x_.end(), [](double x) { return std::fabs(x) < log_most; })) {
        *this = StepCosts(slope_, has_slowdown_);
        return;
    }
    slowdown_ = std::exp(x_[slow]);
    if (round_ % 64 == 0) forget();
    refresh();
}

// A guess or an entry from disk (count 1) stands against a slow first sample: a size that looked expensive the first
// time it ran, for the graphs that had to be built, would never be tried again.
double StepCosts::first_error(int bucket, double log_time, bool is_changed) {
    Entry & e = entries_[bucket];
    const double time = std::exp(log_time - x_[slow]);
    e.first[e.n_first++] = std::log(std::max(0.3 * time, time - added(bucket, is_changed)));
    const bool is_guess = e.count < 1.0;
    if (e.n_first == 1) {
        const double over = e.first[0] - x_[bucket];
        if (!is_guess) learn_first_use(unit_ * (std::exp(e.first[0]) - std::exp(x_[bucket])));
        e.count = is_guess ? 0.5 : 1.0;
        return std::min(over, is_guess ? 0.0 : 0.1);
    }
    if (e.n_first == 2 && is_guess) learn_first_use(unit_ * (std::exp(e.first[0]) - std::exp(e.first[1])));
    e.count = e.n_first - 1;
    return lower_median(e.first, e.n_first) - x_[bucket];
}

void StepCosts::learn_first_use(double ms) {
    first_use_ms_ += std::max(0.3, 1.0 / ++n_first_uses_) * (std::max(0.0, ms) - first_use_ms_);
}

double StepCosts::jump() const {
    return std::max(jump_min, jump_noise * noise_);
}

// A machine that changed its speed at once: the last residuals agree on another slowdown.
void StepCosts::learn_speed(double raw) {
    if (n_anchor_ > 0) return;
    residuals_[n_residuals_++ % n_residuals] = raw;
    if (n_residuals_ < n_residuals) return;
    const double shift = lower_median(residuals_, n_residuals) - x_[slow];
    if (std::fabs(shift) <= jump()) return;
    x_[slow] += shift;
    p_[slow][slow] += square(sd_jump);
    n_residuals_ = 0;
    is_changed_ = true;
}

// Until a few samples are in, the slowdown is their lower median: the first one after a change is often too long.
void StepCosts::anchor(double raw) {
    const int n = n_residuals - n_anchor_--;
    residuals_[n] = raw;
    x_[slow] = std::clamp(lower_median(residuals_, n + 1), -3.0, 3.0);
    n_residuals_ = 0;
}

void StepCosts::forget() {
    for (int b = 1; b < n_buckets; ++b) {
        Entry & e = entries_[b];
        const long patience = e.n_first == 0 ? 300 : 2000 + 1000 * (long)std::min(e.count, 32.0);
        if (e.count == 0.0 || round_ - e.round <= patience) continue;
        e = {};
        p_[b][b] += square(sd_forgotten);
    }
}

void StepCosts::assume(const StepCosts & other) {
    const double n_kv = n_kv_;
    *this = other;
    n_kv_ = n_kv;
    n_residuals_ = n_anchor_ = 0;
    for (int b = 0; b < n_buckets; ++b) {
        entries_[b].count = std::min(entries_[b].count, 1.0);
        entries_[b].n_first = 0;
        p_[b][b] += square(sd_assumed);
    }
    refresh();
}

void StepCosts::assume_slowdown(const StepCosts & other) {
    x_[slow] = other.x_[slow];
    slowdown_ = other.slowdown_;
    noise_ = other.noise_;
    n_residuals_ = 0;
}

double StepCosts::reference_ms(int bucket) const {
    return entries_[bucket].count >= 1.0 ? unit_ * std::exp(x_[bucket]) : 0.0;
}

void StepCosts::set_entry(int bucket, double ms, double n_kv) {
    n_kv_ = n_kv;
    if (empty()) begin(bucket, ms);
    View v = view(bucket, false);
    v.slow = 0.0;
    update(v, std::log(ms / unit_) - v.log_time, square(sd_exact), clip_first);
    p_[bucket][bucket] += square(sd_from_disk);
    entries_[bucket].count = 1.0;
    refresh();
}

void StepCosts::set_added(double change_ms, const Growth & growth) {
    if (empty()) return;
    x_[change] = change_ms / unit_;
    x_[per_step] = growth.per_step / unit_ * kv_unit;
    x_[per_row] = growth.per_row / unit_ * kv_unit;
    for (int i : {change, per_step, per_row}) {
        p_[i].fill(0.0);
        for (Vector & row : p_) row[i] = 0.0;
    }
    p_[change][change] = square(0.3 * sd_change);
    p_[per_step][per_step] = square(0.3 * sd_per_step);
    p_[per_row][per_row] = square(0.3 * sd_per_row);
    refresh();
}

// standard deviation of the log of a shape against that of one row
double StepCosts::doubt(int b) const {
    return std::sqrt(std::max(0.0, p_[b][b] + p_[0][0] - 2.0 * p_[b][0]));
}

void StepCosts::refresh() {
    if (empty()) return predicted_.fill(0.0);
    for (int b = 0; b < n_buckets; ++b) {
        const double below = entries_[b].count < 1.0 ? optimism * doubt(b) : 0.0;
        predicted_[b] = unit_ * (std::exp(x_[b]) + added(b, false)) * std::exp(-below);
    }
}

}  // namespace eaglecpp
