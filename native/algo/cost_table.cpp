// SPDX-License-Identifier: MIT
#include "algo/cost_table.h"

#include <algorithm>
#include <cmath>

#include "algo/state_text.h"

namespace eaglecpp {

namespace {
constexpr const char * state_kind = "eaglecpp cost-table 3";
constexpr double absurd = 20.0;  // times the expectation: a suspended process, not a measurement
constexpr double ms_max = 1e7;

// prior shares of a plain round: an EAGLE drafter is one layer and a head
constexpr double commit_share = 0.08, level_share = 0.06;

double ema(double value, double sample, int n, double step_limit) {
    const double rate = std::max(0.05, 1.0 / (n + 1));
    return value + rate * std::clamp(sample - value, -step_limit, step_limit);
}
}  // namespace

double CostTable::guess(double share, int n_rows, const StepCosts & costs) const {
    const double ms = costs.empty() ? share * verify_.ms(1) * costs.prior_ratio(n_rows) : costs.ms(n_rows);
    return slowdown() * ms;
}

double CostTable::commit(int n_rows) const {
    return guess(commit_share, n_rows, commit_);
}

double CostTable::level(int n_rows) const {
    return guess(level_share, n_rows, level_);
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
    const double limit = 0.2 * verify_.ms(1);
    if (drafted) {
        host_draft_ = ema(host_draft_, sample, n_host_draft_++, limit);
    } else {
        host_plain_ = ema(host_plain_, sample, n_host_plain_++, limit);
    }
}

bool CostTable::take_changed() {
    const bool was = is_changed_;
    is_changed_ = false;
    return verify_.take_changed() || was;
}

static bool is_price(double ms) {
    return ms >= 1e-6 && ms <= ms_max;
}

std::string CostTable::to_text(const std::string & key) const {
    std::vector<StateLine> lines;
    const auto put = [&](const char * name, const StepCosts & costs) {
        for (int b = 0; b < StepCosts::n_buckets; ++b) {
            const double ms = slowdown() * costs.saved_ms(b);
            if (is_price(ms)) lines.push_back({name, {(double)StepCosts::rows_of(b), ms}});
        }
    };
    put("verify", verify_);
    put("commit", commit_);
    put("level", level_);
    // A machine that was stopped for a while leaves estimates outside of what from_text() takes.
    const auto time = [](double ms) { return std::clamp(ms, 0.0, ms_max); };
    lines.push_back({"host", {time(slowdown() * host_plain_), time(slowdown() * host_draft_)}});
    return write_state(state_kind, key, lines);
}

bool CostTable::from_text(const std::string & text, const std::string & key) {
    const auto lines = read_state(text, state_kind, key);
    if (!lines) return false;
    CostTable loaded;
    for (const StateLine & line : *lines) {
        const std::vector<double> & v = line.values;
        if (line.name == "host") {
            if (v.size() != 2 || !std::all_of(v.begin(), v.end(), [](double ms) { return ms >= 0.0 && ms <= ms_max; }))
                return false;
            loaded.host_plain_ = v[0], loaded.host_draft_ = v[1];
            loaded.n_host_plain_ = loaded.n_host_draft_ = 1;
        } else {
            StepCosts * costs = line.name == "verify"   ? &loaded.verify_
                                : line.name == "commit" ? &loaded.commit_
                                : line.name == "level"  ? &loaded.level_
                                                        : nullptr;
            if (!costs || v.size() != 2 || !(v[0] >= 1.0 && v[0] <= 1e6) || !is_price(v[1])) return false;
            costs->set_saved(StepCosts::bucket_of((int)v[0]), v[1]);
        }
    }
    loaded.expect_change();
    *this = loaded;
    return true;
}

std::vector<CostTable::Point> CostTable::points(const StepCosts & costs, int n_rows_max) const {
    std::vector<Point> out;
    for (int b = 0; b < StepCosts::n_buckets && StepCosts::rows_of(b) <= n_rows_max; ++b) {
        const int n = StepCosts::rows_of(b);
        out.push_back({n, slowdown() * costs.ms(n), (double)costs.n_samples(n)});
    }
    return out;
}

}  // namespace eaglecpp
