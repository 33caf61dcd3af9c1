# SPDX-License-Identifier: MIT
"""Measures which batches are exact for each type, and how many texts differ between drafted and target-only
decoding.

    python benchmarks/exactness.py --draft D.gguf T1.gguf T2.gguf ...

`pad_target.py SRC.gguf OUT.gguf --type Q8_0 --type Q2_K` writes a target in other types. For each file the
script measures which batch sizes give each token the same bits as in a batch of one token, and how long this
measurement takes. Then the script answers several prompts that have the same system prompt. It answers each
prompt in four ways: fresh, regenerated, continued, and edited in the middle of the answer. Answers are greedy
and sampled, drafted by chain, tree and auto, with `exact` on, auto and off. The reference is an engine
without a drafter that gets the same requests in the same order. The script prints the number of texts that
differ from the reference, and how many of these texts `timings.exact` reported as exact.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import arguments, facts, note, table, warn_if_busy, write_json

import eaglecpp

STRATEGIES = ("chain:5", "tree:k=4,depth=5,nodes=15", "auto")
SYSTEM = (
    "You are a patient teacher of history and science. Answer every question in plain words, give one "
    "example, say where knowledge ends, and never invent sources. Keep to three sentences unless more is "
    "asked for. Dates are given in full, names are spelled as in English, and numbers come with their "
    "units. If a question rests on a mistake, say so first, kindly. "
)
QUESTIONS = (
    "Why is the sky blue?",
    "Who was Ada Lovelace?",
    "What is a prime number?",
    "How do bees find flowers?",
    "What did Newton write?",
    "Why do leaves fall in autumn?",
    "What is a black hole?",
    "How does a steam engine work?",
    "Who built the pyramids?",
    "What is the speed of light?",
    "Why is sea water salty?",
    "How do vaccines work?",
    "What was the Silk Road?",
    "How are mountains made?",
    "What is an atom?",
    "Who wrote the Iliad?",
    "Why do cats purr?",
    "How does a compass work?",
    "What is inflation?",
    "Where does the Danube rise?",
)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("targets", type=Path, nargs="+")
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--exact", nargs="+", choices=("on", "auto", "off"), default=["on", "auto", "off"])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--prompts", type=int, default=len(QUESTIONS))
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warn_if_busy()
    results: dict[str, Any] = {}
    rows: list[list[Any]] = []
    for target in args.targets:
        results[target.name] = measured(target, args)
        rows += rows_of(target.name, results[target.name])
    heads = [
        "target",
        "exact rows",
        "ms to measure",
        "exact=",
        "strategy",
        "parted",
        "exact said",
        "wrongly",
        "accepted",
    ]
    print(table(heads, rows))
    write_json(args.json, {"facts": facts({"draft": args.draft}), "results": results})


def measured(target: Path, args: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {"n_ctx": 2048, "n_threads": args.threads, "planner_cache": False}
    with eaglecpp.Engine.open(target, **options) as engine:
        plain = {t: list(conversations(engine, args, t, None)) for t in args.temperatures}
    out: dict[str, Any] = {"runs": {}}
    for exact in args.exact:
        with eaglecpp.Engine.open(
            target, draft=args.draft, exact=exact, strategy=STRATEGIES[1], **options
        ) as engine:
            if exact != "off":
                found = engine.measure_exactness()
                out |= {"rows": found.rows, "ms": found.ms, "steps": found.decodes, "reason": found.reason}
            for strategy in STRATEGIES:
                out["runs"][f"{exact} {strategy}"] = compared(engine, args, strategy, plain)
                note(f"{target.name} {exact} {strategy}: {out['runs'][f'{exact} {strategy}']}")
    return out


def compared(
    engine: eaglecpp.Engine,
    args: argparse.Namespace,
    strategy: str,
    plain: dict[float, list[eaglecpp.Completion]],
) -> dict[str, int]:
    counts = {"texts": 0, "parted": 0, "exact": 0, "wrongly": 0, "accepted": 0}
    for temperature, theirs in plain.items():
        ours = conversations(engine, args, temperature, strategy)
        for a, b in zip(ours, theirs, strict=True):
            # the answers before this turn differ, which was already counted
            if a.prompt_tokens != b.prompt_tokens:
                continue
            is_same, is_exact = a.tokens == b.tokens, a.timings.exact
            counts["texts"] += 1
            counts["parted"] += not is_same
            counts["exact"] += is_exact
            counts["wrongly"] += is_exact and not is_same
            counts["accepted"] += a.timings.draft_n_accepted
    return counts


def conversations(
    engine: eaglecpp.Engine, args: argparse.Namespace, temperature: float, strategy: str | None
) -> Iterator[eaglecpp.Completion]:
    """Yields the answers to four requests per question, all with the same system prompt: fresh, regenerated,
    continued and edited.
    """
    options: dict[str, Any] = {"max_tokens": args.tokens, "temperature": temperature, "ignore_eos": True}
    if strategy is not None:
        options["strategy"] = strategy
    engine.clear()
    for i, question in enumerate(QUESTIONS[: args.prompts]):
        prompt = engine.tokenize(SYSTEM + question + "\n")
        yield engine.generate(prompt, seed=4 * i, **options)
        first = engine.generate(prompt, seed=4 * i + 1, **options)
        yield first
        more = engine.tokenize(f"\n{QUESTIONS[i - 1]}\n", add_bos=False)
        yield engine.generate([*prompt, *first.tokens, *more], seed=4 * i + 2, **options)
        edit = engine.tokenize(f" However, {SYSTEM}", add_bos=False)
        half = first.tokens[: args.tokens // 2]
        yield engine.generate([*prompt, *half, *edit], seed=4 * i + 3, **options)


def rows_of(name: str, result: dict[str, Any]) -> list[list[Any]]:
    rows = []
    for run, counts in result["runs"].items():
        exact, strategy = run.split(" ", 1)
        head = [name, result.get("rows", ""), f"{result.get('ms', 0.0):.0f}"]
        said = [f"{counts[key]} of {counts['texts']}" for key in ("parted", "exact")]
        rows.append([*head, exact, strategy, *said, counts["wrongly"], counts["accepted"]])
    return rows


if __name__ == "__main__":
    main()
