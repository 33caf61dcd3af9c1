// SPDX-License-Identifier: MIT
// Weights that are packed after they were loaded, out of a mapped file: products see them as if they had been packed at
// once, whenever they come, though the loader's own mapping is gone; in a forked child, too.
#include <algorithm>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cpu.h"
#include "ggml_hook/hook.h"

#ifdef __linux__
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

using namespace eaglecpp;

#ifdef __linux__

namespace {

constexpr int n_in = 512, n_out = 1000, n_matrices = 6, n_rows = 3;
constexpr ggml_type types[n_matrices] = {GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q5_0,
                                         GGML_TYPE_Q6_K, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0};

// A file of matrices, mapped as llama.cpp maps models; offsets are not multiples of the page size.
struct File {
    std::vector<uint8_t> bytes = std::vector<uint8_t>(32);
    size_t at[n_matrices];
    FILE * file = std::tmpfile();
    File() {
        for (int i = 0; i < n_matrices; ++i) {
            const std::vector<float> values = test::normal((size_t)n_in * n_out);
            at[i] = bytes.size();
            bytes.resize(at[i] + ggml_row_size(types[i], n_in) * n_out);
            ggml_quantize_chunk(types[i], values.data(), bytes.data() + at[i], 0, n_out, n_in, nullptr);
        }
        CHECK(std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() && std::fflush(file) == 0);
    }
    ~File() { std::fclose(file); }
};

struct Weights {
    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;
    ggml_tensor * tensors[n_matrices];

    Weights() : ctx(ggml_init({n_matrices * ggml_tensor_overhead(), nullptr, true})) {
        for (int i = 0; i < n_matrices; ++i) tensors[i] = ggml_new_tensor_2d(ctx.get(), types[i], n_in, n_out);
        buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), kernels::weights_buffer_type()));
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    void write(const File & file, const uint8_t * bytes) {
        for (int i = 0; i < n_matrices; ++i) {
            ggml_backend_tensor_set(tensors[i], bytes + file.at[i], 0, ggml_nbytes(tensors[i]));
        }
    }
};

Weights packed_at_once(const File & file) {
    Weights w;
    const kernels::LoadScope scope(true, false);
    w.write(file, file.bytes.data());
    return w;
}

Weights packed_later(const File & file) {
    Weights w;
    void * mapped = mmap(nullptr, file.bytes.size(), PROT_READ, MAP_SHARED, fileno(file.file), 0);
    CHECK(mapped != MAP_FAILED);
    {
        const kernels::LoadScope scope(true, false, /*is_mapped=*/true);
        w.write(file, (const uint8_t *)mapped);
    }
    munmap(mapped, file.bytes.size());
    return w;
}

std::vector<float> multiply(ggml_tensor * w, int n_threads) {
    std::vector<float> x((size_t)n_in * n_rows);
    for (size_t i = 0; i < x.size(); ++i) x[i] = (float)((int)(i * 53 % 255) - 127);
    return test::Product(w, x, 1, n_rows).run(n_threads);
}

using Products = std::vector<std::vector<float>>;

Products all_products(const Weights & w, int n_threads, bool from_the_end) {
    Products y(n_matrices);
    for (int i = 0; i < n_matrices; ++i) {
        const int m = from_the_end ? n_matrices - 1 - i : i;
        y[m] = multiply(w.tensors[m], n_threads);
    }
    return y;
}

// as the first thing in this process that computes with threads: ggml's do not exist in a child
void check_fork(const File & file) {
    for (int i = 0; i < 20; ++i) {
        const Weights at_once = packed_at_once(file), later = packed_later(file);
        const pid_t child = fork();
        if (child == 0) _exit(all_products(at_once, 1, false) == all_products(later, 1, true) ? 0 : 1);
        int status = 1;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

}  // namespace

int main() {
    bool is_active = false;
    std::thread([&] { is_active = kernels::status().is_active; }).join();  // it tries them with helper threads
    if (!is_active) return 0;  // no kernels for this processor: test_products says so
    const File file;
    check_fork(file);
    const Products expected = all_products(packed_at_once(file), 2, false);
    for (int i = 0; i < 40; ++i) {
        const Weights w = packed_later(file);
        CHECK(all_products(w, 1 + i % 3, i % 2) == expected);
        CHECK(all_products(w, 1, false) == expected);
    }
    // models that are opened at the same time, and some that are closed before they are packed
    std::vector<std::thread> users;
    for (int t = 0; t < 4; ++t) {
        users.emplace_back([&, t] {
            for (int i = 0; i < 10; ++i) {
                const Weights w = packed_later(file);
                if ((i + t) % 3 > 0) CHECK(all_products(w, 2, t % 2) == expected);
            }
        });
    }
    for (std::thread & t : users) t.join();
    // a part of a matrix would leave the rest unset
    const Weights whole = packed_at_once(file);
    CHECK_THROWS(ggml_backend_tensor_set(whole.tensors[0], file.bytes.data(), 0, ggml_row_size(types[0], n_in)),
                 "can only be written as a whole");
    // bytes that are no file's are gone when the call returns
    Weights w;
    std::vector<uint8_t> copy = file.bytes;
    {
        const kernels::LoadScope scope(true, false, /*is_mapped=*/true);
        w.write(file, copy.data());
        std::fill(copy.begin(), copy.end(), (uint8_t)0);
    }
    CHECK(all_products(w, 2, false) == expected);
    return test::result();
}

#else

int main() {
    return 0;  // nothing is packed later here
}

#endif
