# SPDX-License-Identifier: MIT
"""Trained block drafters: as long rounds as they had, and the texts of plain decoding whatever is drafted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eaglecpp

TESTS = Path(__file__).parents[1]
TARGET = TESTS.parent / "examples" / "demo_model" / "pair" / "demo-target.gguf"
# tokens per round of greedy chains of five and of trees of eight: 1.80 and 2.05, 1.67 and 1.77, 2.36 and 2.63
LENGTHS = {"dspark": (1.65, 1.85), "dflash": (1.5, 1.6), "dflash2": (2.1, 2.35)}
QUESTIONS = (
    "What does os.path.join do?",
    "Explain math.sqrt.",
    "What is in the module json?",
    "Which module is Counter in?",
    "What is collections.deque?",
    "Who are you?",
)
CHATS = [[{"role": "user", "content": question}] for question in QUESTIONS]
CHAIN, TREE = "chain:5", "tree:k=3,depth=5,nodes=8"


@pytest.fixture(scope="module", params=LENGTHS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(kind: str) -> Iterator[eaglecpp.Engine]:
    draft = TESTS / "fixtures" / f"demo-{kind}.gguf"
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "n_sequences": 4, "planner_cache": False}
    with eaglecpp.Engine.open(TARGET, draft=draft, exact="on", **options) as opened:
        yield opened


@pytest.fixture(scope="module")
def plain(engine: eaglecpp.Engine) -> dict[float, list[list[int]]]:
    """Tokens of the answers at each temperature."""
    return {temperature: answers(engine, "off", temperature)[0] for temperature in (0.0, 0.8)}


def answers(engine: eaglecpp.Engine, strategy: str, temperature: float) -> tuple[list[list[int]], float]:
    """One after the other; and the tokens per round."""
    found = [
        engine.chat(chat, max_tokens=80, temperature=temperature, seed=seed, strategy=strategy)
        for seed, chat in enumerate(CHATS)
    ]
    n_rounds = sum(one.timings.rounds for one in found)
    return [one.tokens for one in found], sum(one.timings.predicted_n for one in found) / n_rounds


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("strategy", ["chain:1", CHAIN, "chain:7", TREE, "auto"])
def test_the_text_is_the_plain_one(
    engine: eaglecpp.Engine, plain: dict[float, list[list[int]]], strategy: str, temperature: float
) -> None:
    assert answers(engine, strategy, temperature)[0] == plain[temperature]


@pytest.mark.parametrize("strategy", [CHAIN, TREE, "auto"])
def test_several_conversations_get_what_each_gets_alone(
    engine: eaglecpp.Engine, plain: dict[float, list[list[int]]], strategy: str
) -> None:
    found = engine.generate_many(CHATS, max_tokens=80, temperature=0.0, strategy=strategy)
    assert [one.tokens for one in found] == plain[0.0]


def test_rounds_are_as_long_as_they_were_and_longer_with_trees(engine: eaglecpp.Engine, kind: str) -> None:
    chain, tree = (answers(engine, strategy, 0.0)[1] for strategy in (CHAIN, TREE))
    assert chain > LENGTHS[kind][0]
    assert tree > LENGTHS[kind][1]
    assert tree > chain
