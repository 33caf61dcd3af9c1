# SPDX-License-Identifier: MIT
"""The sentence on what drafting and the kernels give here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eaglecpp.bench import verdict_of
from eaglecpp.cli.chat.answer import verdict_line
from eaglecpp.results import Timings


def report(rows: dict[int, float], tokens: dict[int, float], draft_ms: float = 1.0) -> dict[str, Any]:
    """As `plan_report`, of chains: ms of so many rows, and tokens of a round with so many nodes."""
    chains = [
        {"nodes": n, "depth": n, "tokens": t, "ms": rows[n + 1] + draft_ms * n} for n, t in tokens.items()
    ]
    for chain in chains:
        chain["speed"] = chain["tokens"] * rows[1] / chain["ms"]
    return {"plain_ms": rows[1], "verify": [(n, ms, 1.0) for n, ms in rows.items()], "chains": chains}


def test_cheap_rows_pay_and_the_best_chain_is_named() -> None:
    found = verdict_of(report({1: 10.0, 2: 10.5, 4: 12.0}, {1: 1.7, 3: 2.6}), kernels=2.04)
    assert found.pays
    assert (found.n_rows, found.row_cost) == (4, pytest.approx(1.2))
    assert found.speed == pytest.approx(2.6 * 10 / 15)
    assert "checking four tokens at once takes 1.2 times as long as one" in str(found)
    assert "2.6 tokens" in str(found)
    assert str(found).endswith("2.0 times as fast as llama.cpp's own.")


def test_dear_rows_do_not_pay_and_the_need_is_what_would_have_broken_even() -> None:
    found = verdict_of(report({1: 10.0, 4: 30.0}, {3: 2.6}, draft_ms=0.2))
    assert not found.pays
    assert found.most == pytest.approx(2.6 - 0.06)
    assert "checking four tokens at once takes 3.0 times as long as one" in str(found)
    assert "it pays below 2.5 times" in str(found)
    assert "kernels" not in str(found)


def test_a_batch_that_was_faster_than_one_token_by_chance_takes_no_longer() -> None:
    found = verdict_of(report({1: 10.0, 4: 8.0}, {3: 2.6}))
    assert "checking four tokens at once takes no longer than one on this machine" in str(found)


def test_a_gain_that_would_be_called_one_is_none() -> None:
    found = verdict_of(report({1: 10.0, 2: 10.1}, {1: 1.12}))
    assert 1.0 < found.speed < 1.05, "or this tests something else"
    assert str(found).startswith("Drafting should make little difference here: checking two tokens")
    assert not found.pays


def test_a_drafter_whose_tokens_are_never_accepted_needs_more_of_them() -> None:
    assert "it would pay if more tokens of this drafter were accepted" in str(
        verdict_of(report({1: 10.0, 2: 10.1}, {1: 1.05}))
    )


def test_without_a_drafter_only_the_kernels_are_spoken_of() -> None:
    assert str(verdict_of(None)) == ""
    assert str(verdict_of(None, kernels=1.63)) == (
        "eaglecpp's kernels make plain decoding 1.6 times as fast as llama.cpp's own."
    )


@pytest.mark.parametrize(
    ("verify_4", "drafted", "n_samples", "speed", "says"),
    [
        (30.0, 0, 1.0, None, "Drafting does not pay here"),
        (30.0, 0, 0.0, None, ""),  # nothing measured
        (30.0, 60, 1.0, None, ""),  # it drafted, and nobody knows what that gave
        (12.0, 60, 1.0, 1.6, "about 1.6 times the speed of plain decoding"),
        (12.0, 60, 1.0, 1.0, "Drafting makes little difference here"),
        (12.0, 0, 1.0, None, ""),  # it did not draft, but will from now on
    ],
)
def test_an_answer_ends_in_what_was_measured_and_is_true_of_it(
    verify_4: float,
    drafted: int,
    n_samples: float,
    speed: float | None,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = report({1: 10.0, 4: verify_4}, {3: 2.6})
    found["verify"] = [(n, ms, n_samples) for n, ms, _ in found["verify"]]
    monkeypatch.setattr("eaglecpp.bench.verdict.plan_report", lambda engine: found)
    monkeypatch.setattr("eaglecpp.bench.verdict.predicted_gain", lambda native: 2.0)
    stats = Timings(predicted_n=100, draft_n_accepted=drafted, plan={"strategy": "auto"})
    model: Any = SimpleNamespace(engine=SimpleNamespace(timings=stats, native=None))
    line = verdict_line(stats, model, speed)
    assert says in line and bool(says) == bool(line)
    assert not line or line.endswith("2.0 times as fast as llama.cpp's own (predicted).")
