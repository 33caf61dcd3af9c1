// SPDX-License-Identifier: MIT
#include "target/amx.h"

#include <cstring>
#include <vector>

#include "base/log.h"
#include "ggml_hook/hook.h"
#include "target/llama_bridge.h"

#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#endif

namespace eaglecpp {

static ggml_backend_buffer_type_t amx_buffer_type() {
    const auto get = (ggml_backend_dev_get_extra_bufts_t)kernels::cpu_function("ggml_backend_dev_get_extra_bufts");
    for (ggml_backend_buffer_type_t * b = get ? get(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) : nullptr;
         b && *b; ++b) {
        if (std::strcmp(ggml_backend_buft_name(*b), "AMX") == 0) return *b;
    }
    return nullptr;
}

#ifndef _WIN32
bool succeeds_in_child(const std::function<bool()> & call, unsigned n_seconds) {
    const pid_t pid = fork();
    if (pid < 0) return false;
    if (pid == 0) {
        for (int sig : {SIGILL, SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGALRM}) std::signal(sig, SIG_DFL);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, nullptr);
        alarm(n_seconds);
        try {
            _exit(call() ? 0 : 1);
        } catch (...) {  // without this catch, the child would continue as a second copy of the program
            _exit(1);
        }
    }
    int status = 0;
    pid_t done = -1;
    do {
        done = waitpid(pid, &status, 0);
    } while (done < 0 && errno == EINTR);
    return done == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
#endif

AmxState probe_amx() {
    llama_start();
    static const AmxState state = [] {
        ggml_backend_buffer_type_t tiles = amx_buffer_type();
        if (!tiles) return AmxState{false, false};
#ifdef _WIN32
        const bool works = false;
#else
        // One thread computes, because a forked child has no other threads.
        const bool works = succeeds_in_child(
            [&] {
                constexpr int n_in = 256, n_out = 64, n_rows = 4;
                const std::vector<float> weights(n_in * n_out, 1.0f), x(n_in * n_rows, 1.0f);
                return !kernels::try_product(tiles, weights, x, n_in, 1).out.empty();
            },
            10);
#endif
        if (!works) {
            log_line(LogLevel::info, "the CPU reports AMX, but its tile instructions fail; weights stay unpacked");
        }
        return AmxState{true, works};
    }();
    return state;
}

}  // namespace eaglecpp
