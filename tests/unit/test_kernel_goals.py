# SPDX-License-Identifier: MIT
"""The figures of `benchmarks/kernels.py`: turns, llama-bench as a check, and which goals a target has."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
WIDE_ROWS = "T(4) over llama.cpp's T(1), memory-bound"
SMALL_ROWS = "T(4) over llama.cpp's T(1), small"


@pytest.fixture(scope="module")
def goals() -> Any:
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("kernel_goals")
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("kernel_goals", "compare_stats"):
            sys.modules.pop(name, None)


def rows(**bench: float) -> dict[str, Any]:
    """A machine that was half as fast in the third of five turns."""
    slow = [1.0, 1.0, 2.0, 1.0, 1.0]
    times = {"1": 10.0, "4": 30.0}
    found: dict[str, Any] = {
        "theirs": {n: [ms * s for s in slow] for n, ms in times.items()},
        "ours": {n: [ms * s / 5 for s in slow] for n, ms in times.items()},
    }
    return found | ({"bench": bench} if bench else {})


def judged(goals: Any, name: str, kind: str, has_avx512: bool = True, **parts: Any) -> dict[str, Any]:
    found = goals.verdicts([goals.Measured(name, kind, parts)], has_avx512)
    return {verdict.goal.name: verdict for verdict in found}


def run(system: str, ms: float, temperature: float = 0.0, prompt: int = 0) -> dict[str, Any]:
    return {
        "contestant": f"{system} plain",
        "set": "code",
        "temperature": temperature,
        "prompt": prompt,
        "n": 10,
        "ms": ms,
    }


def test_a_turn_is_compared_with_itself(goals: Any) -> None:
    assert goals.over_their_one(rows(), "4") == pytest.approx(0.6)
    assert goals.over_own(rows(), "4") == pytest.approx(0.2)


def test_llama_bench_is_a_check_and_changes_no_ratio(goals: Any) -> None:
    assert goals.bench_over_turns([10.0, 20.0, 10.0], 8.0) == pytest.approx(0.8)
    assert goals.over_their_one(rows(**{"1": 5.0}), "4") == pytest.approx(0.6)
    prompt = {"ours": [1.0, 1.0], "theirs": [3.0, 3.0], "bench": 2.0}
    found = judged(goals, "a", "F16", prompt={"512": prompt, "about": {"commit": "abc"}})
    assert found["prompt over llama.cpp's"].value == pytest.approx(3.0)


def test_rows_have_the_goals_of_their_shape_and_type(goals: Any) -> None:
    assert WIDE_ROWS in judged(goals, "wide-Q8_0", "Q8_0", rows=rows())
    small = judged(goals, "smollm2-Q8_0", "Q8_0", rows=rows())
    assert SMALL_ROWS in small and WIDE_ROWS not in small
    assert small[SMALL_ROWS].value == pytest.approx(0.6) and small[SMALL_ROWS].reached
    assert SMALL_ROWS not in judged(goals, "smollm2-F16", "F16", rows=rows())
    assert SMALL_ROWS not in judged(goals, "smollm2-Q8_0", "Q8_0", has_avx512=False, rows=rows())
    deep = judged(goals, "deep-Q8_0", "Q8_0", rows=rows())
    assert list(deep) == ["T(n) over llama.cpp's T(n)"]


def test_at_most_and_at_least(goals: Any) -> None:
    memory = {"ours": {"rss": 120, "pss": 10}, "theirs": {"rss": 100, "pss": 50}}
    found = judged(goals, "a", "F16", load={"ours": [5.0], "theirs": [4.0], "memory": memory})
    assert found["time to load over llama.cpp's"].reached
    assert not found["memory over llama.cpp's"].reached
    assert found["memory over llama.cpp's"].value == pytest.approx(1.2)
    behind = {"ours": {"1": [10.0], "4": [12.4]}}
    assert judged(goals, "wide-a", "F16", behind=behind)[
        "4 rows over 1 behind 1000 tokens, memory-bound"
    ].reached
    speed = {"bytes": 400e6, "ours": [10.0], "machine": [50.0]}
    share = judged(goals, "wide-a", "F16", bandwidth=speed)[
        "share of the read bandwidth, one row, memory-bound"
    ]
    assert share.value == pytest.approx(0.8) and not share.reached


def test_means_over_all_targets_and_temperatures(goals: Any) -> None:
    def target(name: str, greedy: float, sampled: float) -> Any:
        runs = [
            run("eaglecpp", 10.0),
            run("llama.cpp", 10.0 * greedy),
            run("eaglecpp", 10.0, 0.8),
            run("llama.cpp", 10.0 * sampled, 0.8),
        ]
        return goals.Measured(name, "Q8_0", {"plain": {"runs": runs}})

    found = goals.verdicts([target("a", 4.0, 1.0), target("b", 2.0, 2.0)], True)
    singles = [one.value for one in found if one.goal.name == "plain decoding over llama.cpp's"]
    assert sorted(singles) == pytest.approx([1.0, 2.0, 2.0, 4.0])
    mean = next(one for one in found if one.goal.name == "plain decoding, geometric mean")
    assert mean.value == pytest.approx(2.0) and mean.reached and mean.goal.wanted == 1.7
    assert goals.goals_of(False)["plain decoding, geometric mean"].wanted == 1.3


def test_greedy_decoding_is_held_against_llama_bench_prompt_by_prompt(goals: Any) -> None:
    runs = [run("eaglecpp", ms, prompt=i) for i, ms in enumerate((10.0, 20.0, 10.0))]
    runs += [run("eaglecpp", 99.0, 0.8, i) for i in range(3)]
    plain = {"runs": runs, "bench": [1.5, 3.0, 9.0]}  # per token, of ten
    found = judged(goals, "a", "Q8_0", plain=plain)
    assert found["plain decoding over llama-bench's"].value == pytest.approx(1.5)
    assert "plain decoding over llama-bench's" not in judged(goals, "a", "Q8_0", plain={"runs": runs})


def test_the_planner_is_held_against_plain_and_the_best_setting(goals: Any) -> None:
    contestants = [
        {"system": "eaglecpp", "kind": "planner", "draft": "eagle3"},
        {"system": "llama.cpp", "kind": "plain"},
        {"system": "llama.cpp", "kind": "draft-eagle3", "draft": "eagle3", "setting": "2"},
        {"system": "llama.cpp", "kind": "draft-eagle3", "draft": "eagle3", "setting": "5"},
    ]
    speeds = {
        "eaglecpp planner eagle3": 1.0,
        "llama.cpp plain": 6.0,
        "llama.cpp draft-eagle3 2 eagle3": 3.0,
        "llama.cpp draft-eagle3 5 eagle3": 4.0,
    }
    runs = [run("", ms) | {"contestant": name} for name, ms in speeds.items()]
    found = judged(goals, "wide-Q8_0", "Q8_0", auto={"runs": runs, "contestants": contestants})
    over_plain = found["auto over llama.cpp's plain, memory-bound, code greedy"]
    assert over_plain.value == pytest.approx(6.0) and over_plain.reached
    assert found["auto over llama.cpp's best draft-eagle3"].value == pytest.approx(3.0)
