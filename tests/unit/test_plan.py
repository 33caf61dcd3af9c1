# SPDX-License-Identifier: MIT
"""Tests the planner's report on a generation, and the log of its decisions."""

from __future__ import annotations

from typing import Any

import pytest

from eaglecpp import Completion, Engine
from helpers.models import Models

PROMPT = "ab cd ef"


def generate(engine: Engine, n: int = 200, **options: Any) -> Completion:
    engine.clear()
    return engine.generate(PROMPT, **{"max_tokens": n, "temperature": 0.0, "ignore_eos": True} | options)


def test_the_plan_reports_the_rounds(engine: Engine) -> None:
    result = generate(engine, strategy="tree:k=2,depth=3,nodes=5")
    plan, stats = result.timings.plan, result.timings
    assert plan["rounds"] == stats.rounds
    assert stats.rounds - 1 <= plan["drafted_rounds"] <= stats.rounds, "all rounds but the last must draft"
    assert plan["nodes"] == pytest.approx(stats.draft_n / plan["drafted_rounds"])
    assert 1.0 < plan["depth"] <= 3.0
    assert 1.0 < plan["expected_tokens"] < 4.0


def test_the_speed_up_is_known_from_the_first_answer(models: Models) -> None:
    with Engine.open(models.target, draft=models.draft, n_ctx=1024, n_threads=1) as fresh:
        assert generate(fresh, strategy="chain:2").timings.plan["speedup"] > 0.0
        off = generate(fresh, strategy="off").timings.plan
        assert 0.0 < off["speedup"] <= 1.0, "committing to the drafter takes time"
        assert generate(fresh, strategy="auto").timings.plan["speedup"] > 0.0


def test_a_log_has_a_line_for_every_round(engine: Engine) -> None:
    result = generate(engine, temperature=0.7, seed=3, log_plan=True)
    assert len(result.plan_log) == result.timings.rounds
    assert generate(engine).plan_log == []
