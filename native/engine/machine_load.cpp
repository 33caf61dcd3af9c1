// SPDX-License-Identifier: MIT
#include "engine/machine_load.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#ifdef __linux__
#include <sys/resource.h>
#include <unistd.h>
#endif

namespace eaglecpp {

// Minimum interval for an accurate measurement with the kernel's ticks of 10 ms.
static constexpr double span_ms = 200.0;

double process_cpu_ms() {
    return 1e3 * (double)std::clock() / CLOCKS_PER_SEC;
}

bool MachineLoad::read([[maybe_unused]] Sample & out) {
#ifdef __linux__
    std::FILE * f = std::fopen("/proc/stat", "re");
    if (!f) return false;
    unsigned long long user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0, steal = 0;
    const int n = std::fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &wait,
                              &irq, &softirq, &steal);
    std::fclose(f);
    if (n < 4) return false;
    const double tick_ms = 1e3 / (double)sysconf(_SC_CLK_TCK);
    const bool is_nice = getpriority(PRIO_PROCESS, 0) > 0;
    const double busy = (double)(user + system + irq + softirq + steal) + (is_nice ? (double)nice : 0.0);
    out.busy_ms = tick_ms * busy;
    out.all_ms = tick_ms * (double)(user + nice + system + idle + wait + irq + softirq + steal);
    out.own_ms = process_cpu_ms();
    out.n_cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return out.n_cores > 0;
#else
    return false;
#endif
}

double MachineLoad::free_cores(double now_ms) {
    Sample now;
    if (now_ms - last_at_ms_ < span_ms) return -1.0;
    last_at_ms_ = now_ms;
    if (!read(now)) return -1.0;
    const Sample before = last_;
    last_ = now;
    const double all_ms = now.all_ms - before.all_ms;
    if (before.n_cores == 0 || all_ms <= 0.0) return -1.0;
    const double others_ms = (now.busy_ms - before.busy_ms) - (now.own_ms - before.own_ms);
    return now.n_cores * (1.0 - std::clamp(others_ms / all_ms, 0.0, 1.0));
}

}  // namespace eaglecpp
