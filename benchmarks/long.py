# SPDX-License-Identifier: MIT
"""Checks long contexts: equal texts, memory as predicted, and the cost of prompts and rounds.

    python benchmarks/long.py [--lengths 1024 8192 32768 131072] [--caches f16 q8_0 q4_0] [--json FILE]
    python benchmarks/long.py --lengths 131072 --caches q8_0 --heads 1 --texts-only  # minutes, not an hour
    python benchmarks/long.py --target T.gguf --draft D.gguf --llama ...

Without --target the script uses a tiny target of random weights, which supports all lengths, with a drafter
that is right about half the time. Texts, memory and the shapes of curves of this target are meaningful, but
its times are almost only times of attention. For each cache and length, a prompt is processed, and answers
are sampled with drafting and target-only.

    prompt s    seconds until the first token
    x theirs    llama.cpp's time, divided by our time (--llama)
    1, 4 rows   milliseconds of a batch of 1 or 4 rows with logits after the prompt
    round ms    milliseconds of a round with drafts, tokens per round, and milliseconds of a target-only token
    predicted   memory for caches and compute buffers, as shown by `doctor`
    grown       memory by which the process has grown

A second table is about drafts from the text. It shows the memory of a text's index, and the mean and maximum
time to add a token and to look up a draft. The texts are a random text, a text that repeats itself,
and a single repeated token, which is the worst case.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from common import arguments, facts, note, table, warn_if_busy, write_json
from kernel_workers import Worker, memory, some_tokens

import eaglecpp
from eaglecpp._extension import core
from eaglecpp.convert import convert_checkpoint
from eaglecpp.lowlevel import system_info
from helpers.tiny import TargetSpec, make_pair

N_ANSWER = 48
SAMPLING = {"max_tokens": N_ANSWER, "temperature": 0.3, "seed": 7, "ignore_eos": True}
MIB = 2**20


def make_tiny(folder: Path, n_ctx: int, n_heads: int) -> tuple[Path, Path]:
    """Writes a tiny target and its drafter as GGUF."""
    spec = TargetSpec(n_layers=7, n_heads=n_heads, n_kv_heads=1, head_dim=64, n_ctx=n_ctx)
    pair = make_pair(folder, "eagle31", spec)
    draft = folder / "draft.gguf"
    convert_checkpoint(pair.checkpoint, pair.target.gguf, draft, type="F32")
    return pair.target.gguf, draft


def predicted(engine: eaglecpp.Engine) -> int:
    """Returns the predicted bytes of caches and compute buffers, without weights."""
    return sum(
        place[f"{who}_{what}"]
        for place in engine.memory_plan
        for who in ("target", "draft")
        for what in ("cache", "compute")
    )


def answered(target: Path, draft: Path | None, n: int, cache: str, n_threads: int) -> dict[str, Any]:
    """Returns one answer after a prompt of n tokens."""
    system_info()  # `system_info` loads libraries and devices before memory is measured
    before = memory()["pss_anonymous"]
    options = {"n_ctx": n + N_ANSWER + 8, "n_threads": n_threads, "planner_cache": False}
    with eaglecpp.Engine.open(target, draft=draft, type_k=cache, type_v=cache, **options) as engine:
        prompt = some_tokens(n, engine.n_vocab)
        strategy = "off" if draft is None else "chain:3"
        done = engine.generate(prompt, strategy=strategy, **SAMPLING)
        grown = memory()["pss_anonymous"] - before
        timings, rounds = done.timings, done.timings.rounds
        return {
            "tokens": done.tokens,
            "exact": timings.exact,
            "prompt_s": timings.prompt_ms / 1000,
            "round_ms": timings.predicted_ms / max(rounds, 1),
            "per_round": timings.predicted_n / max(rounds, 1),
            "predicted": predicted(engine),
            "grown": grown,
        }


def in_process(*what: Any) -> dict[str, Any]:
    """Runs `answered` in a separate process with fresh memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(answered, *what).result()


def measured(args: argparse.Namespace, target: Path, draft: Path) -> Iterator[dict[str, Any]]:
    for cache in args.caches:
        for n in args.lengths:
            note(f"{cache}, {n} tokens")
            drafted = in_process(target, draft, n, cache, args.threads)
            plain = in_process(target, None, n, cache, args.threads)
            setup: Any = {"n_ctx": n + 64, "n_threads": args.threads, "type_k": cache, "type_v": cache}
            rows = {}
            if not args.texts_only:
                with Worker("rows", target, **setup) as ours:
                    rows = {k: min(ours.ask("rows", n=k, behind=n, repeats=9)) for k in (1, 4)}
            theirs_s = None
            if args.llama:
                with Worker("theirs", target, **setup) as theirs:
                    theirs_s = theirs.ask("prompt", n=n) / 1000
            same = drafted.pop("tokens") == plain.pop("tokens")
            yield {
                "cache": cache,
                "n": n,
                "same": same,
                "drafted": drafted,
                "plain": plain,
                "rows_ms": rows,
                "theirs_s": theirs_s,
            }


def text_index(n: int, pattern: str) -> dict[str, Any]:
    """Measures an index over n tokens of a text."""
    repeated = some_tokens(max(n // 8, 1), 32000)
    texts = {
        "random": some_tokens(n, 1 << 20),
        "repeats itself": (repeated * 9)[:n],
        "one token": [5] * n,
    }
    before = memory()["pss_anonymous"]
    index, add_us, look_us = core.TextIndex(1 << 17), [], []
    for i, token in enumerate(texts[pattern]):
        start = time.perf_counter()
        index.add(token)
        add_us.append(1e6 * (time.perf_counter() - start))
        if i % 16 == 0:
            start = time.perf_counter()
            index.propose(8)
            look_us.append(1e6 * (time.perf_counter() - start))
    size = memory()["pss_anonymous"] - before
    return {
        "text": pattern,
        "n": n,
        "bytes": size,
        "add_us": (statistics.mean(add_us), max(add_us)),
        "look_us": (statistics.mean(look_us), max(look_us)),
    }


def report(found: list[dict[str, Any]], indexes: list[dict[str, Any]]) -> str:
    head = ["cache", "tokens", "same text", "prompt s", "x theirs", "1 row ms", "4 rows", "4/1", "round ms",
            "tokens", "plain ms", "predicted MiB", "grown"]  # fmt: skip
    lines = []
    for one in found:
        drafted, plain, rows = one["drafted"], one["plain"], one["rows_ms"]
        ratio = one["theirs_s"] / plain["prompt_s"] if one["theirs_s"] else "-"
        of_rows = [rows[1], rows[4], rows[4] / rows[1]] if rows else ["-"] * 3
        lines.append(
            [one["cache"], one["n"], "yes" if one["same"] else "NO", drafted["prompt_s"], ratio, *of_rows,
             drafted["round_ms"], drafted["per_round"], plain["round_ms"],
             drafted["predicted"] / MIB, drafted["grown"] / MIB]
        )  # fmt: skip
    of_index = [
        [one["text"], one["n"], one["bytes"] / MIB, *one["add_us"], *one["look_us"]] for one in indexes
    ]
    head_of_index = ["text", "tokens", "MiB", "add us", "longest", "look up us", "longest"]
    return f"{table(head, lines)}\n\n{table(head_of_index, of_index)}"


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 8192, 32768, 131072])
    parser.add_argument("--caches", nargs="+", default=["f16", "q8_0", "q4_0"])
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--llama", action="store_true", help="also read the prompts with llama.cpp")
    parser.add_argument("--heads", type=int, default=2, help="number of query heads of the tiny target")
    parser.add_argument("--texts-only", action="store_true", help="do not measure batches of 1 and 4 rows")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if (args.target is None) != (args.draft is None):
        parser.error("--target needs --draft, and --draft needs --target")
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        target, draft = args.target, args.draft
        if target is None:
            target, draft = make_tiny(Path(folder), max(args.lengths) + N_ANSWER + 8, args.heads)
        found = list(measured(args, target, draft))
        models = facts({"target": target, "draft": draft}, lengths=args.lengths, caches=args.caches)
    patterns = ("random", "repeats itself", "one token")
    indexes = [text_index(n, pattern) for pattern in patterns for n in (8192, 131072, 262144)]
    print(report(found, indexes))
    write_json(args.json, models | {"results": found, "text_index": indexes})
    return int(not all(one["same"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
