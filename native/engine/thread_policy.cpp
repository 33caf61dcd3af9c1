// SPDX-License-Identifier: MIT
#include "engine/thread_policy.h"

#include <algorithm>
#include <cmath>

namespace eaglecpp {

static constexpr double window_ms = 150.0;  // wall time over which the use of cores is averaged
static constexpr double core_missed = 0.4;  // minimum share of a core that threads lack if other processes use it
static constexpr double slow = 1.3;         // multiple of the usual time that counts as slow
static constexpr double slow_alone = 3.0;   // multiple of the usual time that counts as slow with any CPU time
static constexpr int n_usual = 3;           // number of decodes before their usual time is trusted

static constexpr double gap_first_ms = 200.0, gap_max_ms = 20000.0;  // minimum time between two rises
// Share of a core that other processes may use while the core still counts as free. share_to_keep applies when keeping
// the number of threads, share_to_rise when raising it.
static constexpr double share_to_keep = 0.4, share_to_rise = 0.2;
// Minimum share of a core that decodes must have lacked before the load of other processes lowers the number of
// threads.
static constexpr double core_missed_heard = 0.25;

ThreadPolicy::ThreadPolicy(int n_decode, int n_prompt, bool is_decode_fixed, bool is_prompt_fixed)
    : n_max_{std::max(n_decode, 1), std::max(n_prompt, 1)},
      is_fixed_{is_decode_fixed, is_prompt_fixed},
      n_available_(std::max(n_max_[0], n_max_[1])),
      gap_ms_(gap_first_ms) {}

int ThreadPolicy::n_threads(Kind kind) const {
    const int i = (int)kind;
    return is_fixed_[i] ? n_max_[i] : std::min(n_available_, n_max_[i]);
}

void ThreadPolicy::set_available(int n, double now_ms) {
    n = std::clamp(n, 1, std::max(n_max_[0], n_max_[1]));
    if (n == n_available_) return;
    if (n < n_available_) {
        gap_ms_ = now_ms < next_rise_ms_ + 4.0 * gap_ms_ ? std::min(2.0 * gap_ms_, gap_max_ms) : gap_first_ms;
    }
    n_available_ = n;
    window_wall_ = window_cpu_ = window_usual_ = window_timed_ = n_missed_ = 0.0;
    usual_.clear();
    next_rise_ms_ = now_ms + gap_ms_;
}

void ThreadPolicy::hear_free(double n_cores, double now_ms) {
    hears_ = true;
    const int n_enough = std::max(1, (int)std::floor(n_cores + share_to_keep));
    const int n_surely = (int)std::floor(n_cores + share_to_rise);
    if (n_enough < n_available_ && n_missed_ > core_missed_heard) {
        set_available(n_enough, now_ms);
    } else if (n_surely > n_available_ && now_ms >= next_rise_ms_) {
        set_available(n_surely, now_ms);
    }
}

// Returns true if recent decodes were slow because their threads were not scheduled.
bool ThreadPolicy::is_starved(const Run & run, int n_threads, const Usual & usual) {
    if (n_threads < 2 || !hears_) return false;
    const double keep = std::exp(-run.wall_ms / window_ms);
    window_wall_ = keep * window_wall_ + run.wall_ms * n_threads;
    window_cpu_ = keep * window_cpu_ + std::max(run.cpu_ms, 0.0);
    n_missed_ = n_threads * (1.0 - window_cpu_ / window_wall_);
    if (usual.n >= n_usual) {
        window_usual_ = keep * window_usual_ + usual.ms;
        window_timed_ = keep * window_timed_ + run.wall_ms;
    }
    if (window_wall_ < 0.6 * window_ms * n_threads) return false;
    const double ratio = window_usual_ > 0.0 ? window_timed_ / window_usual_ : 0.0;  // slowness; 0 = unknown
    return (n_missed_ > core_missed && (ratio == 0.0 || ratio > slow)) || ratio > slow_alone;
}

void ThreadPolicy::learn(const Run & run, double now_ms) {
    is_timed_ = true;
    if (!(run.wall_ms > 0.0)) return;
    const int n_threads = this->n_threads(run.kind);
    Usual & usual = usual_[{run.kind, run.n_rows}];
    is_timed_ = !is_starved(run, n_threads, usual) || is_fixed_[(int)run.kind];
    if (is_timed_) {
        const double ms = ++usual.n > n_usual ? std::min(run.wall_ms, 2.0 * usual.ms) : run.wall_ms;
        // The first decode builds graphs, so the second decode's time replaces its time.
        usual.ms += (usual.n <= 2 ? 1.0 : 0.15) * (ms - usual.ms);
        return;
    }
    // Continues with the number of threads that got CPU time. The next decodes show whether this number is low enough.
    const double n_had = n_threads * window_cpu_ / window_wall_;
    set_available(std::min(n_threads - 1, (int)std::floor(n_had + share_to_rise)), now_ms);
}

}  // namespace eaglecpp
