# SPDX-License-Identifier: MIT
"""Tests the report on how much drafting and kernels gain on this machine, and the recorded answers on which
the report is based.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eaglecpp import Engine
from eaglecpp.bench.llama_plain import LlamaPlain
from eaglecpp.bench.verdict import measure_verdict, planned_verdict, verdict_of
from eaglecpp.cli import main
from eaglecpp.cli.figures import verdict_line
from eaglecpp.engine.gains import Answered, Gain, Gains
from eaglecpp.results import Timings
from helpers.models import Models


def report(rows: dict[int, float], tokens: dict[int, float], draft_ms: float = 1.0) -> dict[str, Any]:
    """Returns a `plan_report` of a planner that drafts chains. rows: milliseconds of a batch by number of
    rows. tokens: tokens per round by number of nodes.
    """
    chains = [
        {"nodes": n, "depth": n, "tokens": t, "ms": rows[n + 1] + draft_ms * n} for n, t in tokens.items()
    ]
    known = {"greedy": {"labels": 40.0}}
    verify = [(n, ms, 1.0) for n, ms in rows.items()]
    return {"plain_ms": rows[1], "verify": verify, "chains": chains, "trees": [], "acceptance": known}


# Verdicts from predictions


@pytest.mark.parametrize(
    ("rows", "tokens", "draft_ms", "facts", "says"),
    [
        (
            {1: 10.0, 2: 10.5, 4: 12.0}, {1: 1.7, 3: 2.6}, 1.0,
            {"pays": True, "n_rows": 4, "row_cost": 1.2, "speed": 2.6 * 10 / 15},
            ("takes 1.2 times as long as one", "about 1.7 times the speed", "gives about 2.6 tokens"),
        ),
        (
            {1: 10.0, 4: 30.0}, {3: 2.6}, 0.2,
            {"pays": False, "n_rows": 4, "most": 2.6 - 0.06},
            ("takes 3.0 times as long as one", "drafting pays below 2.5 times"),
        ),
        # Noise must not predict a speed-up above the tokens per round. In this case, a batch of four rows was
        # measured at half the time of one row.
        ({1: 10.0, 4: 5.0}, {3: 2.3}, 0.0, {"n_rows": 4, "speed": 2.3}, ("takes no longer than one token",)),
    ],
)  # fmt: skip
def test_the_best_chain_is_named_with_its_cost_and_the_break_even_point(
    rows: dict[int, float],
    tokens: dict[int, float],
    draft_ms: float,
    facts: dict[str, float],
    says: tuple[str, ...],
) -> None:
    found = planned_verdict(report(rows, tokens, draft_ms))
    assert {name: getattr(found, name) for name in facts} == pytest.approx(facts)
    assert "checking 4 tokens at once " in str(found) and "kernels" not in str(found)
    assert all(text in str(found) for text in says)


# Verdicts from answers


def answered(n: int, rounds: int, speedup: float | None, **plan: Any) -> Timings:
    """Returns the counters of an answer with the strategy `auto`."""
    return Timings(predicted_n=n, rounds=rounds, plan={"strategy": "auto", "speedup": speedup} | plan)


def test_the_speed_up_covers_the_last_answers_by_kind_up_to_the_tokens_per_round() -> None:
    answers = Gains()
    answers.add(answered(100, 40, 2.0), 0.0)
    answers.add(answered(100, 50, 1.0), 0.0)
    assert answers.gain(greedy=True) == Gain(2, pytest.approx(200 / 150), pytest.approx(200 / 90))
    assert answers.gain(greedy=False) is None
    answers.add(answered(90, 45, 39.6), 0.8)
    assert answers.gain(greedy=False) == Gain(1, 2.0, 2.0)
    answers.add(answered(10, 1, None), 0.8)  # no target-only step has been measured yet
    answers.add(answered(10, 1, 9.0, strategy="chain:5"), 0.8)
    assert answers.gain(greedy=False) == Gain(1, 2.0, 2.0)
    for _ in range(64):
        answers.add(answered(100, 100, 1.0), 0.8)
    assert answers.gain(greedy=True) is None, "older answers must no longer count"


@pytest.mark.parametrize("wrong", [("n_steps", 0), ("n_steps", "x"), ("n_rounds", None), ("n_tokens", -5)])
def test_impossible_answers_on_disk_are_ignored(wrong: tuple[str, Any]) -> None:
    good = {"n_tokens": 100, "n_rounds": 40, "n_steps": 60.0, "is_greedy": True}
    assert msgspec.convert(good, Answered) == Answered(100, 40, 60.0, True)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(good | dict([wrong]), Answered)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path))
    monkeypatch.setenv("EAGLECPP_PLANNER_CACHE", "1")
    return tmp_path


def test_doctor_run_and_bench_report_the_same(
    models: Models, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglecpp.bench.strategies._STEADY", 1e9)  # any noise is accepted
    monkeypatch.setattr("eaglecpp.bench.strategies._NOISE", 1e9)
    sizes = ["-t", "1", "-c", "512"]
    pair = [str(models.target), "--draft", str(models.draft)]
    assert main(["bench", *pair, "--strategy", "auto", "--seconds", "0", "-n", "48", "--json", *sizes]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["plan"]["verify"]
    assert main(["doctor", *pair, "--json", *sizes]) == 0
    said = json.loads(capsys.readouterr().out)["model"]["verdict"]
    for kind, temperature in (("greedy", 0.0), ("sampled", 0.8)):
        of_auto = [one for one in measured["results"] if one["strategy"] == "auto"]
        (auto,) = (one for one in of_auto if one["temperature"] == temperature)
        assert said[kind] == measured["verdict"][kind]
        assert said[kind]["speed"] == pytest.approx(min(auto["ratio"], said[kind]["tokens"]))
    with Engine.open(models.target, draft=models.draft, n_ctx=512, n_threads=1) as engine:
        done = engine.generate("ab cd", max_tokens=64, ignore_eos=True, temperature=0.0)
        assert verdict_line(done.timings, engine) == str(verdict_of(engine))
        gain = verdict_of(engine).greedy
        assert gain is not None and gain.n_answers == said["greedy"]["n_answers"] + 1


# Measurements on a busy machine


@pytest.mark.parametrize(
    "llama", [[LlamaPlain(9.0), LlamaPlain(20.0)], [LlamaPlain(40.0, True), LlamaPlain(40.0, True)]]
)
def test_kernels_are_not_measured_while_other_programs_use_the_processor(
    llama: list[LlamaPlain], models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(llama)
    monkeypatch.setattr("eaglecpp.bench.verdict.llama_plain", lambda *a, **o: left.pop(0))
    monkeypatch.setattr("eaglecpp.bench.strategies._STEADY", 1e9)
    with Engine.open(models.target, draft=models.draft, n_ctx=256, n_threads=1) as engine:
        if not engine.device_info["kernels"]:
            pytest.skip("our kernels do not run on this processor")
        found = measure_verdict(engine, seconds=0)
        assert found.is_busy and engine.shared.gains.kernels is None
        assert str(found).startswith("Not measured, because other programs")
