# SPDX-License-Identifier: MIT
"""The promise on real weights: with a drafter that is of no use, `auto` is as fast as plain decoding.

    python benchmarks/never_slower.py --target T.gguf --draft D.gguf [--windows 6] [--load] [--json OUT]

Three hostile cases: the drafter's output rows shuffled, so that it is confidently wrong; a prompt of random
tokens; a prompt in another language. In each, windows of 512 tokens of one long generation, with the planner
and without, in turns and in small slices, so that a machine that changes speed changes both. A ratio is plain
time / time with the planner. Beside it the same for plain against plain, which shows what the machine's noise
alone does. `--load` keeps another process busy on one core in every second window.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from common import arguments, facts, median, note, table, warn_if_busy, write_json

import eaglecpp

GOAL, WINDOW, SLICE = 0.97, 512, 32
CASES = ("shuffled drafter", "random tokens", "Latin")
LATIN = (
    "Gallia est omnis divisa in partes tres, quarum unam incolunt Belgae, aliam Aquitani, tertiam qui "
    "ipsorum lingua Celtae, nostra Galli appellantur. Hi omnes lingua, institutis, legibus differunt."
)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--case", choices=CASES, help="only this one")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warn_if_busy()
    rows: list[list[Any]] = []
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        shuffled = Path(folder) / "shuffled.gguf"
        shuffle(args.draft, shuffled)
        for name in CASES if args.case is None else (args.case,):
            draft = shuffled if name == CASES[0] else args.draft
            ratios, noise, drafted = windows(args, draft, name)
            results[name] = {"ratios": ratios, "plain_against_plain": noise, "drafted_rounds": drafted}
            verdict = "reached" if min(ratios) >= GOAL else "NOT reached"
            rows.append([name, min(ratios), median(ratios), min(noise), f"{100 * drafted:.1f} %", verdict])
            note(f"{name}: {[round(r, 3) for r in ratios]}, plain {[round(r, 3) for r in noise]}")
    head = ("case", "worst window", "median", "plain against plain", "rounds with drafts", f"at least {GOAL}")
    print(table(head, rows))
    write_json(args.json, {**facts({"target": args.target, "draft": args.draft}), "results": results})


def shuffle(draft: Path, out: Path) -> None:
    """A copy whose output rows stand in random order; quantised rows are whole bytes."""
    data = bytearray(draft.read_bytes())
    tensor = next(t for t in gguf.GGUFReader(draft).tensors if t.name == "output.weight")
    n_rows = int(tensor.shape[1])
    begin, size = int(tensor.data_offset), int(tensor.n_bytes)
    matrix = np.frombuffer(data, np.uint8, size, begin).reshape(n_rows, -1)
    data[begin : begin + size] = matrix[np.random.default_rng(1).permutation(n_rows)].tobytes()
    out.write_bytes(data)


def windows(args: argparse.Namespace, draft: Path, case: str) -> tuple[list[float], list[float], float]:
    """Ratios of all windows, planner and plain, and the share of rounds that drafted."""
    options: dict[str, Any] = {"n_ctx": 2048, "n_threads": args.threads, "planner_cache": False}
    ratios, noise = [], []
    n_rounds = n_drafted = 0
    with contextlib.ExitStack() as stack:
        plain, control = (stack.enter_context(eaglecpp.Engine.open(args.target, **options)) for _ in range(2))
        auto = stack.enter_context(eaglecpp.Engine.open(args.target, draft=draft, strategy="auto", **options))
        for window in range(args.windows):
            with busy() if args.load and window % 2 else contextlib.nullcontext():
                ms = slices([plain, auto, control], prompt(plain, case, window))
            ratios.append(ms[0] / ms[1])
            noise.append(ms[0] / ms[2])
        stats = auto.timings
        n_rounds, n_drafted = stats.rounds, int(stats.plan.get("drafted_rounds", 0))
    return ratios, noise, n_drafted / max(n_rounds, 1)


def prompt(engine: eaglecpp.Engine, case: str, window: int) -> list[int]:
    if case == "Latin":
        return engine.tokenize(LATIN)[window % 5 :]
    rng = random.Random(window)
    return [rng.randrange(300, engine.n_vocab) for _ in range(64)]


def slices(engines: list[eaglecpp.Engine], tokens: list[int]) -> list[float]:
    """Milliseconds that each engine took for the same window, in turns of 32 tokens."""
    streams, ms, done = [], [0.0] * len(engines), [0] * len(engines)
    for engine in engines:
        engine.clear()
        streams.append(engine.stream(tokens, max_tokens=WINDOW, temperature=0.8, seed=1, ignore_eos=True))
    while any(n < WINDOW for n in done):
        for index, stream in enumerate(streams):
            goal = min(WINDOW, done[index] + SLICE)
            began = time.perf_counter()
            while done[index] < goal:
                done[index] += len(next(stream).tokens)
            if goal > SLICE:  # the first slice holds the prefill
                ms[index] += 1000 * (time.perf_counter() - began)
    for stream in streams:
        stream.close()
    return ms


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Another process that takes a core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
