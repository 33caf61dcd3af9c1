# SPDX-License-Identifier: MIT
"""One report of a machine with a GPU, to paste into an issue: what is installed, what a row costs, what
drafting gains.

    python benchmarks/gpu.py TARGET.gguf DRAFT.gguf [--server PATH/llama-server] [-ngl N] [--tokens 200]

Nothing is sent anywhere. Speeds are of the same prompts in turns, so that a machine that warms up slows all
of them. With --server llama.cpp's own `draft-eagle3` is measured on the same files; it reads drafters of the
architecture `eagle3` only.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from common import arguments, table
from llama_server import LlamaServer

import eaglecpp
from eaglecpp.lowlevel import EngineOptions, Target, system_info, versions

PROMPTS = (
    "Explain in a few paragraphs how a bicycle stays upright.",
    "Write a Python class for a queue with a maximum length, with its tests.",
    "List the planets of the solar system with a sentence about each.",
)
STRATEGIES = ("off", "chain:2", "chain:4", "tree:k=4,depth=3,nodes=7", "tree:k=4,depth=4,nodes=16", "auto")
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--server", help="llama.cpp's llama-server, for its draft-eagle3")
    parser.add_argument("-ngl", type=int, default=-1)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    lines = [*machine(), *row_curve(args), *speeds(args)]
    print("\n".join(lines))


def machine() -> list[str]:
    found = versions()
    gpus = [d for d in system_info()["devices"] if d["kind"] == "gpu"]
    if not gpus:
        sys.exit("llama.cpp finds no GPU here: see docs/install.md#gpu (and --no-cache-dir)")
    lines = [
        "## Machine",
        "",
        f"eaglecpp {eaglecpp.__version__}, llama-cpp-python {found['llama_cpp_python']}",
    ]
    for d in gpus:
        gib = [d[name] / 2**30 for name in ("memory_free", "memory_total")]
        lines.append(f"{d['name']}: {d['description']}, {gib[0]:.1f} of {gib[1]:.1f} GiB free")
    return [*lines, ""]


def row_curve(args: argparse.Namespace) -> list[str]:
    """What a decode of n rows costs over one of a single row."""
    options = EngineOptions()
    options.target_path, options.n_ctx, options.n_gpu_layers = args.target, 1024, args.ngl
    target = Target(options, [])
    prefix = [1 + i % 100 for i in range(256)]
    ms = {n: statistics.median(target.time_rows(prefix, [5] * n, 2 + 5 * args.repeats)[2:]) for n in ROWS}
    rows = [[str(n), f"{ms[n]:.2f}", f"{ms[n] / ms[1]:.2f}"] for n in ROWS]
    return ["## A decode of n rows behind 256", "", table(["rows", "ms", "over one row"], rows), ""]


def speeds(args: argparse.Namespace) -> list[str]:
    options: dict[str, Any] = {"max_tokens": args.tokens, "temperature": 0.0, "ignore_eos": True}
    speed: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    length: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    same: dict[str, int] = dict.fromkeys(STRATEGIES, 0)
    with eaglecpp.Engine.open(args.target, args.draft, n_ctx=2048, n_gpu_layers=args.ngl) as engine:
        where = engine.device_info
        prompts = [engine.tokenize(prompt) for prompt in PROMPTS]
        for repeat in range(args.repeats + 1):
            for prompt in prompts:
                plain: list[int] = []
                for name in STRATEGIES:
                    engine.clear()
                    done = engine.generate(prompt, strategy=name, **options)
                    plain = plain or done.tokens
                    if repeat == 0:  # the first time is a warm-up, but its text counts
                        same[name] += done.tokens == plain
                        continue
                    stats = done.timings
                    speed[name].append(1000 * (stats.predicted_n - 1) / stats.predicted_ms)
                    length[name].append(stats.predicted_n / max(1, stats.rounds))
        plan = engine.generate(prompts[0], strategy="auto", **options).timings.plan
    off = statistics.median(speed["off"])
    rows = [
        [
            name,
            f"{statistics.median(speed[name]):.1f}",
            f"{statistics.median(speed[name]) / off:.2f}",
            f"{statistics.mean(length[name]):.2f}",
            f"{same[name]} of {len(PROMPTS)}",
        ]
        for name in STRATEGIES
    ]
    if args.server:
        theirs = server_speed(args, prompts)
        rows.append(["llama-server, draft-eagle3", f"{theirs:.1f}", f"{theirs / off:.2f}", "", ""])
    head = ["strategy", "tokens/s", "over off", "tokens a round", "text as off"]
    places = f"target on {where['target']}, drafter on {where['draft']}"
    return ["## Speed", "", places, "", table(head, rows), "", f"auto: {plan['strategy']}, {plan['why']}"]


def server_speed(args: argparse.Namespace, prompts: list[list[int]]) -> float:
    """Tokens per second of llama.cpp's own drafting, at its default depth."""
    extra = ["-ngl", str(args.ngl if args.ngl >= 0 else 99), "-ngld", "99"]
    found = []
    with LlamaServer(
        Path(args.server), Path(args.target), draft=Path(args.draft), n_max=3, n_ctx=2048, extra=extra
    ) as server:
        for repeat in range(args.repeats + 1):
            for prompt in prompts:
                timings = server.complete_and_rest(prompt, args.tokens).timings
                if repeat > 0:
                    found.append(float(timings["predicted_per_second"]))
    return statistics.median(found)


if __name__ == "__main__":
    main()
