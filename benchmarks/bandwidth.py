# SPDX-License-Identifier: MIT
"""How fast this machine reads memory: a loop in C that only adds up, compiled on the spot.

    python benchmarks/bandwidth.py [--rows PATH]

numpy's sums are bound by arithmetic on one core before memory is, so they cannot answer this. `--rows` also
measures what fetching ahead is worth: 1, 2 and 4 rows of weights that come from memory with our AVX2 kernels,
as they are and without what they fetch ahead, in turns. PATH: the sources of the pinned llama.cpp, for ggml's
headers.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from common import arguments

N_BYTES = 1 << 30
SOURCE = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef struct { const uint64_t * from; size_t n; uint64_t sum; } Part;

static void * add_up(void * p) {
    Part * part = p;
    uint64_t sum[16] = {0};  /* more would not stay in the registers, and storing is slower than memory */
    for (size_t i = 0; i + 16 <= part->n; i += 16) {
        for (int k = 0; k < 16; k += 8) __builtin_prefetch(part->from + i + k + (16 << 10) / 8, 0, 2);
        for (int k = 0; k < 16; ++k) sum[k] ^= part->from[i + k];
    }
    for (int k = 0; k < 16; ++k) part->sum ^= sum[k];
    return NULL;
}

/* bytes per nanosecond, the best of `repeats`; 0 when memory or threads are missing */
double read_bandwidth(size_t n_bytes, int n_threads, int repeats) {
    uint64_t * data = NULL;
    if (n_threads > 256 || posix_memalign((void **)&data, 1 << 21, n_bytes) != 0) return 0.0;
#ifdef MADV_HUGEPAGE
    madvise(data, n_bytes, MADV_HUGEPAGE);
#endif
    memset(data, 1, n_bytes);
    double best = 0.0;
    for (int r = 0; r < repeats; ++r) {
        pthread_t threads[256];
        Part parts[256] = {{0}};
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        const size_t n = n_bytes / sizeof(uint64_t) / n_threads;
        for (int i = 0; i < n_threads; ++i) {
            parts[i].from = data + i * n;
            parts[i].n = n;
            if (pthread_create(&threads[i], NULL, add_up, &parts[i]) != 0) return 0.0;
        }
        for (int i = 0; i < n_threads; ++i) pthread_join(threads[i], NULL);
        clock_gettime(CLOCK_MONOTONIC, &b);
        const double ns = (b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec);
        if (n_bytes / ns > best) best = n_bytes / ns;
    }
    free(data);
    return best;
}
"""
# The kernels themselves; WITHOUT takes out what fetches ahead.
PRODUCTS = r"""
#include <immintrin.h>
#ifdef WITHOUT
#undef _mm_prefetch
#define _mm_prefetch(address, hint) ((void)(address))
#endif
#define KERNEL_AVX2
#define KERNEL_NS avx2
#include "kernels/products.inc"

#include <chrono>
#include <thread>
#include <vector>

using namespace eaglecpp::kernels;

/* milliseconds of one product with n_bytes of weights of this type */
extern "C" double product_ms(int type, size_t n_bytes, int n_rows, int n_threads) {
    constexpr int64_t n_in = 2048;
    const PackedProduct & product = *(type == GGML_TYPE_Q4_0   ? avx2::product_of<avx2::TypeQ4_0>()
                                      : type == GGML_TYPE_Q5_0 ? avx2::product_of<avx2::TypeQ5_0>()
                                      : type == GGML_TYPE_Q8_0 ? avx2::product_of<avx2::TypeQ8_0>()
                                                               : avx2::product_of<avx2::TypeQ4_K>());
    const size_t n_group_bytes = product.group_bytes(n_in), n_row_bytes = avx2::act_row_bytes(n_in);
    const int64_t n_groups = n_bytes / n_group_bytes, n_out = n_group * n_groups;
    static std::vector<uint8_t> weights, rounded;
    weights.resize(n_bytes + (1 << 16), 1);
    rounded.resize(n_row_bytes * n_rows + 64);
    uint8_t * first = weights.data() + (64 - (uintptr_t)weights.data() % 64);
    const std::vector<float> x(n_in, 0.5f);
    std::vector<float> out(n_out * n_rows);
    std::vector<const uint8_t *> rows;
    std::vector<float *> outs;
    for (int r = 0; r < n_rows; ++r) {
        product.quantize(x.data(), n_in, &rounded[r * n_row_bytes]);
        rows.push_back(&rounded[r * n_row_bytes]);
        outs.push_back(&out[r * n_out]);
    }
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int t = 0; t < n_threads; ++t) {
        threads.emplace_back([&, t] {
            product.multiply(first, n_in, n_out, n_groups * t / n_threads, n_groups * (t + 1) / n_threads,
                             rows.data(), n_rows, outs.data());
        });
    }
    for (std::thread & t : threads) t.join();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}
"""
TYPES = {"Q4_0": 2, "Q5_0": 6, "Q8_0": 8, "Q4_K": 12}  # ggml's numbers
N_PRODUCT_BYTES, N_TURNS = 256 << 20, 9


@functools.cache
def _compiled() -> ctypes.CDLL:
    loop = built(SOURCE, "loop.c", "-march=native")
    loop.read_bandwidth.restype = ctypes.c_double
    loop.read_bandwidth.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
    return loop


def built(source: str, name: str, *options: str) -> ctypes.CDLL:
    """The source as a library."""
    compiler = shutil.which("c++" if name.endswith(".cpp") else "cc")
    if compiler is None:
        raise SystemExit("the read bandwidth is measured by a loop in C: no compiler was found")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_text(source, encoding="ascii")
        command = [compiler, "-O3", "-shared", "-fPIC", "-pthread", *options, name, "-o", "loop.so"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{compiler} could not compile what reads memory\n{done.stderr}")
        return ctypes.CDLL(str(Path(folder, "loop.so")))


def fetching_ahead(llama_cpp: Path, n_threads: int) -> None:
    """Prints milliseconds of rows with what the kernels fetch ahead and without."""
    root = Path(__file__).resolve().parents[1]
    options = [
        "-std=c++17",
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-fno-tree-ter",
        "-fno-tree-reassoc",
        "-ffp-contract=off",
    ]
    options += [f"-I{root / 'native'}", f"-I{llama_cpp.resolve() / 'ggml' / 'include'}"]
    kinds = {"with": (), "without": ("-DWITHOUT",)}
    programs = {kind: built(PRODUCTS, "rows.cpp", *options, *more).product_ms for kind, more in kinds.items()}
    for program in programs.values():
        program.restype = ctypes.c_double
        program.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
    for name, number in TYPES.items():
        for n_rows in (1, 2, 4):
            turns: dict[str, list[float]] = {kind: [] for kind in programs}
            for turn in range(N_TURNS + 1):
                for kind, program in programs.items():
                    ms = program(number, N_PRODUCT_BYTES, n_rows, n_threads)
                    if turn:  # the first one has new memory
                        turns[kind].append(ms)
            ratio = statistics.median(a / b for a, b in zip(turns["without"], turns["with"], strict=True))
            ms = {kind: statistics.median(found) for kind, found in turns.items()}
            print(
                f"{name}, rows {n_rows}, threads {n_threads}: {ms['with']:.1f} ms, "
                f"{ms['without']:.1f} without fetching ahead ({ratio:.2f})"
            )


def read_bandwidth(n_threads: int, repeats: int = 3) -> float:
    """GB/s over 1 GB, all threads together, the best of a few passes."""
    speed = float(_compiled().read_bandwidth(N_BYTES, n_threads, repeats))
    if speed == 0.0:
        raise SystemExit("no memory for 1 GB to read")
    return speed


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=Path, metavar="PATH", help="sources of the pinned llama.cpp")
    args = parser.parse_args()
    if args.rows is None:
        for n in (1, 2, 4, 8):
            print(f"{n} threads: {read_bandwidth(n):.1f} GB/s")
        return
    for n in (1, os.cpu_count() or 1):
        fetching_ahead(args.rows, n)


if __name__ == "__main__":
    main()
