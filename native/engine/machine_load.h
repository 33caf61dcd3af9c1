// SPDX-License-Identifier: MIT
// Reports the use of the machine's cores by this process and by other processes.
#pragma once

namespace eaglecpp {

// CPU time of all threads of this process so far, in milliseconds. Windows gives an arbitrary value, which is not used.
double process_cpu_ms();

class MachineLoad {
  public:
    // Returns the cores that other processes left free since the last call, including its own cores. Returns -1 if the
    // last call was too recent or if the system does not report the use of cores (only Linux does). Cores of
    // low-priority processes count as free, unless this process has low priority itself. Cheap enough to call at every
    // decode.
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
