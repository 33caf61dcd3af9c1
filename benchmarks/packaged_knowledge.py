# SPDX-License-Identifier: MIT
"""Writes what the planner learns about a pair beside its drafter: `smollm2-eagle31-Q4_1.planner.json`.

    python benchmarks/packaged_knowledge.py --draft eaglecpp/models/smollm2-eagle31-Q4_1.gguf

Chains of every length and trees run first, each in its own answers, so that every number of rows is measured
in a row; then `auto`, which learns what is accepted; then chains and trees again, because what `auto` prefers
had become cheaper than sizes it tried now and then, for which llama.cpp builds its graph anew. The questions
are none of benchmarks/data. Run it on a quiet machine: the costs are a first guess for every CPU that starts
with them.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import psutil
from common import arguments, note, warn_if_busy

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
CHAINS = ("off", "chain:1", "chain:2", "chain:3", "chain:4", "chain:5", "chain:6", "chain:7")
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
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False))
    args = parser.parse_args()
    warn_if_busy()
    # a fixed number of threads: costs with fewer, while something else ran, are no guess for anyone
    with eaglecpp.Engine.open(
        args.target, draft=args.draft, n_ctx=4096, planner_cache=False, n_threads=args.threads
    ) as engine:
        asked = cycle(QUESTIONS)
        # weights are still being packed at first, and a size's first runs build its graph: twice, in turns
        for strategy in ("off", "off", *CHAINS, *TREES):
            for seed, temperature in enumerate(TEMPERATURES):
                answer(engine, next(asked), args.n_tokens, temperature, seed, strategy)
        for seed in range(args.rounds):
            for question in QUESTIONS:
                for temperature in TEMPERATURES:
                    answer(engine, question, args.n_tokens, temperature, seed, "auto")
        for strategy in (*TREES, *CHAINS, *reversed(CHAINS)):
            for seed, temperature in enumerate(TEMPERATURES):
                answer(engine, next(asked), args.n_tokens, temperature, seed, strategy)
        note(f"wrote {PlannerCache.write_packaged(engine.native, args.draft)}")
        report = engine.native.planner_report(0)
    for name in ("verify", "level", "commit"):
        found = ", ".join(f"{rows} rows {ms:.2f} ms" for rows, ms, n in report[name] if n > 0)
        print(f"{name}: {found}")


def answer(
    engine: eaglecpp.Engine, question: str, n_tokens: int, temperature: float, seed: int, strategy: str
) -> None:
    engine.clear()
    asked = [{"role": "user", "content": question}]
    engine.chat(asked, temperature=temperature, seed=seed, max_tokens=n_tokens, strategy=strategy)


if __name__ == "__main__":
    main()
