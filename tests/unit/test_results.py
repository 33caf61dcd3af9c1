# SPDX-License-Identifier: MIT
"""Tests the counters of results: their names, definitions and sums, and the planner's report and log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eaglecpp import Completion, Engine
from eaglecpp.results import Timings
from helpers.models import Models

RAW = {
    "prompt_n": 10, "prompt_ms": 5.0, "reused_n": 2, "predicted_n": 9, "predicted_ms": 20.0,
    "draft_n": 12, "draft_n_accepted": 6, "text_draft_n": 5, "text_draft_n_accepted": 2,
    "rounds": 4, "draft_ms": 3.0, "verify_ms": 12.0, "host_ms": 1.0, "exact": False,
    "tried_per_depth": [4, 3, 1, 0], "accepted_per_depth": [3, 2, 1, 0],
}  # fmt: skip


def test_timings_has_the_documented_names() -> None:
    timings = Timings.from_raw(RAW, plan={"strategy": "chain:3"}).as_dict()
    assert set(timings) == RAW.keys() - {"host_ms", "tried_per_depth"} | {
        "prompt_per_second", "predicted_per_second", "acceptance_length", "plan", "loops", "peak_memory"
    }  # fmt: skip
    assert (timings["acceptance_length"], timings["predicted_per_second"]) == (2.5, 450.0)
    assert timings["accepted_per_depth"] == [0.75, pytest.approx(2 / 3), 1.0]
    json.dumps(timings)


def test_target_only_decoding_has_acceptance_length_one_and_no_run_has_none() -> None:
    assert Timings(rounds=7).acceptance_length == 1.0
    nothing = Timings()
    assert nothing.acceptance_length == nothing.acceptance_rate == nothing.predicted_per_second == 0.0


def test_sums_add_counts_of_different_depths() -> None:
    total = Timings.from_raw(RAW, plan={"strategy": "a"}) + Timings(
        rounds=1, tried_per_depth=(1,), hits_per_depth=(0,), plan={"strategy": "b"}
    )
    assert (total.rounds, total.tried_per_depth, total.hits_per_depth) == (5, (5, 3, 1, 0), (3, 2, 1, 0))
    assert total.plan == {"strategy": "b"}
    assert not total.exact and (Timings() + Timings()).exact, "a sum is exact only if all parts are exact"


# The plan of a generation


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
