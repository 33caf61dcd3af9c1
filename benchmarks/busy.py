# SPDX-License-Identifier: MIT
"""Measures decoding while other processes keep the cores busy.

    python benchmarks/busy.py --target T.gguf [--draft D.gguf] [--seconds 4] [--turns 2] [--json OUT]

The script measures three states of the machine: quiet, one core busy, all cores busy. In each state, three
contestants decode greedily in turns: llama.cpp target-only with one thread, llama.cpp target-only with one
thread per core, and eaglecpp with the number of threads that it chooses. eaglecpp decodes target-only, and
with a drafter also with `auto`. The script prints tokens per second, and the ratio of eaglecpp's speed to the
speed of llama.cpp with one thread in the same turn. One thread is the fair reference on shared cores, because
several threads spin at barriers until a thread without a core has run. The processes that keep cores busy end
at a deadline, even if this script is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
from common import arguments, facts, median, table, warn_if_busy, write_json

import eaglecpp

PROMPT = "The history of the steam engine begins"
GOAL = 0.8
SPIN = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


class Plain:
    """llama.cpp alone, greedy, with its default options."""

    def __init__(self, target: Path, n_threads: int) -> None:
        model_options = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(os.fsencode(target), model_options)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_threads, options.n_threads_batch = 2048, n_threads, n_threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.sampler = llama_cpp.llama_sampler_init_greedy()
        self.token, self.n_past = 1, 0

    def tokens_per_second(self, seconds: float) -> float:
        start, n = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            if self.n_past >= 1000:
                llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
                self.n_past = 0
            batch = llama_cpp.llama_batch_get_one((ctypes.c_int32 * 1)(self.token), 1)
            if llama_cpp.llama_decode(self.context, batch) != 0:
                raise SystemExit("llama_decode failed")
            self.token = llama_cpp.llama_sampler_sample(self.sampler, self.context, -1)
            self.n_past += 1
            n += 1
        return n / (time.perf_counter() - start)

    def close(self) -> None:
        llama_cpp.llama_sampler_free(self.sampler)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


class Ours:
    """An engine with the number of threads that it chooses."""

    def __init__(self, target: Path, draft: Path | None) -> None:
        strategy = "off" if draft is None else "auto"
        self.engine = eaglecpp.Engine.open(
            target, draft=draft, n_ctx=2048, strategy=strategy, planner_cache=False
        )
        self.stream: Any = None
        self.n_threads = 0

    def tokens_per_second(self, seconds: float) -> float:
        start, n = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            if self.stream is None:
                self.stream = self.engine.stream(PROMPT, max_tokens=1000, temperature=0.0, ignore_eos=True)
            chunk = next(self.stream, None)
            n += 0 if chunk is None else len(chunk.tokens)
            if chunk is None:
                self.stream = None
        self.n_threads = self.engine.native.n_threads_now
        return n / (time.perf_counter() - start)

    def close(self) -> None:
        self.engine.close()


@contextlib.contextmanager
def busy(n_cores: int, seconds: float) -> Iterator[None]:
    """Keeps cores busy for up to `seconds`."""
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN, str(seconds)]) for _ in range(n_cores)]
    try:
        time.sleep(0.3 if spinners else 0.0)
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of one measurement")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warn_if_busy()
    n_cores = eaglecpp.lowlevel.system_info()["n_cores"]
    makers: dict[str, Callable[[], Plain | Ours]] = {
        "llama.cpp, 1 thread": lambda: Plain(args.target, 1),
        f"llama.cpp, {n_cores} threads": lambda: Plain(args.target, n_cores),
        "eaglecpp": lambda: Ours(args.target, None),
    }
    if args.draft is not None:
        makers["eaglecpp, auto"] = lambda: Ours(args.target, args.draft)
    runners = {name: make() for name, make in makers.items()}
    for runner in runners.values():
        runner.tokens_per_second(0.5)
    rows: list[list[Any]] = []
    results: dict[str, Any] = {}
    for state, n_busy in (("quiet", 0), ("one core busy", 1), ("all cores busy", n_cores)):
        speeds: dict[str, list[float]] = {name: [] for name in runners}
        with busy(n_busy, 30.0 + 4 * args.turns * len(runners) * args.seconds):
            for _ in range(args.turns):
                for name, runner in runners.items():
                    speeds[name].append(runner.tokens_per_second(args.seconds))
        alone = speeds["llama.cpp, 1 thread"]
        for name, values in speeds.items():
            ratio = median([ours / theirs for ours, theirs in zip(values, alone, strict=True)])
            threads = getattr(runners[name], "n_threads", "")
            rows.append([state, name, f"{median(values):.1f}", f"{ratio:.2f}", threads])
            results[f"{state}: {name}"] = {"tokens_per_second": values, "over_one_thread": ratio}
    print(table(["machine", "program", "tokens/s", "over llama.cpp's 1 thread", "threads at the end"], rows))
    reached = min(entry["over_one_thread"] for name, entry in results.items() if "busy: eaglecpp" in name)
    print(f"goal {GOAL}: {'reached' if reached >= GOAL else 'missed'} ({reached:.2f} at least)")
    write_json(args.json, {"facts": facts({"target": args.target}), "results": results})
    for runner in runners.values():
        runner.close()


if __name__ == "__main__":
    main()
