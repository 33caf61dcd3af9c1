// SPDX-License-Identifier: MIT
#include "base/log.h"

#include <deque>
#include <mutex>

#ifndef _WIN32
#include <pthread.h>
#endif

namespace eaglecpp {

namespace {
constexpr size_t n_queue_max = 4096;
constexpr size_t n_trail_max = 64;

std::mutex mutex;
std::deque<LogLine> queue;

// Error lines of this thread, with the newest line at the end. The number counts all lines that were ever added, so it
// stays valid as a mark when old lines are dropped.
thread_local std::deque<std::string> trail;
thread_local size_t n_trail = 0;

// Locks the mutex during a fork. Otherwise a child that is forked while another thread logs would have a mutex that
// stays locked forever.
#ifndef _WIN32
[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
#endif
}  // namespace

void log_line(LogLevel level, std::string text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
    if (text.empty()) return;
    if (level >= LogLevel::error) {
        trail.push_back(text);
        ++n_trail;
        if (trail.size() > n_trail_max) trail.pop_front();
    }
    std::lock_guard<std::mutex> lock(mutex);
    if (queue.size() == n_queue_max) queue.pop_front();
    queue.push_back({level, std::move(text)});
}

std::vector<LogLine> log_drain() {
    std::lock_guard<std::mutex> lock(mutex);
    std::vector<LogLine> lines(queue.begin(), queue.end());
    queue.clear();
    return lines;
}

ErrorTrail::ErrorTrail() : mark_(n_trail) {}

std::string ErrorTrail::text() const {
    const size_t n_new = std::min(n_trail - mark_, trail.size());
    std::string text;
    for (size_t i = trail.size() - n_new; i < trail.size(); ++i) {
        text += text.empty() ? " (llama.cpp: " : "; ";
        text += trail[i];
    }
    return text.empty() ? text : text + ")";
}

}  // namespace eaglecpp
