# SPDX-License-Identifier: MIT
"""A benchmark's questions by category, beside plain decoding and, with `--compare`, beside another server.

    python benchmarks/bench_suite.py MODEL FILE [--draft D] [--strategy S]... [--limit N] [--users 1,4,16]
           [--compare URL] [--seconds S] [--json OUT]

FILE: SPEED-Bench, Spec-Bench, MT-bench, HumanEval or chats (see suite.py), or
hf.co/datasets/OWNER/NAME[:PART], such as hf.co/datasets/nvidia/SPEED-Bench:qualitative. Questions whose
text SPEED-Bench leaves out for licence reasons are counted, not asked. Each question is answered by plain
decoding, by a chain of five (whose acceptance length is what publications report) and by `auto`, or by the
strategies that are given, in turns; several turns are one conversation. *length*: tokens per round. *by
depth*: the chance that a draft at depth 1, 2, ... is accepted if the one before it was. *speed*: geometric
mean over questions of the speed relative to plain decoding, with a 95 % interval. `--users` asks that many
questions side by side, one run for each number. `--compare` asks an OpenAI-compatible server the same;
llama.cpp's tells how long it decoded, for others the time from the first token to the last counts. Ctrl+C
and `--seconds` end it early; the categories take turns.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from chat_server import ChatServer
from common import arguments, facts, note, table, write_json
from suite import in_turns, read_suite
from suite_run import SERVER, Cell, SuiteResult, run_suite

import eaglecpp
from eaglecpp.options import MAX_SEQUENCES

STRATEGIES = ("chain:5", "auto")


def main() -> None:
    args = parse()
    suite = read_suite(args.file)
    if suite.n_masked:
        note(f"skipping {suite.n_masked} questions whose text is not in {suite.name}")
    server = ChatServer(args.compare) if args.compare else None
    sizes = {"n_ctx": args.n_ctx, "n_threads": args.threads, "n_sequences": max(args.users)}
    results: list[SuiteResult] = []
    with eaglecpp.Engine.open(args.model, draft=args.draft, **sizes) as engine:
        if not engine.has_chat_template:
            note("this model has no chat template: the first turn of each question is continued as text")
        others = [one for one in args.strategy or STRATEGIES if one != "off"] if engine.has_draft else []
        for n_users in args.users:
            result = run_suite(
                engine,
                in_turns(suite.questions, args.limit),
                ["off", *others],
                n_tokens=args.n_tokens,
                temperature=args.temp,
                seed=args.seed,
                seconds=math.inf if args.seconds is None else args.seconds / len(args.users),
                server=server,
                n_users=n_users,
                progress=note,
            )
            results.append(result)
            print(summary(result), flush=True)
            if result.interrupted:
                break
        models = {"target": engine.target_path} | ({"draft": engine.draft_path} if engine.draft_path else {})
        about = facts(models, suite=suite.name, seed=args.seed, temperature=args.temp, n_tokens=args.n_tokens)
        write_json(args.json, about | {"results": [result.as_dict() for result in results]})


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("model")
    parser.add_argument("file")
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--compare", metavar="URL")
    parser.add_argument("--users", type=numbers_of_users, default=(1,), metavar="N,...")
    parser.add_argument("--limit", type=int, help="questions of each category")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("-n", "--n-tokens", type=int, default=128)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-c", "--n-ctx", type=int, default=0)
    parser.add_argument("-t", "--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def numbers_of_users(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if not all(1 <= n <= MAX_SEQUENCES for n in numbers):
        raise argparse.ArgumentTypeError(f"expected numbers from 1 to {MAX_SEQUENCES}, found {text}")
    return numbers


def summary(result: SuiteResult) -> str:
    """The table by category and strategy, and what was compared."""
    rows = []
    for category in [*result.categories, "all"]:
        for strategy in result.strategies:
            cell = result.total(strategy) if category == "all" else result.cells[category, strategy]
            rows.append([category if strategy == "off" else "", *_columns(strategy, cell)])
    header = ["category", "strategy", "questions", "tokens", "length", "by depth", "tokens/s", "speed", "95%"]
    text = table(header, rows) + "\n"
    if result.n_users > 1:
        speeds = [
            f"{'plain' if strategy == 'off' else strategy} {result.together(strategy):.1f}"
            for strategy in result.strategies
        ]
        text = f"{result.n_users} users\n{text}tokens/s of all together: {', '.join(speeds)}\n"
    if SERVER in result.strategies:
        for strategy in result.strategies:
            if strategy != SERVER and (speed := result.over(strategy, SERVER).speed):
                name = "plain decoding" if strategy == "off" else strategy
                text += f"{name} over the server: {speed[0]:.2f}x ({speed[1]:.2f} to {speed[2]:.2f})\n"
    if result.n_long:
        text += f"{result.n_long} questions did not fit into the context and are left out\n"
    if not result.complete:
        text += f"ended early, after {result.n_asked} questions\n"
    return text


def _columns(strategy: str, cell: Cell) -> list[str]:
    mean, low, high = cell.speed or (0.0, 0.0, 0.0)
    return [
        "plain" if strategy == "off" else strategy,
        str(cell.n_questions),
        str(cell.n_tokens),
        f"{cell.acceptance_length:.2f}" if cell.rounds and strategy != "off" else "",
        " ".join(f"{rate:.2f}" for rate in cell.rates[:8]),
        f"{cell.tokens_per_second:.1f}",
        f"{mean:.2f}x" if cell.ratios else "",
        f"{low:.2f} to {high:.2f}" if len(cell.ratios) > 1 and strategy != "off" else "",
    ]


if __name__ == "__main__":
    main()
