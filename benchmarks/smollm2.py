# SPDX-License-Identifier: MIT
"""Measures the speed-up of a chat model by its drafter, on questions that it was not trained on.

    python benchmarks/smollm2.py --draft D.gguf [--target T.gguf] [--measure length,speed,first]
           [--speed-target T-Q8_0.gguf]... [--padded WIDE.gguf PADDED-DRAFT.gguf]... [--llama-server PATH]
           [--other D2.gguf] [--limit 4] [--minutes 20] [--json OUT]

For *length* and *speed* an answer ends where the model ends it, after `--n-tokens`, or where the model begins
to repeat itself.

*length*: tokens per round of each drafter (`--draft`, every `--other`), by category, greedy and at 0.7.
Drafts are trees of 8 and 12 nodes, and chains as long as the largest block of the drafters (five tokens
without a block drafter). The part also measures the drafting time of a round, and bounds of the length. With
one answer to each question the length varies by 0.1, because rounding can change texts. `--seeds N` takes N
sampled answers.
*speed*: speed of target-only decoding and of `auto`, relative to **llama.cpp's own server**. All answer the
same questions in turns. The models are `--target`, every `--speed-target`, and every `--padded`, which is the
same model made memory-bound (pad_target.py).
*first*: speed of the first answer on a new machine (empty planner cache, a separate process). The answers
have 128 tokens and are greedy: target-only, `auto`, and target-only again. The models are the same as for
*speed*.
EAGLECPP_KERNELS=avx2 in the environment selects the kernels for AVX2.

The sets of questions come from `questions.py`. Their categories take turns, so a run that `--minutes` ends
early has seen all categories. The parts share `--minutes`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chat_server import ChatServer
from common import arguments, by_name, facts, median, note, table, warn_if_busy, write_json
from llama_server import LlamaServer
from questions import Question, in_turns, read_set
from runner import Results, chat_server, ours, run, until_loops
from speed import LLAMA, TARGET_ONLY, numbers, summary

import eaglecpp
from eaglecpp.lowlevel import DraftFile

SETS = ("chat", "humaneval", "documents")
TREES = (8, 12)
N_CTX = 4096
SEED = 1
N_FIRST = 128
FIRST = """
import json, sys, eaglecpp
target, draft, strategy, question, n_tokens, n_threads = sys.argv[1:]
draft = None if strategy == "off" else draft
with eaglecpp.Engine.open(target, draft=draft, n_ctx=4096, n_threads=int(n_threads)) as engine:
    messages = [{"role": "user", "content": question}]
    options = {"temperature": 0.0, "ignore_eos": True, "max_tokens": int(n_tokens)}
    timings = engine.chat(messages, strategy=strategy, **options).timings
print(json.dumps({"n": timings.predicted_n, "ms": timings.predicted_ms, "plan": dict(timings.plan)}))
"""
Sets = dict[str, list[Question]]


def main() -> None:
    args = parse()
    args.target = args.target or installed_target()
    sets = {name: list(in_turns(read_set(name, args.document), args.limit)) for name in args.sets}
    until = time.monotonic() + 60 * args.minutes
    result = facts({"target": args.target, "draft": args.draft}, seed=SEED, n_tokens=args.n_tokens)
    if args.measure != ["length"]:
        warn_if_busy()
    for i, part in enumerate(args.measure):
        print(f"\n## {part}\n", flush=True)
        # The remaining parts share the remaining time equally.
        left = (until - time.monotonic()) / (len(args.measure) - i)
        result[part] = MEASURES[part](args, sets, max(left, 1.0))
    write_json(args.json, result)


# Measuring the acceptance length


def measure_length(args: argparse.Namespace, sets: Sets, seconds: float) -> dict[str, Any]:
    drafters = by_name([args.draft, *args.other])
    width = max(map(slots, drafters.values()))
    chain = f"chain:{width}"
    strategies = args.strategy or [chain, *(f"tree:k=4,depth={width},nodes={n}" for n in TREES)]
    share = seconds / (len(drafters) * len(strategies) * len(sets) * len(args.temperatures))
    rows: list[list[Any]] = []
    bounds: list[list[Any]] = []
    found: dict[str, Any] = {"bounds": bounds}
    for who, draft in drafters.items():
        known = set(DraftFile(str(draft)).d2t)
        with eaglecpp.Engine.open(args.target, draft=draft, n_ctx=N_CTX, n_threads=args.threads) as engine:
            for strategy, name, temperature in itertools.product(strategies, sets, args.temperatures):
                answers: list[Sequence[int]] = []
                results = over_seeds(engine, sets[name], strategy, args, temperature, share, answers)
                where = [who, name, temperature]
                found[f"{' '.join(map(str, where))} {strategy}"] = results.as_dict()
                for category in [*(results.categories if strategy == chain else ()), "all"]:
                    cell = results.of(category, strategy)
                    rates = " ".join(f"{rate:.2f}" for rate in cell.timings.accepted_per_depth)
                    ms = cell.timings.draft_ms / max(cell.timings.rounds, 1)
                    row = [*where[:2], category, temperature, strategy, cell.n_questions]
                    rows.append([*row, cell.timings.acceptance_length, ms, rates])
                whole = results.of("all", strategy).timings
                if strategy == chain and (rates_of_all := whole.accepted_per_depth):
                    covered, n_known, n_all = coverage(answers, known, width)
                    alike = 1 + sum(rates_of_all[0] ** k for k in range(1, width + 1))
                    share_known = 100 * n_known / max(n_all, 1)
                    bounds.append([*where, whole.acceptance_length, share_known, covered, alike])
    head = ["drafter", "set", "category", "temperature", "strategy", "questions", "length", "ms to draft"]
    print(table([*head, "by depth"], rows))
    print(
        "\nBounds: were every token of the draft vocabulary right; were every position as good as the first\n"
    )
    head = [
        "drafter",
        "set",
        "temperature",
        "length",
        "% in vocabulary",
        "all known right",
        "positions alike",
    ]
    print(table(head, bounds))
    return found


def slots(draft: Path) -> int:
    """Returns the length of a drafter's chains: the number of positions in its block, or five if it has no
    block.
    """
    return int(DraftFile(str(draft)).info["n_parallel"]) or 5


def coverage(answers: Sequence[Sequence[int]], known: set[int], width: int) -> tuple[float, int, int]:
    """Returns the tokens per round that the answers would have if every token of the draft vocabulary was
    drafted correctly. Also returns the number of tokens of the draft vocabulary in the answers, and the
    number of all tokens in the answers.
    """
    rounds = n_known = n_all = 0
    for tokens in answers:
        has = [token in known for token in tokens]
        n_known, n_all, at = n_known + sum(has), n_all + len(has), 0
        while at < len(has):
            n = next((i for i, one in enumerate(has[at : at + width]) if not one), width)
            rounds, at = rounds + 1, at + n + 1
    return n_all / max(rounds, 1), n_known, n_all


def over_seeds(
    engine: eaglecpp.Engine,
    asked: Sequence[Question],
    strategy: str,
    args: argparse.Namespace,
    temperature: float,
    seconds: float,
    answers: list[Sequence[int]],
) -> Results:
    """Asks the questions with all seeds. answers: list to which the tokens of the answers are added."""
    seeds = range(SEED, SEED + args.seeds) if temperature > 0 else (SEED,)
    runs = []
    for seed in seeds:
        sampling = {"temperature": temperature, "n_tokens": args.n_tokens, "seed": seed}
        limited = until_loops(engine, asked, strategy, answers=answers, **sampling)
        runs.append(run(limited, [ours(engine, strategy)], seconds=seconds / len(seeds), **sampling))
    found, *others = runs
    for other in others:
        for key, cell in other.cells.items():
            found.cells[key].add(cell)
    if others:
        lengths = ", ".join(f"{one.of('all', strategy).timings.acceptance_length:.2f}" for one in runs)
        note(f"temperature {temperature:g}, {strategy}: by seed {lengths}")
    return found


# Measuring the speed


def measure_speed(args: argparse.Namespace, sets: Sets, seconds: float) -> dict[str, Any]:
    if args.llama_server is None:
        raise SystemExit("the part speed needs --llama-server, because speeds are relative to llama.cpp")
    files = [(path, args.draft) for path in (args.target, *args.speed_target)] + args.padded
    # The questions come from each set in turn.
    mixed = [one for row in itertools.zip_longest(*sets.values()) for one in row if one is not None]
    share = seconds / (len(files) * len(args.temperatures))
    found: dict[str, Any] = {}
    for path, draft in files:
        with (
            LlamaServer(args.llama_server, path, n_ctx=N_CTX, n_threads=args.threads or 2) as process,
            eaglecpp.Engine.open(path, draft=draft, n_ctx=N_CTX, n_threads=args.threads) as engine,
        ):
            server = chat_server(ChatServer(f"http://127.0.0.1:{process.port}"), LLAMA)
            contestants = [ours(engine, "off", TARGET_ONLY), ours(engine, "auto"), server]
            for temperature in args.temperatures:
                sampling = {"temperature": temperature, "n_tokens": args.n_tokens, "seed": SEED}
                # These answers are generated without drafts, so that the planner learns nothing about them.
                limited = until_loops(engine, mixed, "off", **sampling)
                results = run(limited, contestants, seconds=share, **sampling)
                print(f"\n{path.name}, temperature {temperature:g}\n\n{summary(results)}", flush=True)
                found[f"{path.name} {temperature:g}"] = results.as_dict()
    return found


# Measuring the first answer


def measure_first(args: argparse.Namespace, sets: Sets, seconds: float) -> dict[str, Any]:
    """Measures first answers in separate processes, each with a data folder without planner files."""
    pairs = [(path, args.draft) for path in (args.target, *args.speed_target)] + args.padded
    until = time.monotonic() + seconds
    found: dict[str, dict[str, list[Any]]] = {}
    for question in next(iter(sets.values())):
        for path, draft in pairs:
            if time.monotonic() > until and len(found) == len(pairs):
                break
            one = found.setdefault(path.stem, {"ratios": [], "noise": [], "plans": []})
            before, auto, after = (
                first_answer(path, draft, strategy, question.turns[0], args.threads)
                for strategy in ("off", "auto", "off")
            )
            one["ratios"].append((before["ms"] + after["ms"]) / 2 / auto["ms"])
            one["noise"].append(before["ms"] / after["ms"])
            one["plans"].append(auto["plan"].get("why", ""))
    rows = []
    for name, one in found.items():
        noise = f"{min(one['noise']):.2f} to {max(one['noise']):.2f}"
        rows.append([name, len(one["ratios"]), median(one["ratios"]), min(one["ratios"]), noise])
    print(table(["target", "answers", "auto / target-only", "lowest", "target-only / itself"], rows))
    return found


def first_answer(target: Path, draft: Path, strategy: str, question: str, n_threads: int) -> Any:
    asked = (target, draft, strategy, question, N_FIRST, n_threads)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-P", "-c", FIRST, *map(str, asked)],
            env={**os.environ, "EAGLECPP_HOME": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"first: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


MEASURES = {
    "length": measure_length,
    "speed": measure_speed,
    "first": measure_first,
}


def installed_target() -> Path:
    from eaglecpp.opening.find import find_target

    return Path(find_target("smollm2").target)


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, help="default: smollm2's, if installed")
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument(
        "--other",
        type=Path,
        action="append",
        default=[],
        help="another drafter of the same target; repeatable",
    )
    parser.add_argument(
        "--strategy",
        action="append",
        help="strategy for the part length, instead of a chain and trees of 8 and 12 nodes; repeatable",
    )
    parser.add_argument(
        "--speed-target", type=Path, action="append", default=[], help="target in another type; repeatable"
    )
    parser.add_argument(
        "--padded",
        type=Path,
        nargs=2,
        action="append",
        default=[],
        metavar=("TARGET", "DRAFT"),
        help="repeatable",
    )
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--sets", type=names(SETS), default=list(SETS))
    parser.add_argument("--measure", type=names(tuple(MEASURES)), default=["length"])
    parser.add_argument("--temperature", dest="temperatures", type=numbers, default=[0.0, 0.7])
    parser.add_argument("--limit", type=int, default=None, help="number of questions of each category")
    parser.add_argument("--n-tokens", type=int, default=512, help="maximum tokens of an answer")
    parser.add_argument("--seeds", type=int, default=1, help="number of sampled answers to each question")
    parser.add_argument("--document", type=int, default=6000, help="maximum characters of a document")
    parser.add_argument("--minutes", type=float, default=60.0, help="minutes after which the run ends")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def names(known: Sequence[str]) -> Any:
    """Parses a comma-separated list of names for argparse."""

    def parsed(text: str) -> list[str]:
        found = text.split(",")
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(
                f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}"
            )
        return found

    return parsed


if __name__ == "__main__":
    main()
