// SPDX-License-Identifier: MIT
#include "algo/cost_table.h"

#include <algorithm>
#include <cmath>

#include "algo/median.h"
#include "algo/state_text.h"

namespace eaglecpp {

namespace {
constexpr const char * state_kind = "eaglecpp cost-table 2";
constexpr double slowdown_rate = 0.08;
constexpr double n_settled = 20.0;   // samples from which on a size moves the slowdown at full rate
constexpr double noise_fine = 0.05;  // mean residual up to which the slowdown may move at full rate
constexpr double step_max = 0.25;    // one residual moves the slowdown by at most this, in the log
constexpr double rebuild_rate = 0.06;
constexpr double cold_trust = 0.25;            // of a sample from the first rounds
constexpr double growth_prior = 1.0 / 1000.0;  // of a plain round per cell: standard deviation of what is not known
constexpr double growth_drift = 1e-7;          // of that variance, regained per sample
constexpr double jump_min = 0.2;               // median residual that counts as a change of the machine ...
constexpr double jump_noise = 3.0;             // ... if it is also this many mean residuals
constexpr double absurd = 20.0;                // times the expectation: a suspended process, not a measurement
constexpr double ms_max = 1e7;

// prior shares of a plain round: an EAGLE drafter is one layer and a head
constexpr double commit_share = 0.08, level_share = 0.06;

double ema(double value, double sample, int n, double step_limit) {
    const double rate = std::max(0.05, 1.0 / (n + 1));
    return value + rate * std::clamp(sample - value, -step_limit, step_limit);
}
}  // namespace

CostTable::CostTable()
    : shapes_{StepCosts(0.06), StepCosts(0.06), StepCosts(0.06), StepCosts(0.06),
              StepCosts(0.06), StepCosts(0.06), StepCosts(0.06), StepCosts(0.06)},
      commit_(0.06),
      level_(0.1) {}

void CostTable::set_kv(int n_kv) {
    int b = 0;
    while (b + 1 < n_kv_buckets && n_kv >= 1024 << b) ++b;
    if (b == kv_bucket_) return shapes_[b].set_kv(n_kv, growth_);
    if (shapes_[b].empty()) {
        int nearest = kv_bucket_;
        for (int i = 0; i < n_kv_buckets; ++i) {
            if (!shapes_[i].empty() && std::abs(i - b) < std::abs(nearest - b)) nearest = i;
        }
        shapes_[b].assume(shapes_[nearest]);
    } else {
        n_anchor_ = n_residuals;  // the machine may have changed since that length was last seen
    }
    kv_bucket_ = b;
    shapes_[b].set_kv(n_kv, growth_);
    n_residuals_ = 0;
    is_changed_ = true;
}

// More rows never take less time. Where they seem to, the few plain rounds that interrupt drafting were measured too
// long, and a plain reference that is too long would let the ledger pay for a loss.
double CostTable::plain(int n_rows) const {
    return slowdown_ * (std::min(shape().ms(n_rows), shape().least_ms(n_rows)) + host_plain_);
}

double CostTable::guess(double share, int n_rows, const StepCosts & costs) const {
    const double ms = costs.empty() ? share * shape().ms(1) * costs.prior_ratio(n_rows) : costs.ms(n_rows);
    return slowdown_ * ms;
}

double CostTable::commit(int n_rows) const {
    return guess(commit_share, n_rows, commit_);
}

double CostTable::level(int n_rows) const {
    return guess(level_share, n_rows, level_);
}

int CostTable::n_rows_max() const {
    return std::max(4, 2 * shape().n_rows_measured());
}

bool CostTable::is_sane(double ms, double expected) const {
    return std::isfinite(ms) && ms > 0.0 && ms < ms_max && (expected <= 0.0 || ms < absurd * expected);
}

void CostTable::learn_verify(int n_rows, double ms) {
    ++round_;
    StepCosts & costs = shapes_[kv_bucket_];
    const bool is_known = costs.n_samples(n_rows) >= 1.0;
    if (!is_sane(ms, is_known ? verify(n_rows) : 0.0) || n_rows < 1) {
        last_rows_ = n_rows;
        rebuilt_ms_ = 0.0;
        return;
    }
    const double shape_ms = costs.ms(n_rows);
    const bool is_rebuilt = last_rows_ > 0 && n_rows != last_rows_;
    last_rows_ = n_rows;
    double rest = ms;
    if (is_rebuilt) rest = std::max(0.3 * ms, ms - slowdown_ * rebuild());
    if (!is_rebuilt && rebuilt_ms_ > 0.0) learn_rebuild((rebuilt_ms_ - ms) / slowdown_, shape_ms);
    rebuilt_ms_ = is_rebuilt ? ms : 0.0;
    if (is_known && costs.n_samples(n_rows) >= 2.0) {
        const double error_ms = rest / slowdown_ - shape_ms;
        if (n_anchor_ == 0 && std::fabs(error_ms) < jump_min * shape_ms) learn_growth(n_rows, error_ms, shape_ms);
        learn_slowdown(std::log(rest / shape_ms), std::min(1.0, costs.n_samples(n_rows) / n_settled));
    } else if (is_known && n_anchor_ > 0) {
        anchor(std::log(rest / shape_ms));
    }
    costs.learn(n_rows, rest / slowdown_, round_, round_ <= n_cold ? cold_trust : 1.0);
    if (round_ % 64 == 0) costs.forget(round_);
}

// From a round that changed the size and the next one that kept it: whatever is wrong with the shapes is in both.
// Errors against the shapes would not do, for sizes that hardly ever follow themselves take the cost for their own.
void CostTable::learn_rebuild(double sample_ms, double shape_ms) {
    const double step = std::clamp(sample_ms - rebuild_raw_, -step_max * shape_ms, step_max * shape_ms);
    rebuild_raw_ += std::max(rebuild_rate, 1.0 / (++n_rebuilds_ + 1.0)) * step;
}

// A Kalman filter for both parts, from how a size's time differs from its mean when the length does. The slowdown would
// otherwise follow a text's length up and the next text's down, and sizes measured at one length would be compared with
// others measured at another: attention over 200 cells can double the price of a row.
void CostTable::learn_growth(int n_rows, double error_ms, double shape_ms) {
    const double cells = shapes_[kv_bucket_].cells_beyond(n_rows);
    const double most = std::pow(growth_prior * shapes_[kv_bucket_].ms(1), 2.0);
    auto & [v_step, both, v_row] = growth_variance_;
    v_step = v_step > 0.0 ? std::min(v_step + growth_drift * most, most) : most / 4.0;
    v_row = v_row > 0.0 ? std::min(v_row + growth_drift * most, most) : most;
    const double h_step = cells, h_row = cells * n_rows;
    const double to_step = v_step * h_step + both * h_row, to_row = both * h_step + v_row * h_row;
    const double noise = std::max(mean_error_, 0.03) * shape_ms;
    const double variance = h_step * to_step + h_row * to_row + noise * noise;
    const double error = std::clamp(error_ms, -noise, noise) / variance;
    growth_.per_step = std::max(0.0, growth_.per_step + to_step * error);
    growth_.per_row = std::max(0.0, growth_.per_row + to_row * error);
    v_step -= to_step * to_step / variance;
    both -= to_step * to_row / variance;
    v_row -= to_row * to_row / variance;
}

// less what noise alone may have made of it
double CostTable::rebuild() const {
    const double scatter = mean_error_ * shape().ms(1) * std::sqrt(rebuild_rate / 2.0);
    return std::max(0.0, rebuild_raw_ - scatter);
}

// raw: log(time / shape). A size whose price is still finding its place is trusted little.
void CostTable::learn_slowdown(double raw, double trust) {
    if (n_anchor_ > 0) return anchor(raw);
    const double error = raw - std::log(slowdown_);
    mean_error_ += 0.05 * (std::min(std::fabs(error), 1.0) - mean_error_);
    const double rate = trust * slowdown_rate * std::min(1.0, noise_fine / mean_error_);
    slowdown_ *= std::exp(rate * std::clamp(error, -step_max, step_max));
    residuals_[n_residuals_++ % n_residuals] = raw;
    if (n_residuals_ < n_residuals) return;
    const double shift = lower_median(residuals_, n_residuals) - std::log(slowdown_);
    if (std::fabs(shift) <= std::max(jump_min, jump_noise * mean_error_)) return;
    slowdown_ *= std::exp(shift);
    n_residuals_ = 0;
    is_changed_ = true;
}

// Until a few samples are in, the slowdown is their lower median: the first one after a change is often too long.
void CostTable::anchor(double raw) {
    const int n = n_residuals - n_anchor_--;
    residuals_[n] = raw;
    slowdown_ = std::exp(std::clamp(lower_median(residuals_, n + 1), -3.0, 3.0));
    n_residuals_ = 0;
}

void CostTable::learn_commit(int n_rows, double ms) {
    if (n_rows >= 1 && is_sane(ms, commit_.empty() ? 0.0 : commit(n_rows))) {
        commit_.learn(n_rows, ms / slowdown_, round_);
    }
}

void CostTable::learn_level(int n_rows, double ms) {
    if (n_rows >= 1 && is_sane(ms, level_.empty() ? 0.0 : level(n_rows))) level_.learn(n_rows, ms / slowdown_, round_);
}

void CostTable::learn_host(bool drafted, double ms) {
    if (!std::isfinite(ms)) return;
    const double sample = std::max(0.0, ms) / slowdown_;
    const double limit = 0.2 * shape().ms(1);
    if (drafted) {
        host_draft_ = ema(host_draft_, sample, n_host_draft_++, limit);
    } else {
        host_plain_ = ema(host_plain_, sample, n_host_plain_++, limit);
    }
}

bool CostTable::take_changed() {
    const bool was = is_changed_;
    is_changed_ = false;
    return was;
}

std::string CostTable::to_text(const std::string & key) const {
    std::vector<StateLine> lines;
    const auto put = [&](const char * name, const StepCosts & costs, double kv) {
        for (int b = 0; b < StepCosts::n_buckets; ++b) {
            const StepCosts::Entry & e = costs.entry(b);
            if (e.count < 1.0) continue;
            lines.push_back({name, {kv, (double)b, slowdown_ * std::exp(e.log_ms), e.n_kv}});
        }
    };
    for (int k = 0; k < n_kv_buckets; ++k) put("verify", shapes_[k], k);
    put("commit", commit_, 0);
    put("level", level_, 0);
    lines.push_back({"host", {slowdown_ * host_plain_, slowdown_ * host_draft_, slowdown_ * rebuild()}});
    lines.push_back({"growth", {slowdown_ * growth_.per_step, slowdown_ * growth_.per_row}});
    return write_state(state_kind, key, lines);
}

bool CostTable::from_text(const std::string & text, const std::string & key) {
    const auto lines = read_state(text, state_kind, key);
    if (!lines) return false;
    CostTable loaded;
    const auto are_times = [](const std::vector<double> & values, size_t n) {
        return values.size() == n &&
               std::all_of(values.begin(), values.end(), [](double ms) { return ms >= 0.0 && ms <= ms_max; });
    };
    for (const StateLine & line : *lines) {
        const std::vector<double> & v = line.values;
        if (line.name == "host") {
            if (!are_times(v, 3)) return false;
            loaded.host_plain_ = v[0], loaded.host_draft_ = v[1], loaded.rebuild_raw_ = v[2];
            loaded.n_host_plain_ = loaded.n_host_draft_ = 1;
        } else if (line.name == "growth") {
            if (!are_times(v, 2)) return false;
            loaded.growth_ = {v[0], v[1]};
        } else {
            StepCosts * costs = line.name == "verify"   ? loaded.shapes_.data()
                                : line.name == "commit" ? &loaded.commit_
                                : line.name == "level"  ? &loaded.level_
                                                        : nullptr;
            if (!costs || !are_times(v, 4) || v[0] >= n_kv_buckets || v[1] >= StepCosts::n_buckets || v[2] < 1e-6) {
                return false;
            }
            if (line.name == "verify") costs += (int)v[0];
            costs->set_entry((int)v[1], v[2], v[3]);
        }
    }
    loaded.kv_bucket_ = kv_bucket_;
    loaded.n_anchor_ = n_residuals;
    loaded.is_changed_ = true;
    *this = loaded;
    return true;
}

std::vector<CostTable::Point> CostTable::points(const StepCosts & costs, int n_rows_max) const {
    std::vector<Point> out;
    for (int b = 0; b < StepCosts::n_buckets && StepCosts::rows_of(b) <= n_rows_max; ++b) {
        const int n = StepCosts::rows_of(b);
        out.push_back({n, slowdown_ * costs.ms(n), costs.n_samples(n)});
    }
    return out;
}

}  // namespace eaglecpp
