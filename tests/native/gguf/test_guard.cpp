// SPDX-License-Identifier: MIT
// Tests that failed assertions of ggml become exceptions, which pass through ggml's C functions. If an exception cannot
// pass, the process ends and prints the assertion's text. A forked child process must still be able to write to the
// log.
#include "gguf/guard.h"

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>
#include <vector>

#include "../check.h"
#include "base/error.h"
#include "base/log.h"

using namespace eaglecpp;

extern "C" void call_without_tables(void (*f)());

static ggml_context_ptr context() {
    return ggml_context_ptr(ggml_init({4 << 20, nullptr, /*no_alloc=*/false}));
}

// Fails an assertion in ggml.c.
static void reshape_wrongly() {
    const auto ctx = context();
    ggml_reshape_1d(ctx.get(), ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, 8), 9);
}

// Runs a graph on n_threads that looks up row number `bad`, which may be missing. The calling thread does the first
// half of the look-ups. Only the computation is guarded, so the test's memory stays valid until an exception has
// passed.
static void look_up(int bad, int n_threads) {
    constexpr int n_rows = 64;
    const auto ctx = context();
    ggml_tensor * table = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 64, 100);
    ggml_tensor * ids = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, n_rows);
    for (int i = 0; i < n_rows; ++i) ((int32_t *)ids->data)[i] = i == bad ? 1000 : i;
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, ggml_get_rows(ctx.get(), table, ids));
    const ggml_backend_ptr cpu(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    const auto set = (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu.get())), "ggml_backend_set_n_threads");
    set(cpu.get(), n_threads);
    guarded([&] { ggml_backend_graph_compute(cpu.get(), graph); });
}

struct Fate {
    int signal;  // signal that ended the child process; 0 means that the child process ended by itself
    std::string text;
};

static Fate in_child(const std::function<void()> & f) {
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) return {-1, "no pipe"};
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(300);
        dup2(pipe_ends[1], 2);
        f();
        _exit(0);
    }
    close(pipe_ends[1]);
    Fate fate{0, ""};
    char buffer[4096];
    for (ssize_t n; (n = read(pipe_ends[0], buffer, sizeof(buffer))) > 0;) fate.text.append(buffer, n);
    close(pipe_ends[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    fate.signal = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    return fate;
}

int main() {
    ggml_backend_load_all();
    // The tests in child processes come first. If a child process were forked after OpenMP has started, it would lack
    // OpenMP's threads.
    Fate fate = in_child([] { reshape_wrongly(); });
    CHECK_MSG(fate.signal == SIGABRT && fate.text.find("GGML_ASSERT") != std::string::npos, fate.text);
#ifdef __linux__  // unwind tables can only be left out on Linux
    fate = in_child([] { guarded([] { call_without_tables(reshape_wrongly); }); });
    CHECK_MSG(fate.signal == SIGABRT && fate.text.find("GGML_ASSERT") != std::string::npos &&
                  fate.text.find("unwind tables") != std::string::npos,
              fate.text);
#endif
    fate = in_child([] { look_up(/*bad=*/60, /*n_threads=*/2); });  // the assertion fails in a worker thread
    CHECK_MSG(fate.signal == SIGABRT && fate.text.find("GGML_ASSERT") != std::string::npos, fate.text);
    fate = in_child([] { CHECK_THROWS(look_up(/*bad=*/3, /*n_threads=*/2), "internal assertion"); });
    CHECK_MSG(fate.signal == 0 && fate.text.empty(), fate.text);

    CHECK_THROWS(guarded(reshape_wrongly), "assertion of llama.cpp failed");
    CHECK_THROWS(look_up(/*bad=*/3, /*n_threads=*/1), "assertion of llama.cpp failed");
    look_up(/*bad=*/-1, /*n_threads=*/1);
    // Guards may be nested.
    guarded([] {
        CHECK_THROWS(guarded(reshape_wrongly), "assertion of llama.cpp failed");
        CHECK_THROWS(reshape_wrongly(), "assertion of llama.cpp failed");
    });
    fate = in_child([] { reshape_wrongly(); });
    CHECK(fate.signal == SIGABRT);

    // A child process writes a log line while other threads write to the log.
    std::atomic<bool> is_done{false};
    std::thread writer([&] {
        while (!is_done) log_line(LogLevel::debug, "busy");
    });
    for (int i = 0; i < 50; ++i) CHECK(in_child([] { log_line(LogLevel::debug, "child"); }).signal == 0);
    is_done = true;
    writer.join();
    return test::result();
}
