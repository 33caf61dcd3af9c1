# SPDX-License-Identifier: MIT
"""Measures our attention kernels on 1, 2, 4 and 8 tokens after a long text, by shape, cache and processor.

    python benchmarks/attention.py PATH [--cells 32768] [--threads 1 2] [--against DIR] [--json FILE]

PATH: the sources of the pinned llama.cpp, for ggml's headers. --against: `native/` of another checkout,
measured in turns with the `native/` of this checkout. The script compiles the kernels.

A time is the processor time of the slowest thread for one layer, in ms, and the minimum of several turns.
Several layers take turns, because all layers together exceed the processor's caches. Two reference times are
measured in the same minutes. The first is the time to read the K/V cache with the loop of `bandwidth.py`. The
second is the time of the multiplications for four tokens (2 * head size / 16 for each token, head and cell)
at the speed of a loop that only multiplies.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bandwidth import built, read_bandwidth
from common import arguments, facts, note, table, warn_if_busy, write_json

SOURCE = r"""
#include "kernels/attention.inc"

#include <sys/mman.h>
#include <time.h>

#include <thread>
#include <vector>

struct ggml_threadpool {};
namespace eaglecpp::kernels {
Barrier barrier_of_ggml = nullptr;
}
using namespace eaglecpp::kernels;
using namespace eaglecpp::kernels::KERNEL_NS;

static double now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e3 * t.tv_sec + 1e-6 * t.tv_nsec;
}

static ggml_tensor tensor(ggml_type type, void * data, size_t size, int64_t a, int64_t b, int64_t c,
                          size_t nb_b, size_t nb_c) {
    ggml_tensor t = {};
    t.type = type;
    t.data = data;
    t.ne[0] = a, t.ne[1] = b, t.ne[2] = c, t.ne[3] = 1;
    t.nb[0] = size, t.nb[1] = nb_b, t.nb[2] = nb_c, t.nb[3] = nb_c * c;
    return t;
}

// row_bytes: of one cell and head. Values are small: F16 up to 1/8, and blocks of bytes with such a scale.
extern "C" double attention_ms(int type, int row_bytes, int type_bytes, int d, int n_heads, int n_kv_heads,
                               int n_cells, int n_layers, int n_rows, int n_threads) {
    static std::vector<char *> caches;
    static size_t n_bytes = 0;
    const size_t n_cache = (size_t)n_cells * n_kv_heads * row_bytes;
    if (n_bytes != n_cache || (int)caches.size() != n_layers) {
        for (char * c : caches) munmap(c, 2 * n_bytes);
        caches.clear();
        n_bytes = n_cache;
        uint32_t random = 1;
        for (int l = 0; l < n_layers; ++l) {
            void * p = mmap(nullptr, 2 * n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (p == MAP_FAILED) return -1;
            madvise(p, 2 * n_bytes, MADV_HUGEPAGE);
            auto * x = (uint16_t *)p;
            for (size_t i = 0; i < n_bytes; ++i) {
                random = random * 1664525u + 1013904223u;
                const bool is_scale = type == GGML_TYPE_F16 || i % (type_bytes / 2) == 0;
                x[i] = is_scale ? 0x2C00 | (random >> 16 & 0x83FF) : random >> 16;
            }
            caches.push_back((char *)p);
        }
    }
    std::vector<float> q((size_t)n_rows * n_heads * d, 0.25f), out(q.size());
    std::vector<uint16_t> mask((size_t)n_rows * n_cells);
    for (int r = 0; r < n_rows; ++r) {
        for (int c = n_cells - n_rows + r + 1; c < n_cells; ++c) mask[(size_t)r * n_cells + c] = 0xFC00;
    }
    std::vector<double> ms(n_threads);
    for (char * cache : caches) {
        const size_t nb = row_bytes, nh = d * sizeof(float), nm = 2 * n_cells;
        ggml_tensor tq = tensor(GGML_TYPE_F32, q.data(), 4, d, n_rows, n_heads, n_heads * nh, nh);
        const size_t nb_cell = nb * n_kv_heads;
        ggml_tensor tk = tensor((ggml_type)type, cache, type_bytes, d, n_cells, n_kv_heads, nb_cell, nb);
        ggml_tensor tv = tk, op = tensor(GGML_TYPE_F32, out.data(), 4, d, n_heads, n_rows, nh, n_heads * nh);
        tv.data = cache + n_cache;
        ggml_tensor tm = tensor(GGML_TYPE_F16, mask.data(), 2, n_cells, n_rows, 1, nm, nm * n_rows);
        op.op = GGML_OP_FLASH_ATTN_EXT;
        op.src[0] = &tq, op.src[1] = &tk, op.src[2] = &tv, op.src[3] = &tm;
        const float scale = 1 / std::sqrt((float)d);
        std::memcpy(op.op_params, &scale, sizeof scale);
        std::vector<char> work(attention_work_size(n_threads, &op));
        std::vector<std::thread> threads;
        for (int i = 0; i < n_threads; ++i) {
            threads.emplace_back([&, i] {
                const double start = now();
                attention({i, n_threads, work.size(), work.data(), nullptr, false}, &op);
                ms[i] += now() - start;
            });
        }
        for (std::thread & t : threads) t.join();
    }
    return *std::max_element(ms.begin(), ms.end()) / n_layers;
}

// fused multiply-adds of sixteen lanes in a nanosecond
extern "C" double fmas_per_ns() {
    constexpr int n = 12 / n_registers, n_turns = 100000;
    F32 a[n];
    const F32 x = set1(1e-9f);
    for (F32 & y : a) y = zero_f32();
    const double start = now();
    for (int i = 0; i < n_turns; ++i) {
        KERNEL_UNROLL for (int j = 0; j < n; ++j) a[j] = fma(x, x, a[j]);
        asm volatile("" ::: "memory");
    }
    const double ms = now() - start;
    float total = 0;
    for (const F32 & y : a) total += sum(y);
    return total < 0 ? 0 : n * n_turns / ms * 1e-6;
}
"""
OPTIONS = {
    "avx512": "-DKERNEL_AVX512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c",
    "avx2": "-DKERNEL_AVX2 -mavx2 -mfma -mf16c -fno-tree-ter -fno-tree-reassoc",
}
# (head size, number of heads, number of key heads) of SmolLM2-135M, Gemma-3-270M and Qwen3-0.6B
SHAPES = {"9/3 of 64": (64, 9, 3), "4/1 of 256": (256, 4, 1), "16/8 of 128": (128, 16, 8)}
# (ggml's number of the type, bytes per block, values per block)
CACHES = {"f16": (1, 2, 1), "q8_0": (8, 34, 32), "q4_0": (2, 18, 32)}
ROWS = (1, 2, 4, 8)
N_BYTES = 200_000_000  # total bytes of the caches of all layers, which take turns


Kernels = dict[str, ctypes.CDLL]


def compiled(isa: str, native: Path, llama_cpp: Path) -> ctypes.CDLL:
    options = f"-std=c++17 -ffp-contract=off -w -DKERNEL_NS={isa} {OPTIONS[isa]}".split()
    include = [f"-I{native.resolve()}", f"-I{llama_cpp.resolve() / 'ggml' / 'include'}"]
    library = built(SOURCE, "attention.cpp", *options, *include)
    library.attention_ms.restype = library.fmas_per_ns.restype = ctypes.c_double
    library.attention_ms.argtypes = [ctypes.c_int] * 10
    return library


def measured(kernels: Kernels, args: argparse.Namespace, n_threads: int) -> Iterator[dict[str, Any]]:
    gb_per_s = read_bandwidth(n_threads)
    for shape, cache in itertools.product(args.shapes, args.caches):
        d, n_heads, n_kv_heads = SHAPES[shape]
        number, block, n = CACHES[cache]
        layer_bytes = 2 * d // n * block * n_kv_heads * args.cells
        n_layers = -(-N_BYTES // layer_bytes)
        given = (number, d // n * block, block, d, n_heads, n_kv_heads, args.cells, n_layers)
        found: dict[tuple[str, int], list[float]] = {(who, rows): [] for who in kernels for rows in ROWS}
        fmas = 0.0
        for _ in range(args.turns):
            for (who, rows), turns in found.items():
                turns.append(kernels[who].attention_ms(*given, rows, n_threads))
            fmas = max(fmas, kernels["ours"].fmas_per_ns())
        note(f"{shape}, {cache}")
        yield {
            "shape": shape,
            "cache": cache,
            "threads": n_threads,
            "ms": {who: {rows: min(found[who, rows]) for rows in ROWS} for who in kernels},
            "reading_ms": layer_bytes / gb_per_s / 1e6,
            "multiplying_ms": 4 * 2 * d / 16 * n_heads * args.cells / fmas / 1e6 / n_threads,
        }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("llama_cpp", type=Path, metavar="PATH")
    parser.add_argument("--cells", type=int, default=32768)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--caches", nargs="+", choices=list(CACHES), default=["f16", "q8_0"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warn_if_busy()
    sources = {"ours": Path(__file__).resolve().parents[1] / "native"}
    if args.against:
        sources["theirs"] = args.against
    results = []
    for isa in OPTIONS:
        if isa == "avx512" and "avx512_vnni" not in Path("/proc/cpuinfo").read_text(encoding="ascii"):
            continue
        kernels = {who: compiled(isa, native, args.llama_cpp) for who, native in sources.items()}
        for n_threads in args.threads:
            results += [{"isa": isa} | one for one in measured(kernels, args, n_threads)]
    head = ["", "threads", "heads", "cache", "kernels", *(f"{n} rows, ms" for n in ROWS), "4/1", "reading"]
    lines = [
        [one["isa"], one["threads"], one["shape"], one["cache"], who, *ms.values(), ms[4] / ms[1],
         one["reading_ms"], one["multiplying_ms"]]
        for one in results
        for who, ms in one["ms"].items()
    ]  # fmt: skip
    print(table([*head, "4 rows multiplying"], lines))
    write_json(args.json, facts({}, cells=args.cells, turns=args.turns) | {"results": results})


if __name__ == "__main__":
    sys.exit(main())
