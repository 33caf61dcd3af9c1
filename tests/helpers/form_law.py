# SPDX-License-Identifier: MIT
"""Checks that answers under a grammar are the same with and without drafting, for random schemas, grammars,
temperatures, strategies and cancelled answers. `benchmarks/structured.py --law N` checks more of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from eaglecpp import Engine
from eaglecpp.errors import GrammarError

GRAMMARS = [
    'root ::= ("ab" | "abc" [0-9]+ | word " ")* "."\nword ::= [a-z]+',
    'root ::= "name: " [A-Z][a-z]+ "\\nplace: " ("Berlin" | "Bern" | "Bonn") "\\n"',
    'root ::= s\ns ::= "(" s ")" | "[" s "]" | "x"',
]
PATTERNS = [r"^\d{3}-[a-z]+$", r"\S", r"^(ab|c){2,4}$", r"\p{L}{2}"]
KEYS = ["name", "address_line", "total", "state", "kind"]
STRATEGIES = ["auto", "auto", "auto", "chain:3", "tree:k=3,depth=4,nodes=12"]
WORDS = ["len", "a list", "a dict", "a set", "a tuple"]


@dataclass
class Comparison:
    """Result of a comparison. `differ`: options of the answers whose text drafting changed."""

    n: int = 0
    n_tokens: int = 0
    n_rounds: int = 0
    n_cancelled: int = 0
    differ: list[Any] = field(default_factory=list)


def _word(rng: random.Random) -> str:
    return "".join(rng.choices("abcdefgh_", k=rng.randint(1, 12)))


def _value(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """Returns a random JSON schema."""
    simple: list[dict[str, Any]] = [
        {"type": "string", "maxLength": rng.randint(1, 20)},
        {"type": "integer", "minimum": -5, "maximum": rng.randint(0, 1000)},
        {"enum": [_word(rng) for _ in range(rng.randint(1, 4))]},
        {"const": f"{_word(rng)} {_word(rng)}"},
    ]
    if depth == 2:
        return rng.choice(simple)
    items = {_word(rng): _value(rng, depth + 1) for _ in range(rng.randint(1, 4))}
    required = [key for key in items if rng.random() < 0.7]
    return rng.choice([
        *simple,
        {"type": ["boolean", "null"]},
        {"type": "number"},
        {"type": "string", "pattern": rng.choice(PATTERNS)},
        {},
        {"type": "array", "items": _value(rng, depth + 1), "minItems": rng.randint(0, 2), "maxItems": 3},
        {"type": "object", "properties": items, "required": required},
    ])  # fmt: skip


def _form(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.2:
        return {"grammar": rng.choice(GRAMMARS)}
    items = {key: _value(rng) for key in rng.sample(KEYS, rng.randint(1, 4))}
    return {"json_schema": {"type": "object", "properties": items, "required": [*items]}}


def compare_answers(engine: Engine, n: int, seed: int, strategies: list[str]) -> Comparison:
    """Compares n drafted answers with target-only decoding."""
    rng, found = random.Random(seed), Comparison()
    while found.n < n:
        options: dict[str, Any] = _form(rng) | {
            "max_tokens": rng.randint(8, 50),
            "temperature": rng.choice([0.0, 0.8, 1.3]),
            "seed": rng.randint(0, 9999),
        }
        prompt, strategy = f"What is {rng.choice(WORDS)}?", rng.choice(strategies)
        n_taken = rng.choice([0, 0, 1, 3])
        try:
            with engine.session() as session:
                expected = session.generate(prompt, strategy="off", **options)
        except GrammarError:  # a random schema may match no text at all
            continue
        with engine.session() as session:
            if n_taken:
                with session.stream(prompt, strategy=strategy, **options) as stream:
                    for _, _ in zip(range(n_taken), stream, strict=False):
                        pass
            drafted = session.generate(prompt, strategy=strategy, **options)
        found.n += 1
        found.n_tokens += len(drafted.tokens)
        found.n_rounds += drafted.timings.rounds
        found.n_cancelled += n_taken > 0
        if drafted.tokens != expected.tokens:
            found.differ.append((strategy, n_taken, options))
    return found
