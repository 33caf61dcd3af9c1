// SPDX-License-Identifier: MIT
#include "base/memory.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "base/cgroup.h"

#ifdef __linux__
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#endif
#ifdef __APPLE__
#include <mach/mach.h>
#include <unistd.h>
#endif
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
#elif defined(__APPLE__)
    vm_statistics64_data_t pages;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&pages, &n) != KERN_SUCCESS) return 0;
    // The count of free pages already includes speculative pages.
    return ((uint64_t)pages.free_count + pages.inactive_count + pages.purgeable_count) * (uint64_t)getpagesize();
#else
    std::ifstream info("/proc/meminfo");
    std::string key, unit;
    uint64_t kib = 0;
    while (info >> key >> kib) {
        std::getline(info, unit);
        if (key == "MemAvailable:") return std::max((uint64_t)std::min(kib * 1024.0, cgroup_memory()), (uint64_t)1);
    }
    return 0;
#endif
}

void forget_file_pages([[maybe_unused]] const std::string & path) {
#ifdef __linux__
    struct stat file;
    if (stat(path.c_str(), &file) != 0) return;
    // Compares device and inode, because the list of mappings may contain another name of the same file.
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        uintptr_t begin, end;
        unsigned long offset, inode;
        unsigned major_id, minor_id;
        char mode[5];
        if (std::sscanf(line.c_str(), "%zx-%zx %4s %lx %x:%x %lu", &begin, &end, mode, &offset, &major_id, &minor_id,
                        &inode) != 7) {
            continue;
        }
        // Skips writable mappings, because they may be private copies.
        if (inode != file.st_ino || makedev(major_id, minor_id) != file.st_dev || mode[1] == 'w') continue;
        madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
#endif
}

}  // namespace eaglecpp
