# SPDX-License-Identifier: MIT
"""Measures this machine's read bandwidth with a loop in C that only adds. This module compiles the loop.

Sums in numpy cannot measure the bandwidth, because on one core arithmetic limits their speed.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

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


@functools.cache
def _compiled() -> ctypes.CDLL:
    loop = built(SOURCE, "loop.c", "-march=native")
    loop.read_bandwidth.restype = ctypes.c_double
    loop.read_bandwidth.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
    return loop


def built(source: str, name: str, *options: str) -> ctypes.CDLL:
    """Compiles C source and returns it as a library. name: name of the file; options: options of the
    compiler.
    """
    compiler = shutil.which("c++" if name.endswith(".cpp") else "cc")
    if compiler is None:
        raise SystemExit("measuring the bandwidth needs a C compiler: install gcc or clang")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_text(source, encoding="ascii")
        command = [compiler, "-O3", "-shared", "-fPIC", "-pthread", *options, name, "-o", "loop.so"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{compiler} failed to compile the loop that reads memory:\n{done.stderr}")
        return ctypes.CDLL(str(Path(folder, "loop.so")))


def read_bandwidth(n_threads: int, repeats: int = 3) -> float:
    """Returns the read bandwidth of all threads together in GB/s, the maximum of a few passes over 1 GB."""
    speed = float(_compiled().read_bandwidth(N_BYTES, n_threads, repeats))
    if speed == 0.0:
        raise SystemExit("the read bandwidth is measured with 1 GB, but this memory is not free")
    return speed
