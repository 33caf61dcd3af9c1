// SPDX-License-Identifier: MIT
#include "base/process.h"

#include "base/error.h"

#include <atomic>
#include <mutex>

#ifndef _WIN32
#include <pthread.h>
#endif

namespace eaglecpp {

namespace {
thread_local bool has_helpers = false;
std::atomic<bool> has_device{false};
std::atomic<bool> is_lost{false};

void watch_forks() {
#ifndef _WIN32
    static std::once_flag once;
    // The handler below runs in the child, on the thread that forked.
    std::call_once(once, [] {
        pthread_atfork(nullptr, nullptr, [] {
            if (has_helpers || has_device) is_lost = true;
        });
    });
#endif
}
}  // namespace

void note_helper_threads() {
    if (has_helpers) return;
    watch_forks();
    has_helpers = true;
}

void note_device() {
    watch_forks();
    has_device = true;
}

bool lost_by_fork() {
    return is_lost;
}

void check_not_forked(const char * what) {
    if (!lost_by_fork()) return;
    fail(ErrorKind::unsupported,
         "%s: this process was forked after llama.cpp had computed, and llama.cpp's helper threads and devices exist "
         "only in the parent. Start the process with multiprocessing's 'spawn' or 'forkserver' method, or fork before "
         "llama.cpp computes",
         what);
}

}  // namespace eaglecpp
