# SPDX-License-Identifier: MIT
"""Tests that the next engine reuses the planner's state from a file. Damaged or hostile state files do no
harm.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglecpp import Completion, Engine
from eaglecpp.bench.verdict import verdict_of
from eaglecpp.engine.exactness import measure
from eaglecpp.engine.loading import rehearse
from helpers.clock import n_times, set_clock
from helpers.models import Models

Run = Callable[..., Completion]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EAGLECPP_PLANNER_CACHE")
    return tmp_path / "home" / "planner"


@pytest.fixture
def run(models: Models) -> Run:
    """Returns a function that opens an engine, generates once, and closes it."""

    def generate(n: int = 64, strategy: str = "auto", **options: Any) -> Completion:
        options = {"n_ctx": 512, "n_threads": 1} | options
        with Engine.open(models.target, draft=models.draft, **options) as engine:
            return engine.generate(
                "ab cd ef", max_tokens=n, temperature=0.0, ignore_eos=True, strategy=strategy
            )

    return generate


@pytest.fixture
def n_tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets one more item whenever an opening engine measures the cost of drafting."""
    tried: list[int] = []
    monkeypatch.setattr(
        "eaglecpp.engine.loading.rehearse", lambda *given: (tried.append(1), rehearse(*given))
    )
    return tried


def test_the_next_engine_knows_the_costs(run: Run, home: Path, n_tried: list[int]) -> None:
    assert run(strategy="chain:2").timings.plan["speedup"] is not None
    assert sorted(path.suffix for path in home.iterdir()) == [".learned"]
    assert run(strategy="chain:2").timings.plan["speedup"] is not None
    assert len(n_tried) == 1


def test_an_engine_that_decoded_nothing_changes_no_cost(models: Models) -> None:
    """Tests that an engine that has decoded nothing, such as the engine of `doctor`, does not change stored
    costs.
    """

    def reply() -> str:
        with Engine.open(models.target, draft=models.draft, n_ctx=512, n_threads=1, exact="off") as engine:
            return str(verdict_of(engine))

    assert reply().startswith("Drafting should")
    assert reply() == reply()


def test_exact_sizes_are_measured_once(home: Path, models: Models) -> None:
    def found(**options: Any) -> tuple[str, int]:
        settings = {"n_ctx": 512, "n_threads": 1} | options
        with Engine.open(models.target, draft=models.draft, **settings) as engine:
            return engine.exactness.rows, engine.exactness.decodes

    rows, decodes = found()
    assert decodes > 17
    assert found() == (rows, 0)
    assert found(exact="on", n_ctx=511)[1] == decodes, "another context"
    assert found(exact="on") == (rows, 0), "a shorter context must not change the key"
    assert found(n_sequences=4)[1] > 0, "several conversations need more measurements"
    assert found(n_sequences=4)[1] == 0
    assert found(type_k="f32")[1] > 17, "another cache type must be measured again"
    assert found(exact="off") == (rows, 0)
    assert found(planner_cache=False)[1] == decodes


def test_the_next_openings_measure_the_rest(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that programs without pauses also know all sizes of a slow model after a few openings."""

    def measured(n_max: int) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(
            "eaglecpp.engine.loading.measure", lambda native, _: measure(native, n_times(n_max))
        )
        with Engine.open(models.target, draft=models.draft, n_ctx=512, n_threads=1) as engine:
            state = engine.native.exact_state
            return state["decodes"], {name: state[name] for name in ("points", "alone", "is_complete")}

    openings = [measured(8)]
    while openings[-1][0] == 8:
        openings.append(measured(8))
    assert not openings[0][1]["is_complete"]
    monkeypatch.setenv("EAGLECPP_PLANNER_CACHE", "0")
    assert openings[-1][1] == measured(1000)[1]


def test_acceptance_is_kept_in_a_file_for_each_setting(run: Run, home: Path, models: Models) -> None:
    run(n=200, strategy="chain:3")
    (file,) = home.iterdir()
    learned = json.loads(file.read_bytes())["acceptance"]
    with Engine.open(models.target, draft=models.draft, n_ctx=512, n_threads=1) as engine:
        assert engine.native.planner_state()[1] == learned
    run(strategy="chain:3", n_threads=2)
    assert len(list(home.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    [b"", b"[1]", b"{}", b"\xff\x00", None, (b"[2,", b"[2147483647,"), (b"]],[", b"]],[%d," % 2**70)],
)
def test_a_damaged_file_is_ignored_reported_and_rewritten(
    run: Run, home: Path, damage: bytes | tuple[bytes, bytes] | None, caplog: pytest.LogCaptureFixture
) -> None:
    run(strategy="off")
    for path in home.iterdir():
        whole = path.read_bytes()
        other = whole.replace(*damage) if isinstance(damage, tuple) else damage
        path.write_bytes(whole[:-9] if other is None else other)
        assert path.read_bytes() != whole
    caplog.set_level("INFO", "eaglecpp.planner")
    assert len(run().tokens) == 64
    assert caplog.text.count("is old, damaged or from another version") == 1
    caplog.clear()
    run()
    assert "damaged" not in caplog.text


def test_an_old_file_is_not_trusted(run: Run, home: Path, n_tried: list[int]) -> None:
    run(strategy="off")
    for days, n in ((29, 1), (2, 2)):  # the first run writes the file again
        for path in home.iterdir():
            saved = json.loads(path.read_bytes())
            path.write_text(json.dumps(saved | {"measured_at": saved["measured_at"] - days * 86400}))
        run(strategy="off")
        assert len(n_tried) == n


def test_an_unwritable_folder_does_no_harm(run: Run, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    home.parent.mkdir()
    home.write_text("a file where the folder should be")
    caplog.set_level("INFO", "eaglecpp.planner")
    assert len(run().tokens) == 64
    assert "cannot save" in caplog.text


def test_it_is_saved_during_a_long_life(models: Models, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine.open(models.target, draft=models.draft, n_ctx=512, n_threads=1) as engine:
        engine.generate("ab", max_tokens=20, temperature=0.0)
        assert not home.exists()
        later = time.monotonic() + 61
        set_clock(monkeypatch, "eaglecpp.engine.planner_cache", monotonic=lambda: later)
        engine.generate("ab", max_tokens=20, temperature=0.0)
        assert len(list(home.iterdir())) == 1
