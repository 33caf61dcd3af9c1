# SPDX-License-Identifier: MIT
"""Prints a report of a machine with a GPU, to paste into an issue: installed versions, cost of batches, and
speed-up by drafting for one user and for several.

    python benchmarks/gpu.py [TARGET.gguf DRAFT.gguf]... [--demo TARGET.gguf DRAFT.gguf]...
           [--rows TARGET.gguf]... [--sizes-of-8b FOLDER] [--server PATH/llama-server] [-ngl N]
           [--threads 8,16] [--users 1,4] [--tokens 200] [--repeats 3]

The script sends nothing over the network. Each engine opens with its defaults and answers with `auto` first,
as for a new user. Then strategies take turns, so that a machine that warms up slows all strategies alike.
Pairs in `--demo` contain the demo target, and get questions that the demo target was trained on. `--rows`
times batches of further targets, without a drafter. `--sizes-of-8b` writes a target with the shapes of an 8B
model in Q4_0, and an EAGLE-3, a DSpark and a DFlash2 drafter, to FOLDER. All weights of these files are zero,
but the costs of running the files are real. 0.83 of the drafts at each depth are accepted at random. `auto`
is not measured with these files, because a drafter of zeros has no confidence. With --server, llama.cpp's
target-only decoding and its drafting (3 drafts, 7 with a block drafter) are measured on the same files, if
llama.cpp reads the drafter. `--threads` repeats all measurements with each number of threads. Every section
is printed when it is complete, so an interrupted run has printed the earlier sections. gpu_kit.py makes a
folder that runs this script on a machine without a network.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from common import arguments, cpu_name, table
from llama_server import LlamaServer, ServerError, draft_kind

import eaglecpp
from eaglecpp.lowlevel import EngineOptions, Target, system_info, versions
from eaglecpp.results import Completion, Timings
from helpers import sparse
from helpers.random_acceptance import accepted_at_random

PROMPTS = (
    "Explain in a few paragraphs how a bicycle stays upright.",
    "Write a Python class for a queue with a maximum length, with its tests.",
    "List the planets of the solar system with a sentence about each.",
    "Write a letter to a friend who wants to learn to cook.",
)
DEMO = (
    "What does os.path.join do?",
    "Explain math.sqrt.",
    "What is in the module json?",
    "What does len do?",
)
"""Questions that the demo target was trained on."""
OF_LEVELS, OF_A_BLOCK = ("chain:2", "chain:4"), ("chain:4", "chain:7")
LOT = [0.83**depth for depth in range(1, 9)]
"""Probability that all drafts up to each depth (1 to 8) are accepted, for a good drafter on code."""
N_CTX = 1024
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("pairs", nargs="*", metavar="TARGET DRAFT")
    parser.add_argument("--demo", nargs=2, action="append", default=[], metavar=("TARGET", "DRAFT"))
    parser.add_argument("--rows", action="append", default=[], metavar="TARGET")
    parser.add_argument("--sizes-of-8b", type=Path, metavar="FOLDER")
    parser.add_argument("--server", type=Path, help="path of llama.cpp's llama-server")
    parser.add_argument("-ngl", type=int, default=-1)
    parser.add_argument("--threads", default="0", help="numbers of threads; 0 = the default")
    parser.add_argument("--users", default="1,4")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without-gpu", action="store_true", help="measure the CPU instead of the GPU")
    args = parser.parse_args()
    if len(args.pairs) % 2:
        parser.error(f"expected pairs TARGET DRAFT, found {' '.join(args.pairs)}")
    pairs = [(*pair, PROMPTS) for pair in zip(args.pairs[::2], args.pairs[1::2], strict=True)]
    pairs += [(*pair, DEMO) for pair in args.demo]
    say(machine(args.without_gpu))
    if args.sizes_of_8b:
        files = {
            kind: str(args.sizes_of_8b / f"{kind}-Q4_0.gguf") for kind in ("eagle3", "dspark", "dflash2")
        }
        target = args.sizes_of_8b / "8b-Q4_0.gguf"
        sparse.write_target(target)
        for kind, draft in files.items():
            make = sparse.write_drafter if kind == "eagle3" else sparse.write_block_drafter
            make(Path(draft), *([] if kind == "eagle3" else [kind]))  # type: ignore[operator]
            pairs.append((str(target), draft, ()))
    for n_threads in map(int, args.threads.split(",")):
        for target, draft, questions in pairs:
            say(speeds(args, target, draft, questions, n_threads))
        for path in dict.fromkeys([*args.rows, *(target for target, _, _ in pairs)]):
            say(row_curve(args, path, n_threads))


def say(lines: list[str]) -> None:
    print("\n".join([*lines, ""]), flush=True)


def machine(without_gpu: bool) -> list[str]:
    gpus = [d for d in system_info()["devices"] if d["kind"] == "gpu"]
    if not gpus and not without_gpu:
        sys.exit("llama.cpp finds no GPU. Install it for your GPU: docs/install.md#gpu")
    lines = ["## Machine", "", f"{cpu_name()}, {system_info()['n_cores']} cores"]
    lines.append(f"eaglecpp {eaglecpp.__version__}, llama-cpp-python {versions()['llama_cpp_python']}")
    for d in gpus:
        gib = [d[name] / 2**30 for name in ("memory_free", "memory_total")]
        lines.append(f"{d['name']}: {d['description']}, {gib[0]:.1f} of {gib[1]:.1f} GiB free")
    return lines


def row_curve(args: argparse.Namespace, path: str, n_threads: int) -> list[str]:
    """Returns a row of a table: the time of a batch of n tokens, divided by the time of a single token."""
    options = EngineOptions()
    options.target_path, options.n_ctx, options.n_gpu_layers = path, N_CTX, args.ngl
    options.n_threads = n_threads
    target = Target(options, [])
    prefix = [1 + i % 100 for i in range(256)]
    # Every size is timed twice, because the first use of a size loads kernels.
    times = {n: target.time_rows(prefix, [5] * n, 2 + 5 * args.repeats) for n in (*ROWS, *ROWS)}
    one = {n: statistics.median(times[n][2:]) for n in ROWS}
    change = statistics.median(sum(times[n][:2]) - 2 * one[n] for n in ROWS)
    return [
        f"## Rows of {Path(path).stem}, 256 tokens before them{threads(n_threads)}",
        "",
        f"one takes {one[1]:.2f} ms, another number of rows {change:.2f} ms more; over one row:",
        "",
        table([str(n) for n in ROWS], [[f"{one[n] / one[1]:.2f}" for n in ROWS]]),
    ]


def threads(n: int) -> str:
    return f", threads: {n}" if n else ""


def rate(timings: Timings) -> float:
    """Returns the tokens per second after the first token."""
    return 1000 * (timings.predicted_n - 1) / timings.predicted_ms


def speeds(
    args: argparse.Namespace, target: str, draft: str, questions: Sequence[str], n_threads: int
) -> list[str]:
    """Returns rows of a table with the speed of drafting, divided by the speed of target-only decoding.
    Without questions, drafts are accepted at random.
    """
    lot = contextlib.nullcontext() if questions else accepted_at_random(LOT)
    with lot:
        return asyncio.run(_speeds(args, target, draft, questions, n_threads))


async def _speeds(
    args: argparse.Namespace, target: str, draft: str, questions: Sequence[str], n_threads: int
) -> list[str]:
    kind = draft_kind(Path(draft))
    is_block = kind in ("draft-dflash", "draft-dspark")
    users = [int(n) for n in args.users.split(",")]
    strategies = ["off", *(["auto"] if questions else []), *(OF_A_BLOCK if is_block else OF_LEVELS)]
    options: dict[str, Any] = {"max_tokens": args.tokens, "temperature": 0.0, "ignore_eos": True}
    runs: dict[tuple[str, int], list[list[Completion]]] = {}
    first: list[Timings] = []
    opening: dict[str, Any] = {"n_ctx": N_CTX, "n_gpu_layers": args.ngl, "planner_cache": False}
    if n_threads:
        opening["n_threads"] = n_threads
    if not questions:  # random drafts repeat with the seed
        opening["text_drafts"] = "off"
    async with await eaglecpp.AsyncEngine.open(target, draft, n_parallel=max(users), **opening) as serving:
        where = serving.engine.device_info
        prompts: list[Any] = [[5 + (7 * i + j) % 90 for j in range(40)] for i in range(max(3, *users))]
        if questions:
            asked = (questions[i % len(questions)] for i in range(max(3, *users)))
            prompts = [serving.engine.chat_prompt([{"role": "user", "content": text}]) for text in asked]
            first = [
                (await serving.generate(prompt, strategy="auto", **options)).timings for prompt in prompts[:3]
            ]
        for n in users:
            for repeat in range(args.repeats + 1):
                for name in strategies:
                    together = (serving.generate(p, strategy=name, **options) for p in prompts[-n:])
                    done = await asyncio.gather(*together)
                    if repeat:  # the first repeat is a warm-up
                        runs.setdefault((name, n), []).append(list(done))
    speed = {
        key: statistics.median(sum(rate(c.timings) for c in run) for run in of) for key, of in runs.items()
    }
    rows = []
    for (name, n), of in runs.items():
        flat = [c for run in of for c in run]
        same = sum(c.tokens == plain.tokens for c, plain in zip(of[0], runs["off", n][0], strict=True))
        length = statistics.mean(c.timings.predicted_n / max(1, c.timings.rounds) for c in flat)
        text = f"{same} of {n}" if questions else ""
        rows.append([name, n, f"{speed[name, n]:.1f}", speed[name, n] / speed["off", n], length, text])
    notes = []
    if first:
        began = ", ".join(f"{rate(timings) / speed['off', 1]:.2f}" for timings in first)
        plan = runs["auto", 1][-1][0].timings.plan
        notes.append(f"auto: first answers {began} over off; then {plan['strategy']}, {plan['why']}")
    for n_max in [0, *([7 if is_block else 3] if questions and kind else [])] if args.server else []:
        name = f"llama-server, {f'{kind} {n_max}' if n_max else 'plain'}"
        try:
            for n, found in their_speeds(args, target, draft, kind, n_max, prompts, users, n_threads):
                rows.append([name, n, f"{found:.1f}", found / speed["off", n], "", ""])
        except ServerError as error:
            notes.append(f"{name}: {str(error).splitlines()[0]}")
    size = Path(target).stat().st_size / 2**30
    lot = "" if questions else ", 0.83 of each depth accepted at random"
    return [
        f"## {Path(target).stem} with {Path(draft).stem}, {size:.2f} GiB{lot}{threads(n_threads)}",
        "",
        f"target on {where['target']}, drafter on {where['draft']}",
        "",
        table(["strategy", "users", "tokens/s", "over off", "tokens a round", "text as off"], rows),
        "",
        *notes,
    ]


def their_speeds(
    args: argparse.Namespace, target: str, draft: str, kind: str, n_max: int, prompts: list[list[int]],
    users: list[int], n_threads: int,
) -> Iterable[tuple[int, float]]:  # fmt: skip
    """Yields pairs of the number of users and the tokens per second of llama.cpp's own server. n_max: number
    of drafted tokens, 0 = no drafting.
    """
    extra = ["-ngl", str(args.ngl if args.ngl >= 0 else 99), *(["-ngld", "99"] if n_max else [])]
    extra += ["-np", str(max(users)), "-cb"]
    sizes = {"n_ctx": N_CTX * max(users), "n_threads": n_threads or system_info()["n_cores"]}
    with LlamaServer(
        args.server, Path(target), draft=Path(draft), kind=kind, n_max=n_max, extra=extra, **sizes
    ) as server, ThreadPoolExecutor(max(users)) as pool:  # fmt: skip

        def speed(prompt: list[int]) -> float:
            return float(server.complete(prompt, args.tokens, id_slot=-1).timings["predicted_per_second"])

        for n in users:
            found = [sum(pool.map(speed, prompts[-n:])) for _ in range(args.repeats + 1)]
            yield n, statistics.median(found[1:])


if __name__ == "__main__":
    main()
