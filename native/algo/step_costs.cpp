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
constexpr double rate_slow = 0.06;   // at which the slowdown follows
constexpr double share_rate = 0.05;  // at which the sizes' shares of the runs follow
constexpr double jump_min = 0.2;     // median residual that counts as a change of the machine ...
constexpr double jump_noise = 3.0;   // ... if it is also this many mean residuals
constexpr int n_settled = 3;         // samples in this process that make a price
constexpr int n_odd_most = 3;        // samples that far off in a row that are not a stall: the size's price has changed
constexpr double ms_least = 1e-6, ms_most = 1e7;
}  // namespace

int StepCosts::bucket_of(int n_rows) {
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
        if (entries_[b].n_samples() >= 3) least = std::min(least, prices_[b]);
    }
    return least;
}

int StepCosts::n_rows_measured() const {
    for (int b = n_buckets - 1; b >= 0; --b) {
        if (entries_[b].n_samples() > 0) return bucket_rows[b];
    }
    return 0;
}

bool StepCosts::take_changed() {
    const bool was = is_changed_;
    is_changed_ = false;
    return was;
}

void StepCosts::Entry::restart(double ms, bool is_guess) {
    n = 0;
    is_guessed = is_guess;
    add(ms);
}

void StepCosts::Entry::add(double ms) {
    samples[n++ % n_kept] = ms;
}

double StepCosts::Entry::price() const {
    return lower_median(samples, std::min(n, n_kept));
}

void StepCosts::learn(int n_rows, double ms) {
    ms = std::clamp(ms, ms_least, ms_most);
    const int b = bucket_of(n_rows);
    Entry & e = entries_[b];
    const double price = empty() ? ms : prices_[b];
    if (e.n == 0) e.restart(price, true);
    const double raw = std::log(ms / price), error = raw - std::log(slowdown_);
    // the first samples say more of the price than of the machine
    const bool is_settled = e.n_tried >= n_settled, is_odd = is_settled && std::fabs(error) > jump();
    if (is_settled) noise_ += 0.05 * (std::min(std::fabs(error), 1.0) - noise_);
    if (n_anchor_ > 0 && e.n_samples() > 0) {
        anchor(raw);
    } else if (has_slowdown_ && is_settled) {
        if (!is_odd) slowdown_ *= std::exp(rate_slow * error);
        learn_speed(raw);
    }
    learn_first_use(e, price, ms / slowdown_);
    ++e.n_tried;
    // It may be a stall, or the machine that has another speed now, which the residuals will show.
    e.n_odd = is_odd ? e.n_odd + 1 : 0;
    if (!is_odd || e.n_odd > n_odd_most) e.add(ms / slowdown_);
    const double before = prices_[b];
    prices_[b] = e.price();
    if (has_slowdown_) share_change(b, is_settled ? prices_[b] / before : 1.0);
    guess_prices();
}

// Where one size runs alone its times cannot tell a change of its price from one of the machine's speed, and the two
// would wander off together, away from the prices of the sizes that wait. So the machine takes as much of the change as
// the size has of the last runs.
void StepCosts::share_change(int bucket, double change) {
    for (int b = 0; b < n_buckets; ++b) {
        shares_[b] += share_rate * ((b == bucket ? 1.0 : 0.0) - shares_[b]);
    }
    if (change == 1.0 || std::fabs(std::log(change)) > jump()) return;
    const double common = std::pow(change, shares_[bucket]);
    slowdown_ *= common;
    entries_[bucket].scale(1.0 / common);
    prices_[bucket] /= common;
}

void StepCosts::Entry::scale(double factor) {
    for (double & ms : samples) ms *= factor;
}

double StepCosts::jump() const {
    return std::max(jump_min, jump_noise * noise_);
}

void StepCosts::learn_first_use(const Entry & e, double price, double ms) {
    double over;
    if (e.n_tried == 0) {
        last_first_ms_ = ms;
        if (e.is_guessed) return;
        over = ms - price;
    } else if (e.n_tried == 1 && e.is_guessed) {
        over = last_first_ms_ - ms;
    } else {
        return;
    }
    first_use_ms_ += std::max(0.3, 1.0 / ++n_first_uses_) * (std::max(0.0, over) - first_use_ms_);
}

// A machine that changed its speed at once: the last residuals agree on another slowdown.
void StepCosts::learn_speed(double raw) {
    residuals_[n_residuals_++ % n_residuals] = raw;
    if (n_residuals_ < n_residuals) return;
    const double shift = lower_median(residuals_, n_residuals) - std::log(slowdown_);
    if (std::fabs(shift) <= jump()) return;
    slowdown_ *= std::exp(shift);
    n_residuals_ = 0;
    is_changed_ = true;
}

// Until a few samples are in, the slowdown is their lower median: the first one is often too long.
void StepCosts::anchor(double raw) {
    const int n = n_residuals - n_anchor_--;
    residuals_[n] = raw;
    slowdown_ = std::exp(std::clamp(lower_median(residuals_, n + 1), -3.0, 3.0));
    n_residuals_ = 0;
}

void StepCosts::set_saved(int bucket, double ms) {
    entries_[bucket].restart(ms, false);
    prices_[bucket] = entries_[bucket].price();
    guess_prices();
}

// Prices of sizes that nobody ran: their ratio to the prior curve lies between those of the measured ones beside them.
void StepCosts::guess_prices() {
    const auto ratio = [&](int b) { return prices_[b] / prior_ratio(bucket_rows[b]); };
    int below = -1;
    for (int b = 0; b < n_buckets; ++b) {
        if (entries_[b].n > 0) {
            below = b;
            continue;
        }
        int above = b;
        while (above < n_buckets && entries_[above].n == 0) ++above;
        double r = below < 0 ? ratio(above) : ratio(below);
        if (below >= 0 && above < n_buckets) {
            const double from = std::log(bucket_rows[below]), to = std::log(bucket_rows[above]);
            r += (ratio(above) - r) * (std::log(bucket_rows[b]) - from) / (to - from);
        }
        prices_[b] = r * prior_ratio(bucket_rows[b]);
    }
    doubt_prices();
}

// Rows can be run in batches of a smaller size, or beside others that nobody needs. Twice that price is believed:
// graphs differ, and real curves have dips and cliffs. A size that seems to cost less than half of one row proves
// nothing.
void StepCosts::doubt_prices() {
    believed_ = prices_;
    for (int other = 0; other < n_buckets; ++other) {
        if (entries_[other].n_samples() == 0) continue;
        if (entries_[0].n_samples() > 0 && prices_[other] < 0.5 * prices_[0]) continue;
        for (int b = 0; b < n_buckets; ++b) {
            const int n_batches = (bucket_rows[b] + bucket_rows[other] - 1) / bucket_rows[other];
            believed_[b] = std::min(believed_[b], 2.0 * n_batches * prices_[other]);
        }
    }
}

}  // namespace eaglecpp
