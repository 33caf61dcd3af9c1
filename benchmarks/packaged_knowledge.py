# SPDX-License-Identifier: MIT
"""Writes what the planner learns of a drafter's acceptance beside it: `smollm2-eagle31-Q4_1.planner.json`.

    python benchmarks/packaged_knowledge.py --draft eaglecpp/models/smollm2-eagle31-Q4_1.gguf

Chains and trees first, so that every depth is seen, then `auto`. The questions are none of benchmarks/data.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

from common import arguments, note

import eaglecpp
from eaglecpp.engine.planner_cache import PlannerCache

QUESTIONS = (
    "How do I boil an egg?",
    "Write a short story about a fox who learns to swim.",
    "When should I use a dictionary in Python?",
    "Explain photosynthesis to a child.",
    "Give me five ideas for a birthday party.",
    "Write a function that checks whether a number is prime.",
    "What are the causes of inflation?",
    "Translate 'good morning' into French, German and Spanish.",
    "Tell the story of Cinderella in four sentences.",
    "My shoes are always wet. What can I do?",
    "Write an e-mail to my landlord about a broken heater.",
    "How does a bicycle stay upright?",
)
CHAINS = ("chain:1", "chain:2", "chain:3", "chain:4", "chain:5", "chain:6", "chain:7")
TREES = ("tree:k=3,depth=3,nodes=6", "tree:k=4,depth=4,nodes=10")
TEMPERATURES = (0.0, 0.7)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--target", default="smollm2", help="a file or a name")
    parser.add_argument("--n-tokens", type=int, default=96)
    parser.add_argument(
        "--rounds", type=int, default=3, help="answers with `auto`, in rounds of all questions"
    )
    args = parser.parse_args()
    with eaglecpp.Engine.open(args.target, draft=args.draft, n_ctx=4096, planner_cache=False) as engine:
        asked = cycle(QUESTIONS)
        for strategy in (*CHAINS, *TREES):
            for seed, temperature in enumerate(TEMPERATURES):
                answer(engine, next(asked), args.n_tokens, temperature, seed, strategy)
        for seed in range(args.rounds):
            for question in QUESTIONS:
                for temperature in TEMPERATURES:
                    answer(engine, question, args.n_tokens, temperature, seed, "auto")
        note(f"wrote {PlannerCache.write_packaged(engine.native, args.draft)}")


def answer(
    engine: eaglecpp.Engine, question: str, n_tokens: int, temperature: float, seed: int, strategy: str
) -> None:
    engine.clear()
    asked = [{"role": "user", "content": question}]
    engine.chat(asked, temperature=temperature, seed=seed, max_tokens=n_tokens, strategy=strategy)


if __name__ == "__main__":
    main()
