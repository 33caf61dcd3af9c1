// SPDX-License-Identifier: MIT
// Chooses the number of threads for the next decode. ggml's threads spin at barriers and wait for each other, so on a
// machine with busy cores two threads can be a hundred times slower than one thread. So the number must follow the
// number of free cores.
//
// The number of threads falls if two conditions are met. The first condition: the threads of recent decodes got too
// little CPU time. The second condition: the system reports that other processes used the cores, or the decodes took
// longer than usual. So a program that ended before a generation began takes no thread from the generation. The number
// rises if the system reports more free cores. If the number soon falls again, the next rise comes later. On systems
// that do not report the use of cores (all except Linux), the number stays the same.
//
// The class has no clock; callers pass times in milliseconds.
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
        double cpu_ms = 0.0;  // CPU time of all threads of this process
    };

    ThreadPolicy() : ThreadPolicy(1, 1, true, true) {}

    // Takes the maximum numbers of threads for decoding and for prompts. A number that is fixed never changes.
    ThreadPolicy(int n_decode, int n_prompt, bool is_decode_fixed, bool is_prompt_fixed);

    // Returns the number of threads for a decode of this kind.
    int n_threads(Kind kind) const;

    // Reports how many cores other processes have left free recently.
    void hear_free(double n_cores, double now_ms);

    // Reports the times of a decode that ran with the number of threads from n_threads().
    void learn(const Run & run, double now_ms);

    // Returns true if the system scheduled the threads of the last decode. The decode's time is then a valid
    // measurement.
    bool is_timed() const { return is_timed_; }

  private:
    // Usual time of decodes of one kind with one number of rows.
    struct Usual {
        double ms = 0.0;
        int n = 0;
    };

    bool is_starved(const Run & run, int n_threads, const Usual & usual);
    void set_available(int n, double now_ms);

    int n_max_[2];
    bool is_fixed_[2];
    int n_available_;  // last estimate of the number of free cores
    bool is_timed_ = true;
    bool hears_ = false;
    double next_rise_ms_ = 0.0, gap_ms_;
    double n_missed_ = 0.0;                           // number of cores that the threads recently lacked
    double window_wall_ = 0.0, window_cpu_ = 0.0;     // recent wall time of the threads, and their CPU time in it
    double window_usual_ = 0.0, window_timed_ = 0.0;  // usual time of recent decodes, and their actual time
    std::map<std::pair<Kind, int>, Usual> usual_;     // by kind and rows, at the current number of threads
};

}  // namespace eaglecpp
