// SPDX-License-Identifier: MIT
#include "algo/cost_table.h"

#include <algorithm>
#include <cmath>

#include "algo/state_text.h"

namespace eaglecpp {

namespace {
constexpr const char * state_kind = "eaglecpp cost-table 2";
constexpr double absurd = 20.0;  // times the expectation: a suspended process, not a measurement
constexpr double ms_max = 1e7;

// prior shares of a plain round: an EAGLE drafter is one layer and a head
constexpr double commit_share = 0.08, level_share = 0.06;

double ema(double value, double sample, int n, double step_limit) {
    const double rate = std::max(0.05, 1.0 / (n + 1));
    return value + rate * std::clamp(sample - value, -step_limit, step_limit);
}
}  // namespace

CostTable::CostTable()
    : shapes_{StepCosts(0.06, true), StepCosts(0.06, true), StepCosts(0.06, true), StepCosts(0.06, true),
              StepCosts(0.06, true), StepCosts(0.06, true), StepCosts(0.06, true), StepCosts(0.06, true)},
      commit_(0.06),
      level_(0.1) {}

void CostTable::set_kv(int n_kv) {
    int b = 0;
    while (b + 1 < n_kv_buckets && n_kv >= 1024 << b) ++b;
    if (b != kv_bucket_) {
        if (shapes_[b].empty()) {
            int nearest = kv_bucket_;
            for (int i = 0; i < n_kv_buckets; ++i) {
                if (!shapes_[i].empty() && std::abs(i - b) < std::abs(nearest - b)) nearest = i;
            }
            shapes_[b].assume(shapes_[nearest]);
        } else {
            shapes_[b].expect_change();  // since that length was last seen
        }
        shapes_[b].assume_slowdown(shapes_[kv_bucket_]);
        kv_bucket_ = b;
        is_changed_ = true;
    }
    shapes_[b].set_kv(n_kv);
}

// More rows never take less time. Where they seem to, the few plain rounds that interrupt drafting were measured too
// long, and a plain reference that is too long would let the ledger pay for a loss.
double CostTable::plain(int n_rows) const {
    return slowdown() * (std::min(shape().ms(n_rows), shape().least_ms(n_rows)) + host_plain_);
}

double CostTable::guess(double share, int n_rows, const StepCosts & costs) const {
    const double ms = costs.empty() ? share * shape().ms(1) * costs.prior_ratio(n_rows) : costs.ms(n_rows);
    return slowdown() * ms;
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
    const bool is_changed = last_rows_ > 0 && n_rows != last_rows_;
    last_rows_ = n_rows;
    if (n_rows < 1 || !is_sane(ms, is_known(n_rows) ? settled(n_rows) + is_changed * change() : 0.0)) return;
    shapes_[kv_bucket_].learn(n_rows, ms, is_changed);
}

void CostTable::learn_commit(int n_rows, double ms) {
    if (n_rows >= 1 && is_sane(ms, commit_.empty() ? 0.0 : commit(n_rows))) {
        commit_.learn(n_rows, ms / slowdown());
    }
}

void CostTable::learn_level(int n_rows, double ms) {
    if (n_rows >= 1 && is_sane(ms, level_.empty() ? 0.0 : level(n_rows))) level_.learn(n_rows, ms / slowdown());
}

void CostTable::learn_host(bool drafted, double ms) {
    if (!std::isfinite(ms)) return;
    const double sample = std::max(0.0, ms) / slowdown();
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
    return shapes_[kv_bucket_].take_changed() || was;
}

static bool is_price(double ms) {
    return ms >= 1e-6 && ms <= ms_max;
}

void CostTable::expect_change() {
    for (StepCosts & costs : shapes_) costs.expect_change();
    is_changed_ = true;
    last_rows_ = 0;
}

std::string CostTable::to_text(const std::string & key) const {
    std::vector<StateLine> lines;
    const auto put = [&](const char * name, const StepCosts & costs, double kv) {
        for (int b = 0; b < StepCosts::n_buckets; ++b) {
            const double ms = slowdown() * costs.reference_ms(b);
            if (is_price(ms)) lines.push_back({name, {kv, (double)b, ms, costs.reference_kv()}});
        }
    };
    for (int k = 0; k < n_kv_buckets; ++k) put("verify", shapes_[k], k);
    put("commit", commit_, 0);
    put("level", level_, 0);
    // A machine that was stopped for a while leaves estimates outside of what from_text() takes.
    const auto time = [](double ms) { return std::clamp(ms, 0.0, ms_max); };
    lines.push_back({"host", {time(slowdown() * host_plain_), time(slowdown() * host_draft_), time(change())}});
    lines.push_back({"growth", {time(growth().per_step), time(growth().per_row)}});
    return write_state(state_kind, key, lines);
}

bool CostTable::from_text(const std::string & text, const std::string & key) {
    const auto lines = read_state(text, state_kind, key);
    if (!lines) return false;
    CostTable loaded;
    double change_ms = 0.0;
    Growth growth;
    const auto are_times = [](const std::vector<double> & values, size_t n) {
        return values.size() == n &&
               std::all_of(values.begin(), values.end(), [](double ms) { return ms >= 0.0 && ms <= ms_max; });
    };
    for (const StateLine & line : *lines) {
        const std::vector<double> & v = line.values;
        if (line.name == "host") {
            if (!are_times(v, 3)) return false;
            loaded.host_plain_ = v[0], loaded.host_draft_ = v[1], change_ms = v[2];
            loaded.n_host_plain_ = loaded.n_host_draft_ = 1;
        } else if (line.name == "growth") {
            if (!are_times(v, 2)) return false;
            growth = {v[0], v[1]};
        } else {
            StepCosts * costs = line.name == "verify"   ? loaded.shapes_.data()
                                : line.name == "commit" ? &loaded.commit_
                                : line.name == "level"  ? &loaded.level_
                                                        : nullptr;
            if (!costs || !are_times(v, 4) || v[0] >= n_kv_buckets || v[1] >= StepCosts::n_buckets || !is_price(v[2])) {
                return false;
            }
            if (line.name == "verify") costs += (int)v[0];
            costs->set_entry((int)v[1], v[2], v[3]);
        }
    }
    for (StepCosts & costs : loaded.shapes_) {
        costs.set_added(change_ms, growth);
        costs.expect_change();
    }
    loaded.kv_bucket_ = kv_bucket_;
    loaded.is_changed_ = true;
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
