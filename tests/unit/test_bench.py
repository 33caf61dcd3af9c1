# SPDX-License-Identifier: MIT
"""Tests `eaglecpp bench`: the choice of strategies, the plan report, and the output. Also tests the report on
how much drafting and kernels gain on this machine, and the recorded answers on which the report is based.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from eaglecpp import Engine
from eaglecpp.bench.llama_plain import LlamaPlain
from eaglecpp.bench.share import shared_block
from eaglecpp.bench.strategies import measure, plan_report
from eaglecpp.bench.verdict import measure_verdict, planned_verdict, verdict_of
from eaglecpp.cli import main
from eaglecpp.cli.doctor import native_facts
from eaglecpp.cli.figures import verdict_line
from eaglecpp.engine.gains import Answered, Gain, Gains
from eaglecpp.results import Timings
from helpers.clock import set_clock
from helpers.models import Models

SHORT = ["-n", "8", "--seconds", "0", "-t", "1", "-c", "256"]


def test_all_contestants_answer_the_same_prompts_in_each_pass(engine: Engine) -> None:
    before = engine.timings.predicted_n
    options: Any = {"seconds": 0, "n_tokens": 16, "temperatures": (0.0,), "ignore_eos": True}
    plain, chain, auto = measure(engine, ["off", "chain:2", "auto"], ["ab", "cd ef"], **options)
    assert engine.timings.predicted_n - before == 3 * 16, "without time, only one prompt is measured"
    assert [one.strategy for one in (plain, chain, auto)] == ["off", "chain:2", "auto"]
    assert plain.ratios == (1.0,)
    assert len(chain.ratios) == 1
    assert (plain.acceptance_length, chain.acceptance_length > 1.0) == (1.0, True)
    assert chain.tokens_per_second == pytest.approx(1000 / chain.ms)


def test_it_keeps_to_its_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    set_clock(monkeypatch, "eaglecpp.bench.strategies", monotonic=lambda: clock[0])
    n_answers = 0

    def answer(*args: Any, **options: Any) -> Any:
        nonlocal n_answers
        n_answers += 1
        clock[0] += 3.0
        return SimpleNamespace(timings=Timings(predicted_n=16, predicted_ms=100.0))

    monkeypatch.setattr("eaglecpp.bench.strategies.answer", answer)
    measure(engine, ["off", "chain:2"], ["a", "b", "c"], seconds=38, n_tokens=16)
    assert n_answers == 12, "expected 12 answers of 3 s each"


def test_measurements_before_ctrl_c_count(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(engine: Any, prompt: Any, n: int, strategy: str, options: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return SimpleNamespace(timings=Timings(predicted_n=16, predicted_ms=100.0))

    monkeypatch.setattr("eaglecpp.bench.strategies.answer", answer)
    left = [10]
    measured = measure(engine, ["off", "chain:2"], ["a"], seconds=9, n_tokens=16)
    assert [len(one.ratios) for one in measured] == [2, 2, 2, 2], "an incomplete pass must not count"
    left = [2]
    with pytest.raises(KeyboardInterrupt):
        measure(engine, ["off", "chain:2"], ["a"], seconds=9, n_tokens=16)


def test_a_report_before_the_first_answer(models: Models) -> None:
    options: Any = {"n_ctx": 256, "n_threads": 1, "exact": "off"}
    with Engine.open(models.target, draft=models.draft, **options) as fresh:
        fresh.clear()
        report = plan_report(fresh)
        assert report is not None and report["plain_ms"] > 0 and report["chains"]
        assert all(n_samples > 0 for rows, _, n_samples in report["verify"] if rows in (1, 2, 4, 8))
    with Engine.open(models.target, n_ctx=256) as plain:
        assert plan_report(plain) is None


def test_the_report_has_costs_chances_and_a_curve(engine: Engine) -> None:
    measure(engine, ["off", "chain:2", "auto"], ["ab cd"], seconds=0, n_tokens=60)
    report = plan_report(engine)
    assert report is not None
    assert report["plain_ms"] > 0
    measured = {rows for rows, ms, n in report["verify"] if n > 0 and ms > 0}
    assert {1, 3} <= measured, "batches of 1 and 3 rows must be measured"
    assert report["labels"] > 0
    for n, chain in enumerate(report["chains"], 1):
        assert chain["nodes"] == n and 1.0 <= chain["tokens"] <= n + 1
        assert chain["speed"] == pytest.approx(chain["tokens"] * report["plain_ms"] / chain["ms"])
    json.dumps(report)


# The command `eaglecpp bench`


def test_the_table(models: Models, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", str(models.target), "--draft", str(models.draft), "--strategy", "chain:2"]
    command += ["--strategy", "tree:k=4,depth=5,nodes=15", "--strategy", "auto"]
    assert main([*command, *SHORT]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:12])) <= 60
    columns = ["1", "turn", "tokens/s", "speed", "length"]
    for first, title in ((0, ["greedy,"]), (6, ["temperature", "0.8,"])):
        assert lines[first].split() == [*title, *columns]
        who = [line.split()[0] for line in lines[first + 1 : first + 5]]
        assert who == ["plain", "chain:2", "tree:k=4,depth=5,nodes=15", "auto"]
    said = [re.split(": |, ", line)[0:2] for line in lines[12:] if line.startswith("auto")]
    assert said == [["auto", "greedy"], ["auto", "temperature 0.8"]]


def test_a_block_to_share_has_speeds_and_no_paths(models: Models, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(models.target), "--draft", str(models.draft), "--share", *SHORT]) == 0
    out, err = capsys.readouterr()
    (block,) = tomllib.loads(out)["bench"]
    assert [(one["strategy"], one["temperature"]) for one in block["results"]] == [
        ("off", 0.0), ("off", 0.8), ("auto", 0.0), ("auto", 0.8),
    ]  # fmt: skip
    assert block["cores"] > 0 and block["drafter"] and block["results"][2]["speed"] > 0
    assert str(models.target.parent) not in out and models.target.stem not in out
    assert "docs/hardware.toml" in err


def test_a_block_to_share_has_no_address(models: Models) -> None:
    machine = native_facts()
    machine["devices"].append({"name": "RPC0", "description": "10.1.2.3:50052", "kind": "gpu"})
    with Engine.open(models.target, draft="text") as engine:
        (block,) = tomllib.loads(shared_block(engine, [], machine))["bench"]
    assert (block["gpu"], block["drafter"]) == ("RPC", "text")


def test_without_a_drafter_no_draft_is_measured(models: Models, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(models.target), *SHORT]) == 0
    out, err = capsys.readouterr()
    first_words = [line.split()[0] for line in out.splitlines() if line]
    assert first_words[:4] == ["greedy,", "plain", "temperature", "plain"], "and kernels, if they run"
    assert err == "no drafter: only target-only decoding is measured\n"
    assert main(["bench", str(models.target), "--strategy", "chain:1", *SHORT]) == 1
    assert "strategy chain:1 needs a drafter" in capsys.readouterr().err


# Verdicts


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
