# SPDX-License-Identifier: MIT
"""The embedded demo on 50 questions in wordings it was not trained on: acceptance length and speed-up.

    python benchmarks/demo.py [--target T.gguf --draft D.gguf] [-n 50] [--repeats 3] [--json OUT]

Each question is answered greedily with every strategy in turn, the order rotating, and timed by the engine;
ratios are taken question by question against plain decoding. Also counts answers that are word for word what
was trained, and fails when drafting changed a single token.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

from common import facts, median, note, table, warn_if_busy, write_json

import eaglecpp

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "demo_model"))
from dialogues import Dialogues, Question
from facts import collect

PAIR = Path(__file__).parents[1] / "examples" / "demo_model" / "pair"
STRATEGIES = ("off", "auto", "chain:2", "chain:3", "chain:5", "tree:k=3,depth=4,nodes=8")
MAX_TOKENS = 160


@dataclass
class Runs:
    """What one strategy did, over all questions. ms_per_token: one list per question."""

    ms_per_token: list[list[float]]
    n_drafted: int = 0
    rounds: int = 0
    n_accepted: int = 0
    tokens: list[list[int]] = field(default_factory=list)

    @property
    def acceptance_length(self) -> float:
        return 1 + self.n_accepted / self.rounds if self.rounds else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=PAIR / "demo-target.gguf")
    parser.add_argument("--draft", type=Path, default=PAIR / "demo-draft.gguf")
    parser.add_argument("-n", type=int, default=50, help="questions")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warn_if_busy()
    questions = held_out_questions(options.n)
    strategies = ["off", *(s for s in options.strategies if s != "off")]
    with eaglecpp.Engine.open(options.target, draft=options.draft, n_ctx=1024) as engine:
        runs, texts = measure(engine, questions, strategies, options.repeats)
        models = {"target": Path(engine.target_path), "draft": Path(engine.draft_path or "")}
    same = all(run.tokens == runs["off"].tokens for run in runs.values())
    right = sum(text == question.answer for text, question in zip(texts, questions, strict=True))
    rows = [(name, run.acceptance_length, speedup(run, runs["off"])) for name, run in runs.items()]
    n_tokens = sum(map(len, runs["off"].tokens))
    print(f"{len(questions)} questions, {n_tokens} tokens; {right} answers word for word")
    print(table(("strategy", "acceptance length", "of plain speed"), rows))
    results = {name: {"acceptance_length": length, "speedup": ratio} for name, length, ratio in rows}
    settings = {"n_questions": len(questions), "repeats": options.repeats, "greedy": True}
    write_json(options.json, {**facts(models, **settings), "results": results, "word_for_word": right})
    if not same:
        raise SystemExit("drafting changed tokens")


def held_out_questions(n: int) -> list[Question]:
    """Different questions of all kinds, about trained facts, in held-out wordings."""
    dialogues, rng = Dialogues(collect()), random.Random(50)
    found: dict[str, Question] = {}
    while len(found) < n:
        question = dialogues.draw(rng, held_out=True)
        found.setdefault(question.text, question)
    return list(found.values())


def measure(
    engine: eaglecpp.Engine, questions: list[Question], strategies: list[str], repeats: int
) -> tuple[dict[str, Runs], list[str]]:
    """Everything in turns; the first pass warms up and gives the tokens, the others give the times."""
    runs = {name: Runs([[] for _ in questions]) for name in strategies}
    texts: list[str] = []
    for repeat in range(repeats + 1):
        note(f"pass {repeat} of {repeats}")
        for index, question in enumerate(questions):
            turn = (index + repeat) % len(strategies)
            for name in strategies[turn:] + strategies[:turn]:
                messages = [{"role": "user", "content": question.text}]
                engine.clear()
                made = engine.chat(messages, max_tokens=MAX_TOKENS, temperature=0.0, strategy=name)
                run, stats = runs[name], made.stats
                if repeat:
                    run.ms_per_token[index].append(stats.predicted_ms / stats.predicted_n)
                    run.rounds += stats.rounds
                    run.n_accepted += stats.draft_n_accepted
                else:
                    run.tokens.append(made.tokens)
                    if name == "off":
                        texts.append(made.text.strip())
    return runs, texts


def speedup(run: Runs, plain: Runs) -> float:
    """Median over the questions of the median times' ratio."""
    pairs = zip(plain.ms_per_token, run.ms_per_token, strict=True)
    return median(median(slow) / median(fast) for slow, fast in pairs)


if __name__ == "__main__":
    main()
