# SPDX-License-Identifier: MIT
"""What drafting gains over plain decoding, where that is known."""

from __future__ import annotations

from typing import Any

import pytest

from eaglecpp.cli.chat.answer import PlainSpeed
from eaglecpp.results import Timings

CHAIN = {"strategy": "chain:3", "why": "asked for"}


def answered(n: int, ms: float, drafted: int = 0, plan: dict[str, Any] | None = None) -> Timings:
    return Timings(predicted_n=n, predicted_ms=ms, draft_n=drafted, rounds=n, plan=plan or CHAIN)


def test_a_fixed_strategy_is_compared_with_the_last_plain_answer() -> None:
    speed = PlainSpeed()
    assert speed.learn(answered(100, 5000, drafted=90)) is None, "nothing to compare with yet"
    assert speed.learn(answered(100, 10000)) is None
    assert speed.learn(answered(100, 5000, drafted=90)) == pytest.approx(2.0)
    assert speed.learn(answered(300, 30000, drafted=90)) == pytest.approx(1.0)
    assert speed.overall == pytest.approx(400 / 350)


def test_a_short_plain_answer_says_little() -> None:
    speed = PlainSpeed()
    speed.learn(answered(3, 3000))
    assert speed.learn(answered(100, 5000, drafted=90)) is None
    assert speed.overall is None


def test_the_planners_words_come_first() -> None:
    speed = PlainSpeed()
    speed.learn(answered(100, 10))
    plan = {"strategy": "auto", "why": "tree 8 nodes, depth 3", "speedup": 2.0}
    assert speed.learn(answered(120, 1, 90, plan)) == pytest.approx(2.0)
    assert speed.overall == pytest.approx(2.0)
    assert speed.learn(answered(100, 0.5, 90, plan | {"speedup": None})) == pytest.approx(20.0), (
        "by the clock"
    )
