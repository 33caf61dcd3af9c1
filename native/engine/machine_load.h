// SPDX-License-Identifier: MIT
// Measures how much this process and other processes use the machine's cores.
#pragma once

namespace eaglecpp {

// Returns the CPU time of all threads of this process so far, in milliseconds. On Windows the result is not meaningful,
// and callers do not use it.
double process_cpu_ms();

class MachineLoad {
  public:
    // Returns the number of cores that other processes left free since the last call, including the cores that this
    // process used. Returns -1 if the last call was too recent or if the system does not report the use of cores (only
    // Linux does). Cores of low-priority processes count as free, unless this process has low priority itself. The call
    // is fast enough for every decode.
    double free_cores(double now_ms);

  private:
    struct Sample {
        double busy_ms = 0.0, all_ms = 0.0, own_ms = 0.0;
        int n_cores = 0;
    };
    static bool read(Sample & out);

    Sample last_;
    double last_at_ms_ = -1e9;
};

}  // namespace eaglecpp
