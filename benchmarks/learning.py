# SPDX-License-Identifier: MIT
"""What `eaglecpp learn` gains for one person: months of questions, then a training, then other questions.

    python benchmarks/learning.py HOME [--minutes 60] [--n-asked 400] [--n-kept 200] [--n-tokens 96]
           [--target T.gguf --draft D.gguf] [--threads 2] [--stages ask,learn,measure] [--json OUT]

The person restores boats, keeps bees, writes a third of her questions in Spanish, and her boats, hives,
suppliers and helpers have names that no text has (`data/persona.json`). Six hundred questions are made of
that; 400 are asked with `learn=True`, into the data folder HOME, and the other 200 kept apart. Then
`eaglecpp.train.learn` trains, and the engine drafts the answers to the 200, and to questions of the
benchmark's chat set, with the stock drafter and with the one that learnt: chains of five,
greedy and at 0.7, and the speed of `auto` over plain decoding in turns.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import facts, note, table, write_json
from smollm2 import CHAIN, installed_target, questions

import eaglecpp
from eaglecpp.learning import Learning
from eaglecpp.opening.find import find_here
from eaglecpp.train.fit.allocator import with_allocator

PERSONA = Path(__file__).parent / "data" / "persona.json"
N_CTX, SEED = 1024, 1


def persona_questions(n: int) -> list[str]:
    """Distinct ones, the same each time."""
    persona = json.loads(PERSONA.read_text(encoding="utf-8"))
    rng = random.Random(SEED)
    found: dict[str, None] = {}
    while len(found) < n:
        template = rng.choice(persona["spanish" if rng.random() < 1 / 3 else "english"])
        slots = {name: rng.choice(words) for name, words in persona.items() if isinstance(words, list)}
        text = template.format(**slots)
        found[text[:1].upper() + text[1:]] = None
    return list(found)


def messages(question: str) -> list[dict[str, str]]:
    system = json.loads(PERSONA.read_text(encoding="utf-8"))["system"]
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def ask(target: Path, draft: Path, asked: Sequence[str], n_threads: int) -> None:
    """As a user would, in a conversation each; goes on where it was stopped."""
    learning = Learning.of(target)
    options: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": n_threads, "learn": True}
    with eaglecpp.Engine.open(target, draft, **options) as engine:
        for number, question in enumerate(asked):
            if number >= len(learning.records()):
                engine.chat(messages(question), max_tokens=160, temperature=0.7, seed=number)


def measure(
    target: Path, drafters: Sequence[Path], chats: Sequence[Any], n_tokens: int, n_threads: int
) -> list[dict[str, Any]]:
    """For each drafter its acceptance lengths, and how fast `auto` is over plain decoding with it."""
    options: dict[str, Any] = {
        "n_ctx": N_CTX,
        "n_threads": n_threads,
        "planner_cache": False,
    }
    found: list[dict[str, Any]] = [{"gains": []} for _ in drafters]
    engines = [eaglecpp.Engine.open(target, draft, **options) for draft in drafters]
    for temperature in (0.0, 0.7):
        sums: list[Any] = [None] * len(drafters)
        for number, chat in enumerate(chats):
            said: dict[tuple[int, str], Any] = {}
            runs = [(i, s) for s in (CHAIN, "auto", "off") for i in range(len(drafters))]
            for at in range(len(runs)):
                i, strategy = runs[(at + number) % len(runs)]
                engines[i].clear()
                said[i, strategy] = engines[i].chat(
                    chat, strategy=strategy, temperature=temperature, seed=SEED, max_tokens=n_tokens
                )
            if len({tuple(one.tokens) for one in said.values()}) > 1:
                raise SystemExit(f"{chat}: the text depends on drafts")
            if len(said[0, "off"].tokens) < 8:
                continue
            for i in range(len(drafters)):
                timings = said[i, CHAIN].timings
                sums[i] = timings if sums[i] is None else sums[i] + timings
                plain = statistics.mean(said[k, "off"].timings.predicted_ms for k in range(len(drafters)))
                found[i]["gains"].append(math.log(plain / said[i, "auto"].timings.predicted_ms))
        for one, timings in zip(found, sums, strict=True):
            one[f"length {temperature:g}"] = timings.acceptance_length
    for engine, one in zip(engines, found, strict=True):
        engine.close()
        one["auto"] = math.exp(statistics.mean(one.pop("gains")))
    return found


def main() -> int:
    args = parse()
    os.environ["EAGLECPP_HOME"] = str(args.home)
    from eaglecpp.train.learn import learn

    target = args.target or installed_target()
    stock = args.draft or find_here("smollm2").draft
    assert stock is not None
    every = persona_questions(args.n_asked + args.n_kept)
    result = facts({"target": target, "draft": stock}, minutes=args.minutes, n_asked=args.n_asked)
    learning = Learning.of(target)
    if "ask" in args.stages:
        ask(target, stock, every[: args.n_asked], args.threads)
        note(f"{len(learning.records())} answers are kept")
    if "learn" in args.stages:
        learnt = learn(target, stock, Quiet(), minutes=args.minutes, threads=args.threads)
        note(str(learnt))
        result["learnt"] = {"user": vars(learnt.user or learnt), "general": vars(learnt.general or learnt)}
    if "measure" in args.stages:
        rows = []
        chat = [[{"role": "user", "content": one.turns[0]}] for one in questions("chat", 1500)]
        sets = {"her other questions": [messages(q) for q in every[args.n_asked :]], "general": chat}
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "learnt.gguf"
            shutil.copyfile(learning.drafter(stock), made)
            for name, chats in sets.items():
                chosen = chats[:: max(1, len(chats) // args.limit)]
                for who, found in zip(
                    ("stock", "learnt"),
                    measure(target, (stock, made), chosen, args.n_tokens, args.threads),
                    strict=True,
                ):
                    rows.append(
                        [name, len(chosen), who, *(found[key] for key in ("length 0", "length 0.7", "auto"))]
                    )
                    result[f"{name}, {who}"] = found
        print(table(("questions", "number", "drafter", "length, greedy", "at 0.7", "auto over plain"), rows))
    write_json(args.json, result)
    return 0


class Quiet:
    """A listener that says the notes."""

    def stop(self) -> bool:
        return False

    def note(self, text: str) -> None:
        note(text)

    def on_work(self, what: str, n_done: int, n_all: int, detail: str = "") -> None:
        pass

    def on_step(self, report: Any) -> None:
        pass

    def on_evaluation(self, step: int, found: Any, best: bool) -> None:
        note(f"step {step}: held-out length {found.length:.3f}{' (best)' if best else ''}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("home", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--n-asked", type=int, default=400)
    parser.add_argument("--n-kept", type=int, default=200)
    parser.add_argument("--n-tokens", type=int, default=96)
    parser.add_argument("--limit", type=int, default=66, help="questions of each set that are measured")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--stages", default="ask,learn,measure")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    with_allocator([sys.executable, *sys.argv])
    raise SystemExit(main())
