# SPDX-License-Identifier: MIT
"""What attention and its caches decide: whether drafting gives the same tokens, and what rows cost.

    python benchmarks/caches.py --target T.gguf --draft D.gguf [--settings default,plain-f32] [--json OUT]

Law: prompts of two lengths, with and without drafting, greedy and at temperature 0.8 with one seed; counted
are the prompts whose tokens are all equal. Times: a plain round and one of four rows (chain:3) behind the
short and behind the long prompt, and reading both; the best of the repeats. Settings take turns.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

from acceptance import EXACT, SEED, check_law
from common import Prompt, arguments, facts, note, read_prompts, table, warn_if_busy, write_json
from prompt_sets import make_prompts

import eaglecpp

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "fused-f16": {"type_k": "f16", "type_v": "f16", "flash_attn": "on"},  # as llama.cpp runs it
    "plain-f16": {"type_k": "f16", "type_v": "f16", "flash_attn": "off"},
    "plain-f32": EXACT,
}
STRATEGIES = ("chain:5", "tree:k=4,depth=5,nodes=16", "auto")
TEMPERATURES = (0.0, 0.8)
ROUNDS = {"plain": "off", "4 rows": "chain:3"}
N_TIMED = 24  # tokens generated to time rounds: few, so that the length stays


def main() -> None:
    args = parse()
    warn_if_busy()
    options = {"n_ctx": args.long + 2 * args.n_tokens, "n_threads": args.threads, "planner_cache": False}
    law: dict[str, dict[str, str]] = {}
    times: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as stack:
        engines = {
            name: stack.enter_context(
                eaglecpp.Engine.open(
                    args.target, draft=args.draft, strategy=STRATEGIES[1], **options, **SETTINGS[name]
                )
            )
            for name in args.settings
        }
        some = next(iter(engines.values()))
        long = [Prompt(ids, {}) for ids in make_prompts("code", some, args.n_long, args.long, SEED)]
        if args.prompts:
            short = read_prompts(args.prompts, some, args.n_prompts)
        else:
            short = [Prompt(ids, {}) for ids in make_prompts("code", some, args.n_prompts, 64, SEED)]
        for name, engine in engines.items():
            law[name] = count_equal(args, name, engine, {"short": short, f"{args.long}": long})
        for repeat in range(args.repeats + 1):
            for name, engine in engines.items():
                found = time_rounds(engine, {"64": long[0].ids[:64], f"{args.long}": long[0].ids})
                if repeat:  # the first builds graphs
                    times[name] = {k: min(ms, times.get(name, found)[k]) for k, ms in found.items()}
                note(f"times of {name}: {repeat} of {args.repeats}")
    print("Prompts with the same tokens, greedy / temperature 0.8:\n")
    print(
        table(["", *law], [[case, *(each[case] for each in law.values())] for case in law[args.settings[0]]])
    )
    print("\nMilliseconds:\n")
    print(
        table(
            ["", *times],
            [[what, *(each[what] for each in times.values())] for what in times[args.settings[0]]],
        )
    )
    write_json(args.json, {**facts({"target": args.target, "draft": args.draft}), "law": law, "times": times})


def count_equal(
    args: argparse.Namespace, name: str, engine: eaglecpp.Engine, prompts: dict[str, list[Prompt]]
) -> dict[str, str]:
    """By prompts and strategy: "12 / 12 of 12"."""
    found = {}
    for kind, some in prompts.items():
        for strategy in STRATEGIES:
            equal = [
                len(some) - len(check_law(engine, some, strategy, temperature, args.n_tokens))
                for temperature in TEMPERATURES
            ]
            found[f"{kind}, {strategy}"] = f"{equal[0]} / {equal[1]} of {len(some)}"
            note(f"{name}, {kind}, {strategy}: {found[f'{kind}, {strategy}']}")
    return found


def time_rounds(engine: eaglecpp.Engine, prompts: dict[str, list[int]]) -> dict[str, float]:
    """Verification of a round, and reading the longer prompt, in milliseconds."""
    found = {}
    for length, ids in prompts.items():
        for rows, strategy in ROUNDS.items():
            with engine.session() as session:
                done = session.generate(
                    ids, max_tokens=N_TIMED, temperature=0.0, ignore_eos=True, strategy=strategy
                )
            n_rounds = done.timings.plan.get("rounds") or N_TIMED - 1
            found[f"{rows}, {length} tokens"] = done.timings.verify_ms / n_rounds
            found[f"prompt of {length}"] = done.timings.prompt_ms
    return found


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument(
        "--settings", type=lambda text: text.split(","), default=["default"], help=f"of {','.join(SETTINGS)}"
    )
    parser.add_argument(
        "--prompts", type=Path, help="the short ones, as for compare.py; default: library code"
    )
    parser.add_argument("--n-prompts", type=int, default=12)
    parser.add_argument("--n-long", type=int, default=4)
    parser.add_argument("--long", type=int, default=700, help="tokens of the long prompts")
    parser.add_argument("--n-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    unknown = [name for name in args.settings if name not in SETTINGS]
    if unknown:
        parser.error(f"--settings: {unknown[0]!r}, expected some of {', '.join(SETTINGS)}")
    return args


if __name__ == "__main__":
    main()
