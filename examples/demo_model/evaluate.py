# SPDX-License-Identifier: MIT
"""Measures how many answers of the demo target are right: `python evaluate.py TARGET [-n 100]`.

Asks trained facts in trained and in held-out phrasings, and names that do not exist; an answer counts if it
equals the trained answer word for word. For held-out facts, it counts refusals.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable

from dialogues import REFUSAL, Dialogues, Question
from facts import collect

import eaglecpp

_KINDS = ("what", "signature", "reverse", "where", "contents", "unknown", "chat")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target")
    parser.add_argument("-n", type=int, default=100, help="number of questions of each kind")
    parser.add_argument("--show", type=int, default=0, help="number of wrong answers of each kind to print")
    options = parser.parse_args()
    dialogues = Dialogues(collect())
    rng = random.Random(7)
    with eaglecpp.Engine.open(options.target, n_ctx=1024) as engine:
        for kind in _KINDS:
            known = [dialogues.ask(kind, rng) for _ in range(options.n)]
            other = [dialogues.ask(kind, rng, held_out=True) for _ in range(options.n)]
            _report(engine, kind, known, options.show)
            _report(engine, f"{kind}, new wording", other, options.show)
        familiar = [fact for fact in dialogues.known if fact.is_familiar]
        asked = [dialogues.about(rng.choice(familiar), rng, held_out=True) for _ in range(options.n)]
        _report(engine, "well-known names, new wording", asked, options.show)
        unknown = [dialogues.about(fact, rng) for fact in dialogues.unknown]
        refused = sum(_answer(engine, question.text) == REFUSAL for question in unknown)
        print(f"{'facts never trained: refused':<34} {refused:4d} of {len(unknown)}")


def _report(engine: eaglecpp.Engine, name: str, questions: Iterable[Question], n_show: int) -> None:
    questions = list(questions)
    wrong = [(q, answer) for q in questions if (answer := _answer(engine, q.text)) != q.answer]
    print(f"{name + ': word for word':<44} {len(questions) - len(wrong):4d} of {len(questions)}", flush=True)
    for question, answer in wrong[:n_show]:
        print(f"    {question.text}\n      found:    {answer}\n      expected: {question.answer}")


def _answer(engine: eaglecpp.Engine, text: str) -> str:
    result = engine.chat([{"role": "user", "content": text}], max_tokens=160, temperature=0.0)
    return result.text.strip()


if __name__ == "__main__":
    main()
