// SPDX-License-Identifier: MIT
// How much of the machine's cores this process and the others use.
#pragma once

namespace eaglecpp {

// CPU time of all threads of this process so far, in milliseconds; on Windows, where nothing depends on it, any time
double process_cpu_ms();

class MachineLoad {
  public:
    // Cores that other processes have left free since the last answer, including those this process uses; -1: the last
    // answer was too recent, or the system does not say (only Linux does). Cores of low-priority processes count as
    // free, unless this process has low priority itself. Cheap enough to ask at every decode.
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
