// SPDX-License-Identifier: MIT
#include "engine/thread_policy.h"

#include <algorithm>
#include <cmath>

namespace eaglecpp {

namespace {
using Kind = ThreadPolicy::Kind;

constexpr double window_ms = 150.0;  // of wall time that utilisation is judged over
constexpr double core_missed = 0.4;  // of one core: less than that is nobody else's load
constexpr double slow = 1.3;         // times the usual time
constexpr double slow_alone = 3.0;   // the same without knowing what the threads ran
constexpr int n_usual = 3;           // decodes behind a usual time

constexpr double gap_first_ms = 400.0, gap_most_ms = 20000.0;  // between trials of more threads
constexpr int n_more_runs = 4;                                 // decodes of such a trial
constexpr int n_heard = 2;                                     // times in a row that the system must say so
constexpr double share_to_keep = 0.4,
                 share_to_rise = 0.2;  // of a core that others may take and it still counts as free

constexpr int first_other = 150, other_factor = 8;  // decodes before another number is tried, and times that again
constexpr int n_other_runs = 5;
constexpr double faster = 0.97;

int index(Kind kind) {
    return kind == Kind::decode ? 0 : 1;
}
}  // namespace

ThreadPolicy::ThreadPolicy(int n_decode, int n_prompt, bool is_decode_fixed, bool is_prompt_fixed)
    : n_most_{std::max(n_decode, 1), std::max(n_prompt, 1)},
      is_fixed_{is_decode_fixed, is_prompt_fixed},
      n_available_(std::max(n_most_[0], n_most_[1])),
      n_preferred_(n_most_[0]),
      gap_more_ms_(gap_first_ms),
      next_other_(first_other) {}

int ThreadPolicy::level(Kind kind) const {
    const int i = index(kind);
    if (is_fixed_[i]) return n_most_[i];
    return std::min(n_available_, kind == Kind::decode ? n_preferred_ : n_most_[1]);
}

const ThreadPolicy::Usual & ThreadPolicy::usual(Kind kind, int n_threads, int n_rows) const {
    static const Usual none;
    const auto it = usual_.find({{index(kind), n_threads}, n_rows});
    return it == usual_.end() ? none : it->second;
}

void ThreadPolicy::add_usual(const Run & run) {
    Usual & u = usual_[{{index(run.kind), run.n_threads}, run.n_rows}];
    ++u.n;
    const double ms = u.n > n_usual ? std::min(run.wall_ms, 2.0 * u.ms) : run.wall_ms;
    // the first one builds graphs
    u.ms += (u.n <= 2 ? 1.0 : 0.15) * (ms - u.ms);
}

int ThreadPolicy::choose(Kind kind, int n_rows, double now_ms) {
    const int n = level(kind);
    if (is_fixed_[index(kind)]) return n;
    const bool is_usual_known = usual(kind, n, n_rows).n >= n_usual;
    if (trial_ != Trial::none) return kind == Kind::decode && is_usual_known ? n_trial_ : n;
    if (kind != Kind::decode || !is_usual_known) return n;
    const int n_top = std::max(n_most_[0], n_most_[1]);
    if (n_available_ < n_top && !hears_ && now_ms >= next_more_ms_) {
        trial_ = Trial::more;
        n_trial_ = std::min(n_top, n_preferred_);
    } else if (n_available_ == n_top && n_decodes_ >= next_other_) {
        trial_ = Trial::other;
        n_trial_ = tries_more_ ? std::min(2 * n, n_most_[0]) : (n + 1) / 2;
        tries_more_ = !tries_more_ && n < n_most_[0];
    } else {
        return n;
    }
    n_trial_runs_ = 0;
    trial_ratio_ = 0.0;
    if (n_trial_ == n) trial_ = Trial::none;
    return n_trial_;
}

void ThreadPolicy::set_available(int n, double now_ms) {
    n = std::clamp(n, 1, std::max(n_most_[0], n_most_[1]));
    if (n == n_available_) return;
    n_available_ = n;
    trial_ = Trial::none;
    n_heard_low_ = n_heard_high_ = 0;
    window_wall_ = window_cpu_ = window_usual_ = window_timed_ = 0.0;
    next_more_ms_ = now_ms + gap_more_ms_;
}

void ThreadPolicy::hear_free(double n_cores, double now_ms) {
    hears_ = true;
    const int n_enough = std::max(1, (int)std::floor(n_cores + share_to_keep));
    const int n_surely = (int)std::floor(n_cores + share_to_rise);
    n_heard_low_ = n_enough < n_available_ ? n_heard_low_ + 1 : 0;
    n_heard_high_ = n_surely > n_available_ ? n_heard_high_ + 1 : 0;
    if (n_heard_low_ >= n_heard) {
        set_available(n_enough, now_ms);
    } else if (n_heard_high_ >= n_heard && now_ms >= next_more_ms_) {
        set_available(n_surely, now_ms);
    }
}

// The threads of late did not have their cores, and it shows.
bool ThreadPolicy::is_starved(const Run & run) {
    if (run.n_threads < 2) return false;
    const double keep = std::exp(-run.wall_ms / window_ms);
    window_wall_ = keep * window_wall_ + run.wall_ms * run.n_threads;
    window_cpu_ = keep * window_cpu_ + std::max(run.cpu_ms, 0.0);
    const Usual & u = usual(run.kind, run.n_threads, run.n_rows);
    if (u.n >= n_usual) {
        window_usual_ = keep * window_usual_ + u.ms;
        window_timed_ = keep * window_timed_ + run.wall_ms;
    }
    if (window_wall_ < 0.6 * window_ms * run.n_threads) return false;
    const double ratio = window_usual_ > 0.0 ? window_timed_ / window_usual_ : 0.0;  // 0 = not known
    if (run.cpu_ms < 0.0) return ratio > slow_alone;
    const double n_missed = run.n_threads * (1.0 - window_cpu_ / window_wall_);
    return (n_missed > core_missed && (ratio == 0.0 || ratio > slow)) || ratio > slow_alone;
}

void ThreadPolicy::learn(const Run & run, double now_ms) {
    was_regular_ = run.n_threads == level(run.kind);
    n_decodes_ += run.kind == Kind::decode;
    if (is_fixed_[index(run.kind)] || !(run.wall_ms > 0.0)) return;
    const bool is_starved_now = is_starved(run);
    if (trial_ == Trial::more && run.n_threads == n_trial_) return learn_more(run, is_starved_now, now_ms);
    if (trial_ == Trial::other && run.n_threads == n_trial_) return learn_other(run);
    if (!is_starved_now) return add_usual(run);
    was_regular_ = false;
    // as many as had their cores; the next ones tell whether that is few enough
    const double n_had = run.cpu_ms < 0.0 ? run.n_threads / 2.0 : run.n_threads * window_cpu_ / window_wall_;
    gap_more_ms_ =
        now_ms < next_more_ms_ + 4.0 * gap_more_ms_ ? std::min(2.0 * gap_more_ms_, gap_most_ms) : gap_first_ms;
    set_available(std::min(run.n_threads - 1, (int)std::floor(n_had + share_to_rise)), now_ms);
}

// More threads for a few decodes: they must be at least as fast as the ones there are now.
void ThreadPolicy::learn_more(const Run & run, bool is_bad, double now_ms) {
    const Usual & u = usual(run.kind, level(run.kind), run.n_rows);
    if (u.n > 0) trial_ratio_ += run.wall_ms / u.ms;
    ++n_trial_runs_;
    if (is_bad || trial_ratio_ > slow * n_trial_runs_) {
        trial_ = Trial::none;
        gap_more_ms_ = std::min(2.0 * gap_more_ms_, gap_most_ms);
        next_more_ms_ = now_ms + gap_more_ms_;
        window_wall_ = window_cpu_ = window_usual_ = window_timed_ = 0.0;
    } else if (n_trial_runs_ >= n_more_runs) {
        gap_more_ms_ = gap_first_ms;
        set_available(std::max(n_most_[0], n_most_[1]), now_ms);
    }
}

// Another number, on a machine that is quiet; one decode is enough to see that they are slower.
void ThreadPolicy::learn_other(const Run & run) {
    const Usual & u = usual(run.kind, level(run.kind), run.n_rows);
    if (u.n > 0) trial_ratio_ += run.wall_ms / u.ms;
    ++n_trial_runs_;
    const bool is_slower = trial_ratio_ > faster * n_trial_runs_;
    if (!is_slower && n_trial_runs_ < n_other_runs) return;
    if (!is_slower) n_preferred_ = n_trial_;
    tries_more_ = n_preferred_ < n_most_[0] && (tries_more_ || n_preferred_ == 1);
    trial_ = Trial::none;
    next_other_ = is_slower ? n_decodes_ * other_factor : n_decodes_ + first_other;
}

}  // namespace eaglecpp
