# SPDX-License-Identifier: MIT
"""Coupled sampling: do drafts agree with sampled text, is the planner's belief true, what does a draw cost?

    python benchmarks/coupled.py --target T-Q8_0.gguf --draft A.gguf --draft B.gguf --prompts prompts.json
    python benchmarks/coupled.py --target T-Q8_0.gguf --draft A.gguf --prompts prompts.json --speed
    python benchmarks/coupled.py --cost

First table: acceptance length of chains with `rng` coupled and llama, by temperature and top-k (top-p and
min-p off), same prompts and seeds. Second: what the planner predicted against what came true, in tenths, over
the first children of nodes that the text reached, in trees. `--speed`: `auto` at 0.8 over `auto` greedy, turn
by turn, a ratio per prompt; use it on a padded target (`pad_target.py`), where a step costs what it costs in
real models. `--cost`: one draw with everything but temperature off, from 32,000 to 262,144 tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import Prompt, facts, median, note, read_prompts, table, write_json

import eaglecpp
from eaglecpp.lowlevel import Sampler, SamplingParams

OFF = {"top_p": 1.0, "min_p": 0.0}
CASES: dict[str, dict[str, Any]] = {
    "0.5, top-k 40": OFF | {"temperature": 0.5, "top_k": 40},
    "0.8, top-k 40": OFF | {"temperature": 0.8, "top_k": 40},
    "1.0, top-k 0": OFF | {"temperature": 1.0, "top_k": 0},
    "0.8, our defaults": {"temperature": 0.8},
    "greedy": {"temperature": 0.0},
}
GOALS = {"0.8, top-k 40": 2.4, "1.0, top-k 0": 2.2}
KINDS = ("coupled_cool", "coupled_warm", "coupled_hot")
TREE = "tree:k=4,depth=5,nodes=16"
VOCABULARIES = (32_000, 128_256, 262_144)
LIMIT_MS = 0.3


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path, action="append", default=[])
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--limit", type=int, help="first N prompts only")
    parser.add_argument("--strategy", default="chain:5", help="of the acceptance lengths")
    parser.add_argument("--n-tokens", type=int, default=96)
    parser.add_argument("--seeds", type=int, default=1, help="texts per prompt")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--speed", action="store_true", help="auto at 0.8 over auto greedy, nothing else")
    parser.add_argument("--cost", action="store_true", help="what one draw costs, nothing else")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.cost and (args.target is None or not args.draft or args.prompts is None):
        parser.error("--target, --draft and --prompts are needed, or --cost alone")
    return args


def texts(
    engine: eaglecpp.Engine, prompts: list[Prompt], args: argparse.Namespace, **options: Any
) -> Iterator[eaglecpp.Completion]:
    """One completion per prompt and seed, each in a conversation without a past."""
    for i, prompt in enumerate(prompts):
        for seed in range(args.seeds):
            with engine.session() as session:
                yield session.generate(
                    prompt.ids, max_tokens=args.n_tokens, ignore_eos=True, seed=100 * i + seed, **options
                )


def acceptance_length(
    engine: eaglecpp.Engine, prompts: list[Prompt], args: argparse.Namespace, **options: Any
) -> float:
    """Generated tokens per round; the first token comes with the prompt."""
    n_tokens = n_rounds = 0
    for text in texts(engine, prompts, args, **options):
        n_tokens += text.timings["predicted_n"] - 1
        n_rounds += text.timings["rounds"]
    return n_tokens / n_rounds


def open_engine(args: argparse.Namespace, draft: Path, strategy: str) -> eaglecpp.Engine:
    return eaglecpp.Engine.open(
        args.target,
        draft=draft,
        strategy=strategy,
        n_ctx=1024,
        n_threads=args.threads,
        n_leaves_max=8,
        planner_cache=False,
    )


def lengths(args: argparse.Namespace, result: dict[str, Any]) -> bool:
    """The first two tables; whether the goals are reached."""
    rows, reached = [], True
    report: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in KINDS}
    for draft in args.draft:
        with open_engine(args, draft, args.strategy) as engine:
            prompts = read_prompts(args.prompts, engine, args.limit)
            for name, options in CASES.items():
                found = {
                    rng: acceptance_length(engine, prompts, args, rng=rng, **options)
                    for rng in ("llama", "coupled")
                }
                goal = GOALS.get(name) if args.strategy == "chain:5" else None
                verdict = "" if goal is None else "PASS" if found["coupled"] >= goal else "FAIL"
                reached = reached and verdict != "FAIL"
                gain = found["coupled"] / found["llama"]
                rows.append([draft.stem, name, found["llama"], found["coupled"], gain, goal or "", verdict])
                note(f"{draft.stem}, {name}: {found['llama']:.2f} -> {found['coupled']:.2f}")
                result["lengths"].append({"draft": draft.stem, "case": name} | found)
        with open_engine(args, draft, TREE) as engine:
            for options in CASES.values():
                if options["temperature"] > 0:
                    for _ in texts(engine, prompts, args, **options):
                        pass
            for kind, bins in reliability(engine).items():
                report[kind] += bins
                result["reliability"].append({"draft": draft.stem, "kind": kind, "bins": bins})
    print(table(["drafter", "temperature", "llama", "coupled", "gain", "goal", ""], rows))
    print()
    print(table(["predicted", *KINDS], reliability_rows(report)))
    return reached


def reliability(engine: eaglecpp.Engine) -> dict[str, list[tuple[float, float, float]]]:
    """(labels, mean predicted, mean true) per tenth of the predicted chance."""
    with engine.session():  # the report is about one conversation; this part is the same for all
        acceptance = engine.native.planner_report(0)["acceptance"]
    return {kind: [tuple(b) for b in acceptance[kind]["bins"]] for kind in KINDS}


def reliability_rows(report: dict[str, list[tuple[float, float, float]]]) -> list[list[str]]:
    rows = []
    errors = ["mean error"]
    for tenth in range(10):
        row = [f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}"]
        for kind in KINDS:
            n, predicted, true = merged(report[kind][tenth::10])
            row.append(f"{predicted:.2f} -> {true:.2f} ({n:.0f})" if n >= 10 else "")
        rows.append(row)
    for kind in KINDS:
        total = sum(n for n, _, _ in report[kind])
        wrong = sum(
            n * abs(predicted - true)
            for n, predicted, true in (merged(report[kind][tenth::10]) for tenth in range(10))
        )
        errors.append(f"{wrong / total:.3f}" if total else "")
    return [*rows, errors]


def merged(bins: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    n = sum(b[0] for b in bins)
    if n == 0:
        return 0.0, 0.0, 0.0
    return n, sum(b[0] * b[1] for b in bins) / n, sum(b[0] * b[2] for b in bins) / n


def speed(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """`auto` at 0.8 over `auto` greedy and over plain, turn by turn."""
    arms: dict[str, dict[str, Any]] = {
        "auto, greedy": {"temperature": 0.0},
        "auto, 0.8, coupled": {"temperature": 0.8},
        "auto, 0.8, llama": {"temperature": 0.8, "rng": "llama"},
        "plain, 0.8": {"temperature": 0.8, "strategy": "off"},
    }
    rows = []
    for draft in args.draft:
        found: dict[str, list[float]] = {name: [] for name in arms}
        with open_engine(args, draft, "auto") as engine:
            prompts = read_prompts(args.prompts, engine, args.limit)
            for options in arms.values():  # the planner learns what this machine costs
                acceptance_length(engine, prompts[:1], args, **options)
            for prompt in prompts:
                for name, options in arms.items():
                    ms = n_tokens = 0.0
                    for text in texts(engine, [prompt], args, **options):
                        ms += text.timings["predicted_ms"]
                        n_tokens += text.timings["predicted_n"] - 1
                    found[name].append(n_tokens / ms * 1000)
        greedy = found["auto, greedy"]
        for name, speeds in found.items():
            ratios = [a / b for a, b in zip(speeds, greedy, strict=True)]
            rows.append([draft.stem, name, f"{median(speeds):.0f}", f"{median(ratios):.3f}"])
            result["speed"].append({"draft": draft.stem, "arm": name, "tokens_per_s": speeds})
    print(table(["drafter", "", "tokens/s", "over auto greedy"], rows))


def cost(result: dict[str, Any]) -> bool:
    """Milliseconds of one draw; whether the limit is kept."""
    rows, kept = [], True
    for n_vocab in VOCABULARIES:
        for spread in (0.0, 2.0, 5.0):
            logits = np.random.default_rng(1).normal(0.0, spread, n_vocab).astype(np.float32)
            row: list[Any] = [n_vocab, f"{spread:g}"]
            for rng in ("coupled", "llama"):
                params = SamplingParams()
                params.rng, params.seed, params.temperature = rng, 1, 0.8
                params.top_k, params.top_p, params.min_p = 0, 1.0, 0.0
                sampler = Sampler(params, n_vocab)
                times = []
                for pos in range(60):
                    start = time.perf_counter()
                    sampler.sample(logits, pos)
                    times.append(1000 * (time.perf_counter() - start))
                row.append(f"{statistics.median(times):.3f}")
                result["cost"].append({"n_vocab": n_vocab, "spread": spread, "rng": rng, "ms": times})
            kept = kept and float(row[2]) <= LIMIT_MS
            rows.append([*row, "PASS" if float(row[2]) <= LIMIT_MS else "FAIL"])
    print(table(["vocabulary", "spread of logits", "coupled ms", "llama ms", ""], rows))
    return kept


def main() -> int:
    args = parse()
    result = facts({} if args.cost else {"target": args.target}, strategy=args.strategy, seeds=args.seeds)
    result |= {"lengths": [], "reliability": [], "speed": [], "cost": []}
    passed = True
    if args.cost:
        passed = cost(result)
    elif args.speed:
        speed(args, result)
    else:
        passed = lengths(args, result)
    write_json(args.json, result)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
