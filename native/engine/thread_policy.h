// SPDX-License-Identifier: MIT
// How many threads the next decode gets. ggml's threads spin at barriers and wait for the one that is not running, so
// on a machine whose cores others keep busy two threads can be a hundred times slower than one: the number must fall to
// the cores that are free, and come back when they are.
//
// It falls when recent decodes did not get their cores and either the system reports that other processes took them,
// or the decodes took longer than usual. What another program did before an answer therefore takes no thread from it.
// It rises when the system reports more free cores, and later each time it had to fall again soon after. Where the
// system reports nothing (it does on Linux only), the number stays.
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
        double wall_ms = 0.0;
        double cpu_ms = 0.0;  // of all threads of this process
    };

    ThreadPolicy() : ThreadPolicy(1, 1, true, true) {}

    // the most threads for decoding and for prompts; a number that is fixed is never changed
    ThreadPolicy(int n_decode, int n_prompt, bool is_decode_fixed, bool is_prompt_fixed);

    // threads for a decode of this kind now
    int level(Kind kind) const;

    // reports how many cores other processes have left to this one recently
    void hear_free(double n_cores, double now_ms);

    // reports a decode that had level() threads
    void learn(const Run & run, double now_ms);

    // The last decode's threads had their cores: its time is what such a decode costs.
    bool is_timed() const { return is_timed_; }

  private:
    // what decodes of a kind and number of rows take
    struct Usual {
        double ms = 0.0;
        int n = 0;
    };

    bool is_starved(const Run & run, int n_threads, const Usual & usual);
    void set_available(int n, double now_ms);

    int n_max_[2];
    bool is_fixed_[2];
    int n_available_;  // cores there seem to be
    bool is_timed_ = true;
    bool hears_ = false;
    double next_rise_ms_ = 0.0, gap_ms_;
    double n_missed_ = 0.0;                           // of late: cores that the threads did not get
    double window_wall_ = 0.0, window_cpu_ = 0.0;     // of late: time of the threads, and time they ran
    double window_usual_ = 0.0, window_timed_ = 0.0;  // of late: usual time, and time taken by the same decodes
    std::map<std::pair<Kind, int>, Usual> usual_;     // by kind and rows, with the threads there are
};

}  // namespace eaglecpp
