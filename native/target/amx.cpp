// SPDX-License-Identifier: MIT
#include "target/amx.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpp.h>

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
// Q8_0 weights [n_out, n_in] in tiles times 4 rows, on this thread only (a forked child has no other threads).
static bool multiply_in_tiles(ggml_backend_buffer_type_t tiles) {
    constexpr int n_in = 256, n_out = 64, n_rows = 4;
    ggml_context_ptr wctx(ggml_init({2 * ggml_tensor_overhead(), nullptr, true}));
    ggml_tensor * w = ggml_new_tensor_2d(wctx.get(), GGML_TYPE_Q8_0, n_in, n_out);
    ggml_backend_buffer_ptr wbuf(ggml_backend_alloc_ctx_tensors_from_buft(wctx.get(), tiles));
    if (!wbuf) return false;
    const std::vector<uint8_t> zeros(ggml_nbytes(w), 0);
    ggml_backend_tensor_set(w, zeros.data(), 0, zeros.size());

    ggml_backend_ptr cpu(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    const auto set = (ggml_backend_set_n_threads_t)kernels::cpu_function("ggml_backend_set_n_threads");
    if (set) set(cpu.get(), 1);
    ggml_context_ptr ctx(ggml_init({8 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
    ggml_tensor * x = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_in, n_rows);
    ggml_cgraph * gf = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(gf, ggml_mul_mat(ctx.get(), w, x));
    ggml_gallocr_ptr alloc(ggml_gallocr_new(ggml_backend_get_default_buffer_type(cpu.get())));
    if (!ggml_gallocr_alloc_graph(alloc.get(), gf)) return false;
    const std::vector<float> ones(n_in * n_rows, 1.0f);
    ggml_backend_tensor_set(x, ones.data(), 0, ones.size() * sizeof(float));
    return ggml_backend_graph_compute(cpu.get(), gf) == GGML_STATUS_SUCCESS;
}

static bool child_survives(ggml_backend_buffer_type_t tiles) {
    const pid_t pid = fork();
    if (pid < 0) return false;
    if (pid == 0) {
        for (int sig : {SIGILL, SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGALRM}) std::signal(sig, SIG_DFL);
        alarm(10);  // a hang ends, too
        _exit(multiply_in_tiles(tiles) ? 0 : 1);
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
        const bool works = child_survives(tiles);
#endif
        if (!works) {
            log_line(LogLevel::info, "the CPU announces AMX but its tile instructions fail; weights stay unpacked");
        }
        return AmxState{true, works};
    }();
    return state;
}

}  // namespace eaglecpp
