# SPDX-License-Identifier: MIT
"""The figures of `benchmarks/compare.py`: pairing, hindsight, pruning and goals, on runs made by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "compare_stats.py"


@pytest.fixture(scope="module")
def stats() -> Any:
    spec = importlib.util.spec_from_file_location("compare_stats", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["compare_stats"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["compare_stats"]


def lineup(stats: Any) -> dict[str, Any]:
    of = stats.Contestant
    return {
        "off": stats.OUR_PLAIN,
        "auto": of("eaglecpp", "planner", "eagle3"),
        "chain:1": of("eaglecpp", "fixed", "eagle3", "chain:1"),
        "chain:6": of("eaglecpp", "fixed", "eagle3", "chain:6"),
        "llama": stats.LLAMA_PLAIN,
        "n2": of("llama.cpp", "draft-eagle3", "eagle3", "2"),
        "n3": of("llama.cpp", "draft-eagle3", "eagle3", "3"),
        "n8": of("llama.cpp", "draft-eagle3", "eagle3", "8"),
        "ngram": of("llama.cpp", "ngram-mod"),
    }


def results(
    stats: Any, speeds: dict[str, list[float | None]], cell: tuple[str, float] = ("code", 0.0)
) -> Any:
    """`speeds`: tokens per second by prompt; None = did not run there. 90 % of the time is the target's."""
    who = lineup(stats)
    runs = [
        stats.Run(who[key].name, *cell, prompt, n=100, ms=100_000 / speed, verify_ms=90_000 / speed)
        for key, of_prompts in speeds.items()
        for prompt, speed in enumerate(of_prompts)
        if speed is not None
    ]
    return stats.Results([who[key] for key in speeds], runs)


def by_goal(stats: Any, name: str, found: Any) -> dict[str, Any]:
    return {verdict.goal: verdict for verdict in stats.verdicts({name: found})}


def test_a_ratio_is_the_median_over_prompts_of_pairs_on_one_prompt(stats: Any) -> None:
    who = lineup(stats)
    found = results(stats, {"off": [10, 20, 40], "auto": [20, 50, 60]})
    assert found.ratios(("code", 0.0), who["auto"], who["off"]) == pytest.approx([2.0, 2.5, 1.5])
    assert found.ratio(("code", 0.0), who["auto"], who["off"]) == pytest.approx(2.0)


def test_prompts_only_one_of_them_ran_are_no_pairs(stats: Any) -> None:
    who = lineup(stats)
    found = results(stats, {"off": [10, 10, 10], "chain:1": [30, None, None]})
    assert found.ratios(("code", 0.0), who["chain:1"], who["off"]) == pytest.approx([3.0])
    assert found.ratio(("prose", 0.0), who["chain:1"], who["off"]) is None


def test_speed_counts_tokens_by_the_programs_own_clock(stats: Any) -> None:
    assert stats.Run("x", "code", 0.0, 0, n=64, ms=2000.0).speed == pytest.approx(32.0)


def test_geometric_mean(stats: Any) -> None:
    assert stats.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="no values"):
        stats.geometric_mean([])


def test_a_sweep_loses_who_was_far_behind_on_the_first_prompt(stats: Any) -> None:
    who = lineup(stats)
    first = {"off": [10], "auto": [5], "chain:1": [20], "chain:6": [14], "llama": [10]}
    found = results(stats, first | {"n2": [40], "n3": [9], "n8": [29], "ngram": [31]})
    cell = ("code", 0.0)
    kept = stats.still_in(found, cell, 0.75)
    # the planner, plain decoding and llama.cpp's default always run; each sweep is judged by itself
    assert kept == [who[key] for key in ("off", "auto", "chain:1", "llama", "n2", "n3", "ngram")]
    assert stats.still_in(found, cell, 0.0) == found.contestants
    assert stats.still_in(found, ("prose", 0.0), 0.75) == found.contestants


def test_who_was_dropped_stays_out_and_is_never_the_best_in_hindsight(stats: Any) -> None:
    who = lineup(stats)
    found = results(stats, {"off": [10, 10], "auto": [20, 20], "chain:1": [19, 19], "chain:6": [50, None]})
    cell = ("code", 0.0)
    assert who["chain:6"] not in stats.still_in(found, cell, 0.75)
    ratio, best = found.against_best(cell, who["auto"], found.contestants)
    assert (ratio, best) == (pytest.approx(1.0), who["auto"])
    ratio, best = found.against_best(cell, who["auto"], [who["off"], who["chain:1"], who["chain:6"]])
    assert (ratio, best) == (pytest.approx(20 / 19), who["chain:1"])


def test_goals_on_wide_code(stats: Any) -> None:
    speeds = {"off": 10, "auto": 25, "chain:1": 24, "llama": 10, "n2": 22, "n3": 21, "ngram": 10}
    found = by_goal(
        stats, "wide-Q8_0", results(stats, {key: [speed, speed] for key, speed in speeds.items()})
    )
    values = {goal: verdict.value for goal, verdict in found.items()}
    assert values == pytest.approx(
        {
            "1 planner over plain, wide code greedy": 2.5,
            "1 share of the limit, wide code greedy": 0.9,
            "2 planner over llama.cpp's best setting": 25 / 22,
            "2 the same, wide code": 25 / 22,
            "2 planner over llama.cpp's default, all sets": 25 / 21,
            "3 planner over plain": 2.5,
            "4 planner over best fixed strategy": 25 / 24,
        }
    )
    assert list(found) == list(stats.GOALS)
    missed = {goal for goal, verdict in found.items() if not verdict.reached}
    assert missed == {"1 share of the limit, wide code greedy"}
    assert found["2 the same, wide code"].beside == "draft-eagle3 2"


def test_goals_of_wide_code_are_asked_nowhere_else(stats: Any) -> None:
    speeds: dict[str, list[float | None]] = {"off": [10], "auto": [9], "chain:1": [8], "n3": [9]}
    elsewhere = {"2 planner over llama.cpp's best setting", "2 planner over llama.cpp's default, all sets"}
    elsewhere |= {"3 planner over plain", "4 planner over best fixed strategy"}
    assert set(by_goal(stats, "deep-Q8_0", results(stats, speeds))) == elsewhere
    assert set(by_goal(stats, "wide-Q8_0", results(stats, speeds, ("prose", 0.0)))) == elsewhere
    sampled = set(by_goal(stats, "wide-Q8_0", results(stats, speeds, ("code", 0.8))))
    assert sampled == elsewhere | {"2 the same, wide code"}


def test_not_drafting_is_one_of_the_fixed_strategies(stats: Any) -> None:
    found = by_goal(stats, "deep", results(stats, {"off": [10], "auto": [9], "chain:1": [8]}))
    verdict = found["4 planner over best fixed strategy"]
    assert (verdict.value, verdict.beside, verdict.reached) == (pytest.approx(0.9), "off", False)


def test_a_drafter_llama_cpp_cannot_read_is_not_compared_with_it(stats: Any) -> None:
    who = lineup(stats)
    other = stats.Contestant("eaglecpp", "planner", "eagle31")
    runs = [stats.Run(one.name, "code", 0.0, 0, n=10, ms=100) for one in (who["off"], other, who["n3"])]
    found = stats.verdicts({"wide": stats.Results([who["off"], other, who["n3"]], runs)})
    assert not [verdict for verdict in found if verdict.goal.startswith("2")]


def test_the_mean_over_the_default_takes_all_targets_and_cells(stats: Any) -> None:
    one = results(stats, {"off": [10], "auto": [40], "n3": [10]})
    other = results(stats, {"off": [10], "auto": [10], "n3": [10]}, ("prose", 0.8))
    found = stats.verdicts({"wide": one, "deep": other})
    verdict = next(v for v in found if v.goal == "2 planner over llama.cpp's default, all sets")
    assert verdict.value == pytest.approx(2.0)
    assert verdict.where == "2 cells, eagle3"


def test_spread_is_that_of_one_contestant(stats: Any) -> None:
    who = lineup(stats)
    found = results(stats, {"off": [10] * 9 + [100], "auto": [10] * 10, "llama": [10, *[None] * 9]})
    assert stats.spread(found, who["auto"]) == pytest.approx(0.0)
    assert stats.spread(found, who["off"]) > 0.5
    assert stats.spread(found, who["llama"]) is None
