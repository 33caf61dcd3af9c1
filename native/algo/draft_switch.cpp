// SPDX-License-Identifier: MIT
#include "algo/draft_switch.h"

#include <algorithm>
#include <cmath>

namespace eaglecpp {

namespace {
constexpr double weight_on = 0.10, weight_off = 0.35;  // of a new value in the advantage
constexpr double value_max = 10.0;                     // tokens
constexpr double on_above = 0.03;                      // advantage at which drafting starts again ...
constexpr double off_below = 0.0;                      // ... and stops,
constexpr double doubt = 2.0;                          // if it misses that by so many standard errors
constexpr double probe_share = 0.007;  // of plain time spent on probes; well below the ledger's allowance
constexpr double probe_gap = 8, probe_gap_most = 256;  // plain rounds from one to the next; off is never for good
constexpr double burst_gap = 2;
constexpr int n_burst = 4;
}  // namespace

void DraftSwitch::begin_request() {
    is_on_ = true;
    advantage_ = std::max(advantage_, on_above);
    variance_ = std::max(variance_, 0.03);
    n_burst_ = n_since_probe_ = 0;
}

// Off only when the mean misses the mark by more than its own scatter explains: where drafting gains little the value
// of single rounds varies much, and each needless stop costs a wait for the next probes.
void DraftSwitch::weigh(double value, double speed) {
    const double weight = is_on_ ? weight_on : weight_off;
    const double error = std::clamp(value, -value_max, value_max) - advantage_;
    advantage_ += weight * error;
    variance_ += weight * ((1.0 - weight) * error * error - variance_);
    best_speed_ += (best_speed_ > 0.0 ? weight : 1.0) * (speed - best_speed_);
    if (is_on_ && advantage_ + doubt * std::sqrt(variance_ * weight / 2.0) < off_below) {
        is_on_ = false;
        n_since_probe_ = n_off_ = 0;
    } else if (!is_on_ && advantage_ > on_above) {
        is_on_ = true;
    }
}

// Probes come dense at first, for texts that go to and fro, then as rare as their share of the time asks.
bool DraftSwitch::is_probe_due(double cost) {
    const double fair = std::clamp(cost / probe_share, probe_gap, probe_gap_most);
    ++n_off_;
    const double gap = n_burst_ > 0 ? burst_gap : std::clamp(n_off_ / 4.0, std::max(probe_gap, fair / 3.0), fair);
    return ++n_since_probe_ >= gap;
}

void DraftSwitch::begin_probe() {
    n_since_probe_ = 0;
    n_burst_ = std::max(0, n_burst_ - 1);
}

void DraftSwitch::surprise() {
    if (!is_on_) n_burst_ = n_burst;
}

}  // namespace eaglecpp
