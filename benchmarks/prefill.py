# SPDX-License-Identifier: MIT
"""What a drafter costs besides rounds: reading a prompt, and memory.

    python benchmarks/prefill.py --target T.gguf --draft D.gguf [--tokens 512 4096] [--repeats 7] [--json OUT]

Prefill: two engines in one process, with and without the drafter, read the same random tokens in turns; the
time is the engine's own, the ratio the median over pairs. Memory: one process each, resident set after the
same prompt and 32 tokens, beyond the process without a drafter; the drafter's file and its K/V, which have to
be there, are subtracted.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import arguments, facts, median, note, table, warn_if_busy, write_json

import eaglecpp
from eaglecpp.lowlevel import DraftFile

GOAL_PREFILL, GOAL_BYTES = 1.05, 32 * 2**20
_MEMORY = """
import sys, eaglecpp
target, draft, n_ctx, n, threads = sys.argv[1], sys.argv[2] or None, *map(int, sys.argv[3:])
with eaglecpp.Engine.open(target, draft=draft, n_ctx=n_ctx, n_threads=threads, planner_cache=False) as engine:
    prompt = [3 + i * 7919 % 2000 for i in range(n)]
    strategy = "chain:4" if draft else "off"
    engine.generate(prompt, max_tokens=32, temperature=0.0, ignore_eos=True, strategy=strategy)
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            print(int(line.split()[1]) * 1024)
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warn_if_busy()
    results: dict[str, Any] = {}
    rows: list[list[Any]] = []
    for n in args.tokens:
        plain, drafted = prefill(args, n)
        ratio = median(b / a for a, b in zip(plain, drafted, strict=True))
        results[f"prefill_{n}"] = {"plain_ms": plain, "drafted_ms": drafted, "ratio": ratio}
        verdict = "reached" if ratio <= GOAL_PREFILL else "NOT reached"
        rows.append(
            [f"prefill of {n}", f"{median(plain):.1f} ms", f"{median(drafted):.1f} ms", ratio, verdict]
        )
    print(table(("", "plain", "with drafter", "ratio", f"at most {GOAL_PREFILL}"), rows))
    n_ctx, n = 2048, 512
    alone, both = (resident(args, draft, n_ctx, n) for draft in ("", str(args.draft)))
    known = args.draft.stat().st_size + kv_bytes(args.draft, n_ctx)
    beyond = both - alone - known
    results["memory"] = {"plain": alone, "with_drafter": both, "file_and_kv": known, "beyond": beyond}
    verdict = "reached" if beyond <= GOAL_BYTES else "NOT reached"
    print(
        f"memory: {(both - alone) / 2**20:.1f} MiB more with the drafter; its file and K/V are "
        f"{known / 2**20:.1f} MiB; beyond these {beyond / 2**20:.1f} MiB, at most 32: {verdict}"
    )
    write_json(args.json, {**facts({"target": args.target, "draft": args.draft}), "results": results})


def prefill(args: argparse.Namespace, n: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each pair, plain and with the drafter; the first pair warms up."""
    rng = random.Random(n)
    options: dict[str, Any] = {"n_ctx": n + 64, "n_threads": args.threads, "planner_cache": False}
    times: tuple[list[float], list[float]] = ([], [])
    with (
        eaglecpp.Engine.open(args.target, **options) as plain,
        eaglecpp.Engine.open(args.target, draft=args.draft, strategy="chain:4", **options) as drafted,
    ):
        for repeat in range(args.repeats + 1):
            prompt = [rng.randrange(300, plain.n_vocab) for _ in range(n)]
            for index in (0, 1) if repeat % 2 else (1, 0):
                engine = (plain, drafted)[index]
                engine.clear()
                stats = engine.generate(prompt, max_tokens=1, temperature=0.0, ignore_eos=True).timings
                if repeat:
                    times[index].append(stats.prompt_ms)
            note(f"{n} tokens: {repeat} of {args.repeats}")
    return times


def resident(args: argparse.Namespace, draft: str, n_ctx: int, n: int) -> int:
    """Largest resident set of a process of its own, in bytes."""
    command = [
        sys.executable,
        "-P",
        "-c",
        _MEMORY,
        str(args.target),
        draft,
        str(n_ctx),
        str(n),
        str(args.threads),
    ]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def kv_bytes(draft: Path, n_ctx: int) -> int:
    """K/V of the drafter in F16, without padding."""
    info = DraftFile(str(draft)).info
    return n_ctx * info["n_layer"] * 2 * info["n_head_kv"] * info["head_dim"] * 2


if __name__ == "__main__":
    main()
