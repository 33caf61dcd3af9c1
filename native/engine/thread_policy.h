// SPDX-License-Identifier: MIT
// How many threads the next decode gets. ggml's threads spin at barriers and wait for the one that is not running, so
// on a machine whose cores others keep busy two threads can be a hundred times slower than one: the number must fall to
// the cores that are free, and come back when they are.
//
// What is known: how long a decode took and for how much of that time the threads ran; how long earlier decodes of the
// same number of rows took; and, where the system tells, how many cores other processes leave free. A decode that took
// long and in which the threads did not get their cores shows by itself that there were too many threads. The number of
// free cores is reported now and then (hear_free); without such reports a larger number of threads is tried, more and
// more rarely while that fails.
//
// On a quiet machine fewer threads may still be faster, when memory is the limit: half as many (later twice as many)
// are tried for one decode, then ever more rarely, and kept if a few decodes agree.
//
// No clock inside: times are handed in, in milliseconds.
#pragma once

#include <map>
#include <utility>

namespace eaglecpp {

class ThreadPolicy {
  public:
    enum class Kind { decode, prompt };

    struct Run {
        Kind kind = Kind::decode;
        int n_rows = 1;
        int n_threads = 1;
        double wall_ms = 0.0;
        double cpu_ms = 0.0;  // of all threads of this process; < 0: not known
    };

    ThreadPolicy() : ThreadPolicy(1, 1, true, true) {}

    // the most threads for decoding and for prompts; a number that is fixed is never changed
    ThreadPolicy(int n_decode, int n_prompt, bool is_decode_fixed, bool is_prompt_fixed);

    // threads that decodes of this kind have for now, trials left out
    int level(Kind kind) const;

    // threads for a decode of n_rows rows now
    int choose(Kind kind, int n_rows, double now_ms);

    // reports how many cores other processes have left to this one recently
    void hear_free(double n_cores, double now_ms);

    // reports a decode whose number of threads came from choose()
    void learn(const Run & run, double now_ms);

    // The last decode ran with level() threads that had their cores: its time is what such a decode costs.
    bool was_regular() const { return was_regular_; }

  private:
    enum class Trial { none, more, other };

    // what decodes of a kind and number of rows take at a number of threads
    struct Usual {
        double ms = 0.0;
        int n = 0;
    };

    const Usual & usual(Kind kind, int n_threads, int n_rows) const;
    void add_usual(const Run & run);
    bool is_starved(const Run & run);
    void set_available(int n, double now_ms);
    void learn_more(const Run & run, bool is_bad, double now_ms);
    void learn_other(const Run & run);

    int n_most_[2];
    bool is_fixed_[2];
    int n_available_;  // cores there seem to be
    int n_preferred_;  // threads for decoding on a quiet machine
    bool was_regular_ = true;

    Trial trial_ = Trial::none;
    int n_trial_ = 0;           // threads
    int n_trial_runs_ = 0;      // so far
    double trial_ratio_ = 0.0;  // sum over these of time over usual time

    double next_more_ms_ = 0.0, gap_more_ms_;
    int n_heard_low_ = 0, n_heard_high_ = 0;
    bool hears_ = false;
    double window_wall_ = 0.0, window_cpu_ = 0.0;     // of late: time of the threads, and time they ran
    double window_usual_ = 0.0, window_timed_ = 0.0;  // of late: usual time, and time taken by the same decodes

    int n_decodes_ = 0, next_other_;
    bool tries_more_ = false;  // of the next such trial
    std::map<std::pair<std::pair<int, int>, int>, Usual> usual_;
};

}  // namespace eaglecpp
