# SPDX-License-Identifier: MIT
"""How well the demo target answers, asked through the GGUF: `python evaluate.py TARGET [-n 100]`.

Counts answers that are word for word the trained one, for trained facts in trained and in new wordings, and
refusals of names that do not exist; for facts that were never trained, how many are refused.
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
    parser.add_argument("-n", type=int, default=100, help="questions of each kind")
    parser.add_argument("--show", type=int, default=0, help="wrong answers of each kind to print")
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
    wrong = [(q, said) for q in questions if (said := _answer(engine, q.text)) != q.answer]
    print(f"{name + ': word for word':<44} {len(questions) - len(wrong):4d} of {len(questions)}", flush=True)
    for question, said in wrong[:n_show]:
        print(f"    {question.text}\n      said:   {said}\n      should: {question.answer}")


def _answer(engine: eaglecpp.Engine, text: str) -> str:
    made = engine.chat([{"role": "user", "content": text}], max_tokens=160, temperature=0.0)
    return made.text.strip()


if __name__ == "__main__":
    main()
