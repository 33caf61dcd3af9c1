# SPDX-License-Identifier: MIT
"""Tests `eaglecpp bench`: the choice of strategies, the plan report, and the output."""

from __future__ import annotations

import json
import re
import tomllib
from types import SimpleNamespace
from typing import Any

import pytest

from eaglecpp import Engine
from eaglecpp.bench.share import shared_block
from eaglecpp.bench.strategies import measure, plan_report
from eaglecpp.cli import main
from eaglecpp.cli.doctor import native_facts
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
