# SPDX-License-Identifier: MIT
"""What recall gains: drafts with and without what the target said of late in the same conversation.

    python benchmarks/recall.py --draft D.gguf [--target T.gguf] [--sets chat,documents,languages]
           [--limit 2] [--n-tokens 256] [--minutes 20] [--json OUT]

Each question is answered four times: with chains of five and with `auto`, with recall and without, in turns;
all four must write the same text. Tokens per round and the drafter's time per round are those of the chains.
An answer ends where it only repeats itself, as in smollm2.py, whose questions these are; *languages*
(`data/languages.jsonl`): questions in German, French, Spanish and Italian. `--minutes` is shared by sets and
temperatures.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common import arguments, facts, note, table, warn_if_busy, write_json
from smollm2 import (
    CHAIN,
    N_CTX,
    SEED,
    installed_target,
    mean_ratio,
    names,
    numbers,
    questions,
    until_loops,
)
from suite import Question, in_turns

import eaglecpp

SETS = ("chat", "humaneval", "documents", "languages")
HEAD = ("set", "temperature", "answers", "tokens per round, without", "with", "drafting, ms, without", "with")


@dataclass
class Sums:
    """Of chains of five: tokens, rounds and milliseconds of drafting."""

    tokens: int = 0
    rounds: int = 0
    draft_ms: float = 0.0

    def add(self, said: Any) -> None:
        self.tokens += said.predicted_n
        self.rounds += said.rounds
        self.draft_ms += said.draft_ms


@dataclass
class Found:
    """Of one set at one temperature. gains: logarithms of `auto` with recall over `auto` without."""

    without: Sums = field(default_factory=Sums)
    with_it: Sums = field(default_factory=Sums)
    gains: list[float] = field(default_factory=list)


def main() -> None:
    args = parse()
    warn_if_busy()
    target = args.target or installed_target()
    result = facts({"target": target, "draft": args.draft}, seed=SEED, n_tokens=args.n_tokens)
    share = 60 * args.minutes / (len(args.sets) * len(args.temperatures))
    rows = []
    options: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": args.threads}
    for temperature in args.temperatures:
        for name in args.sets:
            asked = list(in_turns(questions(name, args.document), args.limit))
            with (
                eaglecpp.Engine.open(target, args.draft, recall=False, **options) as without,
                eaglecpp.Engine.open(target, args.draft, recall=True, **options) as with_it,
            ):
                found = measure((without, with_it), asked, temperature, args.n_tokens, share)
            if len(found.gains) < 2:
                note(f"{name}, temperature {temperature:g}: too few answers of 16 tokens or more")
                continue
            gain, error = mean_ratio(found.gains)
            cells = (found.without, found.with_it)
            lengths = [sums.tokens / sums.rounds for sums in cells]
            ms = [sums.draft_ms / sums.rounds for sums in cells]
            over = f"{gain:.3f} ± {error:.3f}"
            rows.append([name, temperature, len(found.gains), *lengths, *ms, over])
            result[f"{name} {temperature:g}"] = {"lengths": lengths, "draft_ms": ms, "auto": [gain, error]}
    print(table([*HEAD, "auto with / without"], rows))
    write_json(args.json, result)


def measure(
    engines: tuple[eaglecpp.Engine, eaglecpp.Engine],
    asked: Sequence[Question],
    temperature: float,
    n_tokens: int,
    seconds: float,
) -> Found:
    """engines: without and with recall."""
    found, until = Found(), time.monotonic() + seconds
    runs = [(engine, strategy) for strategy in (CHAIN, "auto") for engine in engines]
    first = [replace(question, turns=question.turns[:1]) for question in asked]
    whole = until_loops(engines[1], first, CHAIN, temperature, n_tokens)
    for number, question in enumerate(whole):
        if time.monotonic() > until and number > 2:
            note(f"out of time after {number} of {len(asked)} questions")
            break
        messages = [{"role": "user", "content": question.turns[0]}]
        said: dict[int, Any] = {}
        for i in range(len(runs)):  # every question begins with another one
            who = (i + number) % len(runs)
            engine, strategy = runs[who]
            engine.clear()
            said[who] = engine.chat(
                messages,
                strategy=strategy,
                temperature=temperature,
                seed=SEED,
                max_tokens=question.n_tokens[0],
            )
        if len({tuple(one.tokens) for one in said.values()}) > 1:
            raise SystemExit(f"{question.turns[0]!r}: the text depends on drafts")
        if len(said[0].tokens) < 16:
            continue
        found.without.add(said[0].timings)
        found.with_it.add(said[1].timings)
        found.gains.append(math.log(said[2].timings.predicted_ms / said[3].timings.predicted_ms))
    return found


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, help="default: smollm2's, where it is installed")
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--sets", type=names(SETS), default=["chat", "documents", "languages"])
    parser.add_argument("--temperature", dest="temperatures", type=numbers, default=[0.0, 0.7])
    parser.add_argument("--limit", type=int, default=None, help="first N questions of each category")
    parser.add_argument("--n-tokens", type=int, default=256, help="most tokens of an answer")
    parser.add_argument("--document", type=int, default=6000, help="characters of a document")
    parser.add_argument("--minutes", type=float, default=20.0, help="end after this time")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
