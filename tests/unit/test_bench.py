# SPDX-License-Identifier: MIT
"""`eaglecpp bench`: who is measured, what the plan report says, and the shapes of what comes out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eaglecpp import Engine
from eaglecpp.bench import measure, plan_report
from eaglecpp.bench.strategies import _expected, _grown
from eaglecpp.cli import main
from eaglecpp.results import Timings
from helpers.clock import set_clock

if TYPE_CHECKING:
    from conftest import Models

SHORT = ["-n", "8", "--seconds", "0", "-t", "1", "-c", "256"]


@pytest.fixture(scope="module")
def engine(models: Models) -> Iterator[Engine]:
    with Engine.open(models.target, draft=models.draft, n_ctx=256, n_threads=1) as opened:
        yield opened


def test_everybody_answers_the_same_prompts_once_a_pass(engine: Engine) -> None:
    before = engine.timings.predicted_n
    plain, chain, auto = measure(engine, ["off", "chain:2", "auto"], ["ab", "cd ef"], seconds=0, n_tokens=16)
    assert engine.timings.predicted_n - before == 3 * 16, "one prompt, when there is no time for more"
    assert [one.strategy for one in (plain, chain, auto)] == ["off", "chain:2", "auto"]
    assert plain.ratios == (1.0,)
    assert len(chain.ratios) == 1
    assert (plain.acceptance_length, chain.acceptance_length > 1.0) == (1.0, True)
    assert chain.tokens_per_second == pytest.approx(1000 / chain.ms)


def test_it_keeps_its_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    set_clock(monkeypatch, "eaglecpp.bench.strategies", monotonic=lambda: clock[0])
    n_answers = 0

    def answer(*args: Any, **options: Any) -> Timings:
        nonlocal n_answers
        n_answers += 1
        clock[0] += 3.0
        return Timings(predicted_n=16, predicted_ms=100.0)

    monkeypatch.setattr("eaglecpp.bench.strategies._answer", answer)
    measure(engine, ["off", "chain:2"], ["a", "b", "c"], seconds=20, n_tokens=16)
    assert n_answers == 6, "three prompts by two strategies take 18 s"


def test_what_was_measured_before_ctrl_c_counts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(engine: Any, prompt: Any, n: int, strategy: str, options: Any) -> Timings:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return Timings(predicted_n=16, predicted_ms=100.0)

    monkeypatch.setattr("eaglecpp.bench.strategies._answer", answer)
    left = [6]
    measured = measure(engine, ["off", "chain:2"], ["a"], seconds=9, n_tokens=16)
    assert [len(one.ratios) for one in measured] == [2, 2], "the half of a pass is left out"
    left = [2]
    with pytest.raises(KeyboardInterrupt):
        measure(engine, ["off", "chain:2"], ["a"], seconds=9, n_tokens=16)


def test_plain_comes_first(engine: Engine) -> None:
    with pytest.raises(ValueError, match="the first one must be 'off'"):
        measure(engine, ["auto"])


def test_a_report_before_the_first_step_is_predicted(models: Models) -> None:
    options: Any = {"n_ctx": 256, "n_threads": 1, "exact": "off"}
    with Engine.open(models.target, draft=models.draft, **options) as fresh:
        fresh.clear()
        report = plan_report(fresh)
        assert report is not None and report["plain_ms"] > 0 and report["chains"]
        assert {n_samples for *_, n_samples in report["verify"]} == {0.0}
    with Engine.open(models.target, n_ctx=256) as plain:
        assert plan_report(plain) is None


def test_the_report_has_costs_chances_and_a_curve(engine: Engine) -> None:
    measure(engine, ["off", "chain:2", "auto"], ["ab cd"], seconds=0, n_tokens=60)
    report = plan_report(engine)
    assert report is not None
    assert report["plain_ms"] > 0
    measured = {rows for rows, ms, n in report["verify"] if n > 0 and ms > 0}
    assert {1, 3} <= measured, "plain rounds and chains of two"
    assert report["acceptance"]["greedy"]["labels"] > 0
    assert [point["nodes"] for point in report["trees"]] == list(range(1, 33))
    tokens = [point["tokens"] for point in report["trees"]]
    assert tokens == sorted(tokens)
    for chain, tree in zip(report["chains"], report["trees"], strict=False):
        assert chain["depth"] == chain["nodes"]
        assert tree["tokens"] >= chain["tokens"] - 1e-9
        assert chain["speed"] == pytest.approx(chain["tokens"] * report["plain_ms"] / chain["ms"])
    json.dumps(report)


def test_grown_trees_are_the_best_of_their_size() -> None:
    chances = [[0.6, 0.3], [0.5, 0.1], [0.4, 0.2]]
    nodes = {(): 1.0}  # every node of the full tree, by its ranks
    for depth in range(3):
        parents = [path for path in nodes if len(path) == depth]
        nodes |= {(*path, r): nodes[path] * p for path in parents for r, p in enumerate(chances[depth])}
    paths = [path for path in nodes if path]
    for n, grown in enumerate(_grown(chances, 5), start=1):
        closed = (s for s in combinations(paths, n) if all(not q[:-1] or q[:-1] in s for q in s))
        best = max(sum(nodes[path] for path in chosen) for chosen in closed)
        assert sum(node.p for node in grown) == pytest.approx(best)


def test_a_round_is_priced_by_its_rows_and_levels() -> None:
    report: dict[str, Any] = {
        "plain_ms": 10.0,
        "plain_host_ms": 0.5,
        "host_ms": 0.25,
        "verify": [(1, 9.5, 3), (2, 10.0, 1), (3, 11.0, 0), (4, 12.0, 2)],
        "commit": [(1, 1.0, 1), (2, 1.5, 1)],
        "level": [(1, 0.5, 1), (2, 0.75, 1)],
    }
    *_, chain = _grown([[0.5], [0.5]], 3)
    point = _expected(report, chain)
    assert point["ms"] == pytest.approx(11.0 + 1.5 + 0.25 + 0.5 + 0.5)
    assert point["speed"] == pytest.approx((1 + 0.5 + 0.25) * 10.0 / point["ms"])


# The command


def test_the_table(models: Models, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", str(models.target), "--draft", str(models.draft), "--strategy", "chain:2", "--plan"]
    assert main([*command, *SHORT]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["strategy", "tokens/s", "speed", "spread", "length", "plan"]
    assert out.splitlines()[1].split()[:1] == ["plain"]
    assert "chain:2" in out
    assert "one token without drafting takes" in out
    assert "x one token" in out


def test_json_and_picture(models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "plan.png"
    command = ["bench", str(models.target), "--draft", str(models.draft), "--strategy", "auto", "--json"]
    assert main([*command, "--png", str(picture), *SHORT]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [one["strategy"] for one in result["results"]] == ["off", "auto"]
    assert result["plan"]["verify"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.png"]


def test_without_a_drafter_only_plain_decoding_is_measured(
    models: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(models.target), *SHORT]) == 0
    out, err = capsys.readouterr()
    first_words = [line.split()[0] for line in out.splitlines() if line]
    assert first_words in (["strategy", "plain"], ["strategy", "plain", "eaglecpp's"]), "kernels, if they run"
    assert err == "no drafter: plain decoding only\n"
    assert main(["bench", str(models.target), "--strategy", "chain:1", *SHORT]) == 0
    assert "skipping chain:1: no drafter" in capsys.readouterr().err


def test_a_picture_without_matplotlib_is_refused_before_anything_runs(models: Models, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from eaglecpp.cli import main\n"
        f"sys.exit(main(['bench', {str(models.target)!r}, '--png', 'x.png']))"
    )
    run = [sys.executable, "-P", "-c", code]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: --png needs matplotlib: pip install matplotlib\n"
