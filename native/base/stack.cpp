// SPDX-License-Identifier: MIT
#include "base/stack.h"

#include <exception>

#if defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#else
#include <pthread.h>
#endif

namespace eaglecpp {

namespace {
struct Job {
    const std::function<void()> & call;
    std::exception_ptr error;

    void run() {
        try {
            call();
        } catch (...) {
            error = std::current_exception();
        }
    }
};
}  // namespace

bool run_on_stack(size_t n_bytes, const std::function<void()> & call) {
    Job job{call, nullptr};
#if defined(_WIN32)
    const auto run = [](void * p) -> DWORD { return ((Job *)p)->run(), 0; };
    HANDLE thread = CreateThread(nullptr, n_bytes, run, &job, STACK_SIZE_PARAM_IS_A_RESERVATION, nullptr);
    if (!thread) return false;
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
#else
    const auto run = [](void * p) -> void * { return ((Job *)p)->run(), nullptr; };
    constexpr size_t n_page = 64 << 10;  // rounds the size up: macOS accepts only whole pages
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    int failed = pthread_attr_setstacksize(&attributes, (n_bytes + n_page - 1) / n_page * n_page);
    if (!failed) failed = pthread_create(&thread, &attributes, run, &job);
    pthread_attr_destroy(&attributes);
    if (failed) return false;
    pthread_join(thread, nullptr);
#endif
    if (job.error) std::rethrow_exception(job.error);
    return true;
}

}  // namespace eaglecpp
