// SPDX-License-Identifier: MIT
#include "algo/costs.h"

#include <cmath>

namespace eaglecpp {

// --- row counts -----------------------------------------------------------------------------------------------------

void RowCounts::set(int n_rows, bool is_exact) {
    const auto at = std::lower_bound(points_.begin(), points_.end(), n_rows,
                                     [](const std::pair<int, bool> & p, int n) { return p.first < n; });
    if (at != points_.end() && at->first == n_rows) {
        at->second = at->second && is_exact;
    } else {
        points_.insert(at, {n_rows, is_exact});
    }
}

bool RowCounts::allows(int n_rows) const {
    if (n_rows <= 1) return true;
    bool is_below_exact = true;  // a single row is exact
    for (const auto & [n, is_exact] : points_) {
        if (n == n_rows) return is_exact;
        if (n > n_rows) return is_below_exact && is_exact;
        is_below_exact = is_exact;
    }
    return false;
}

int RowCounts::largest(int n_rows) const {
    while (n_rows > 1 && !allows(n_rows)) --n_rows;
    return std::max(n_rows, 1);
}

int RowCounts::next(int n_rows) const {
    const int n_max = points_.empty() ? 1 : points_.back().first;
    for (int n = n_rows + 1; n <= n_max; ++n) {
        if (allows(n)) return n;
    }
    return 0;
}

bool RowCounts::allows_all(int n_rows) const {
    while (n_rows > 1 && allows(n_rows)) --n_rows;
    return n_rows <= 1;
}

std::string RowCounts::to_string() const {
    const int n_max = points_.empty() ? 1 : points_.back().first;
    std::string out;
    for (int n = 1; n <= n_max; ++n) {
        if (!allows(n)) continue;
        const int first = n;
        while (n < n_max && allows(n + 1)) ++n;
        out += (out.empty() ? "" : ", ") + std::to_string(first);
        if (n > first) out += "-" + std::to_string(n);
    }
    return out;
}

// --- step costs -----------------------------------------------------------------------------------------------------

namespace {
constexpr std::array<int, StepCosts::n_buckets> bucket_rows = {
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1 << 20};
constexpr double rate_slow = 0.06;   // learning rate of the slowdown
constexpr double share_rate = 0.05;  // learning rate of shares_
constexpr double jump_min = 0.2;     // smallest median residual that counts as a change of the machine
constexpr double jump_noise = 3.0;   // the median residual must also exceed this multiple of the mean residual
constexpr int n_settled = 3;         // minimum number of samples in this process for a settled price
constexpr int n_outliers_max = 3;    // a longer run of outliers means a new price, not a stall
constexpr double ms_least = 1e-6, ms_max = 1e7;
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

int StepCosts::n_rows_measured() const {
    for (int b = n_buckets - 1; b >= 0; --b) {
        if (entries_[b].n_samples() > 0) return bucket_rows[b];
    }
    return 0;
}

void StepCosts::Entry::restart(double ms, bool is_guess) {
    n = 0;
    is_guessed = is_guess;
    add(ms);
}

void StepCosts::Entry::add(double ms) {
    samples[n % n_kept] = ms;
    n = n + 1 < 2 * n_kept ? n + 1 : n_kept;
}

double StepCosts::Entry::price() const {
    return lower_median(samples, std::min(n, n_kept));
}

void StepCosts::learn(int n_rows, double ms) {
    ms = std::clamp(ms, ms_least, ms_max);
    const int b = bucket_of(n_rows);
    Entry & e = entries_[b];
    const double price = empty() ? ms : prices_[b];
    if (e.n == 0) e.restart(price, true);
    const double raw = std::log(ms / price), error = raw - std::log(slowdown_);
    // The first samples of a batch size say more about its price than about the machine's speed.
    const bool is_settled = e.n_tried >= n_settled, is_outlier = is_settled && std::fabs(error) > jump();
    if (is_settled) noise_ += 0.05 * (std::min(std::fabs(error), 1.0) - noise_);
    if (has_slowdown_ && is_settled) {
        if (!is_outlier) slowdown_ *= std::exp(rate_slow * error);
        learn_speed(raw);
    }
    e.n_tried = std::min(e.n_tried + 1, n_settled);
    // An outlier may be a stall or a change of the machine's speed. Only the following residuals distinguish the two
    // cases.
    e.n_outliers = is_outlier ? e.n_outliers + 1 : 0;
    if (!is_outlier || e.n_outliers > n_outliers_max) e.add(ms / slowdown_);
    const double before = prices_[b];
    prices_[b] = e.price();
    if (has_slowdown_) share_change(b, is_settled ? prices_[b] / before : 1.0);
    guess_prices();
}

// Attributes a part of a price change to the machine: the size's share of the recent runs. If only one batch size runs,
// a change of its price looks like a change of the machine's speed. Without this function, slowdown and price would
// both drift away from the prices of the other sizes.
void StepCosts::share_change(int bucket, double change) {
    for (int b = 0; b < n_buckets; ++b) {
        shares_[b] += share_rate * ((b == bucket ? 1.0 : 0.0) - shares_[b]);
    }
    if (change == 1.0 || std::fabs(std::log(change)) > jump()) return;
    const double common = std::pow(change, shares_[bucket]);
    slowdown_ *= common;
    for (double & ms : entries_[bucket].samples) ms *= 1.0 / common;
    prices_[bucket] /= common;
}

double StepCosts::jump() const {
    return std::max(jump_min, jump_noise * noise_);
}

// Detects a sudden change of the machine's speed: the recent residuals show a new slowdown.
void StepCosts::learn_speed(double raw) {
    residuals_[n_residuals_ % n_residuals] = raw;
    n_residuals_ = n_residuals_ + 1 < 2 * n_residuals ? n_residuals_ + 1 : n_residuals;
    if (n_residuals_ < n_residuals) return;
    const double shift = lower_median(residuals_, n_residuals) - std::log(slowdown_);
    if (std::fabs(shift) <= jump()) return;
    slowdown_ *= std::exp(shift);
    n_residuals_ = 0;
}

void StepCosts::set_saved(const std::vector<double> & saved) {
    for (size_t i = 0; i < saved.size(); i += 2) {
        const int b = bucket_of((int)saved[i]);
        entries_[b].restart(saved[i + 1], false);
        prices_[b] = saved[i + 1];
    }
    for (int b = 1; b < n_buckets; ++b) {
        for (int c = 0; c < n_buckets; ++c) {
            const int n_batches = (bucket_rows[b] + bucket_rows[c] - 1) / bucket_rows[c];
            if (entries_[c].n > 0 && prices_[b] > (c < b ? 2.0 : 1.25) * n_batches * prices_[c]) entries_[b] = {};
        }
    }
    if (!saved.empty()) guess_prices();
}

// Guesses the prices of unmeasured batch sizes: the prior curve, scaled to the largest smaller measured size, or to the
// smallest measured size.
void StepCosts::guess_prices() {
    const auto ratio = [&](int b) { return prices_[b] / prior_ratio(bucket_rows[b]); };
    const auto first = std::find_if(entries_.begin(), entries_.end(), [](const Entry & e) { return e.n > 0; });
    double r = ratio((int)(first - entries_.begin()));
    for (int b = 0; b < n_buckets; ++b) {
        if (entries_[b].n > 0) {
            r = ratio(b);
        } else {
            prices_[b] = r * prior_ratio(bucket_rows[b]);
        }
    }
}

// --- cost table -----------------------------------------------------------------------------------------------------

static constexpr double absurd = 20.0;  // samples above this multiple of the expected time mean a suspended process

// Assumed times of a commit and of a draft step, as shares of a target-only round. An EAGLE drafter has only one layer
// and a head.
static constexpr double commit_share = 0.08, step_share = 0.06;

// Returns the moving average `value` after one more sample. n: number of samples so far, up to 20; the weight of a
// sample does not fall any further.
static double ema(double value, double sample, int & n, double step_limit) {
    n = std::min(n + 1, 20);
    return value + 1.0 / n * std::clamp(sample - value, -step_limit, step_limit);
}

double CostTable::guess(double share, int n_rows, const StepCosts & costs) const {
    const double ms = costs.empty() ? share * verify_.ms(1) * costs.prior_ratio(n_rows) : costs.ms(n_rows);
    return slowdown() * ms;
}

double CostTable::commit(int n_rows) const {
    return guess(commit_share, n_rows, commit_);
}

double CostTable::step(int n_rows) const {
    return guess(step_share, n_rows, step_);
}

int CostTable::n_rows_max() const {
    return std::max(4, 2 * verify_.n_rows_measured());
}

bool CostTable::is_sane(double ms, double expected) const {
    return std::isfinite(ms) && ms > 0.0 && ms < ms_max && (expected <= 0.0 || ms < absurd * expected);
}

void CostTable::learn_verify(int n_rows, double ms) {
    if (n_rows >= 1 && is_sane(ms, is_known(n_rows) ? verify(n_rows) : 0.0)) verify_.learn(n_rows, ms);
}

void CostTable::learn_drafter(StepCosts & costs, int n_rows, double ms) {
    const double expected = costs.empty() ? 0.0 : slowdown() * costs.ms(n_rows);
    if (n_rows >= 1 && is_sane(ms, expected)) costs.learn(n_rows, ms / slowdown());
}

void CostTable::learn_alike(int n_first, int i, int n_rows, double ms) {
    // The first use of a batch size also loads kernels. So samples below the current estimate change it faster
    // (rate_less) than samples above it (rate_more).
    constexpr double rate_less = 0.5, rate_more = 0.15, over_max = 10.0, cheap = 0.2;  // target-only steps
    if (i == 1) slow_ms_ = 0.0;
    if (i <= n_first) {
        slow_ms_ += std::isfinite(ms) ? std::clamp(ms, 0.0, ms_max) : 0.0;
        // If a change of size is expensive, the first batches after the change are too noisy to improve a known price.
        if (is_known(n_rows) && change_ms() > cheap * verify(1)) return;
        if (i == 1 || !is_known(n_rows)) ms = std::max(ms / 2.0, ms - change_ms());
    } else if (i == n_first + 1 && slow_ms_ > 0.0 && is_sane(ms, 0.0)) {
        const double over = std::clamp(slow_ms_ - n_first * ms, 0.0, over_max * verify(1));
        const double error = over / slowdown() - change_;
        change_ += (!knows_change_ ? 1.0 : error < 0.0 ? rate_less : rate_more) * error;
        knows_change_ = true;
    }
    learn_verify(n_rows, ms);
}

void CostTable::learn_host(bool drafted, double ms) {
    if (!std::isfinite(ms)) return;
    const double sample = std::max(0.0, ms) / slowdown();
    const double limit = 0.2 * verify_.ms(1);
    if (drafted) {
        host_draft_ = ema(host_draft_, sample, n_host_draft_, limit);
    } else {
        host_target_only_ = ema(host_target_only_, sample, n_host_target_only_, limit);
    }
}

static bool is_price(double ms) {
    return ms >= 1e-6 && ms <= ms_max;
}

LearnedState CostTable::state() const {
    LearnedState out;
    for (const auto & [name, costs] : {std::pair("verify", &verify_), {"commit", &commit_}, {"level", &step_}}) {
        for (int b = 0; b < StepCosts::n_buckets; ++b) {
            const double ms = slowdown() * costs->saved_ms(b);
            if (is_price(ms)) out[name].insert(out[name].end(), {(double)StepCosts::rows_of(b), ms});
        }
    }
    // The estimates may exceed the range that set_state() accepts if the machine was suspended for a while.
    const auto time = [](double ms) { return std::clamp(ms, 0.0, ms_max); };
    out["host"] = {time(slowdown() * host_target_only_), time(slowdown() * host_draft_)};
    if (knows_change_) out["change"] = {time(change_ms())};
    return out;
}

bool CostTable::set_state(const LearnedState & state) {
    CostTable loaded;
    loaded.change_ = change_;
    const auto is_time = [](double ms) { return ms >= 0.0 && ms <= ms_max; };
    for (const auto & [name, v] : state) {
        const bool are_times = std::all_of(v.begin(), v.end(), is_time);
        if (name == "host" && v.size() == 2 && are_times) {
            loaded.host_target_only_ = v[0], loaded.host_draft_ = v[1];
            loaded.n_host_target_only_ = loaded.n_host_draft_ = 1;
            continue;
        }
        if (name == "change" && v.size() == 1 && are_times) {
            loaded.change_ = v[0];
            loaded.knows_change_ = true;
            continue;
        }
        StepCosts * costs = name == "verify"   ? &loaded.verify_
                            : name == "commit" ? &loaded.commit_
                            : name == "level"  ? &loaded.step_
                                               : nullptr;
        if (!costs || v.size() % 2 != 0) return false;
        for (size_t i = 0; i < v.size(); i += 2) {
            if (!(v[i] >= 1.0 && v[i] <= 1e6) || !is_price(v[i + 1])) return false;
        }
        costs->set_saved(v);
    }
    *this = loaded;
    return true;
}

std::vector<CostTable::Point> CostTable::points(const StepCosts & costs, int n_rows_max) const {
    std::vector<Point> out;
    for (int b = 0; b < StepCosts::n_buckets && StepCosts::rows_of(b) <= n_rows_max; ++b) {
        const int n = StepCosts::rows_of(b);
        out.push_back({n, slowdown() * costs.ms(n), costs.n_samples(n)});
    }
    return out;
}

}  // namespace eaglecpp
