// SPDX-License-Identifier: MIT
#include "base/memory.h"

#include <fstream>
#include <string>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

namespace eaglecpp {

uint64_t available_memory() {
#ifdef _WIN32
    MEMORYSTATUSEX status;
    status.dwLength = sizeof(status);
    return GlobalMemoryStatusEx(&status) ? status.ullAvailPhys : 0;
#else
    std::ifstream info("/proc/meminfo");
    std::string key, unit;
    uint64_t kib = 0;
    while (info >> key >> kib) {
        std::getline(info, unit);
        if (key == "MemAvailable:") return kib * 1024;
    }
    return 0;
#endif
}

}  // namespace eaglecpp
