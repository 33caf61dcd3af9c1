# SPDX-License-Identifier: MIT
"""The numbers of `kernels.py`: ratios to llama.cpp in one run, and the goals.

Pure functions from measurements to verdicts. `Measured` holds one target's times as the script keeps them:
times in milliseconds, one per turn, of `ours` and of `theirs`; a ratio is the median over turns of the ratio
within a turn. `llama-bench` runs at another moment and only checks that the process which takes turns is as
fast as llama.cpp's own programs; for plain decoding it runs after each prompt and has a goal. Goals for a
memory-bound target ask for a name that begins with "wide"; "deep" has goals for its rows only beside
llama.cpp's own; any other name is a small real model.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from compare_stats import LLAMA_PLAIN, OUR_PLAIN, Results, Run, geometric_mean, label

Turns = Mapping[str, list[float]]  # by number of rows

ROWS = (1, 4, 8, 16)
TYPES = ("Q8_0", "Q4_0", "Q4_K_M")  # whose rows have goals of their own
WIDE_ROWS, SMALL_ROWS = (0.5, 0.6, 0.75, 1.2), (0.5, 0.75, 1.0, 1.5)


@dataclass(frozen=True)
class Goal:
    """What one figure has to be: at most `wanted`, or at least."""

    name: str
    wanted: float
    at_most: bool = False

    def is_reached(self, value: float) -> bool:
        return value <= self.wanted if self.at_most else value >= self.wanted

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.wanted:g}"


def goals_of(has_avx512: bool) -> dict[str, Goal]:
    found = []
    if has_avx512:
        for what, wanted in (("memory-bound", WIDE_ROWS), ("small", SMALL_ROWS)):
            found += [
                Goal(f"T({n}) over llama.cpp's T(1), {what}", most, at_most=True)
                for n, most in zip(ROWS, wanted, strict=True)
            ]
    found += [
        Goal("T(n) over llama.cpp's T(n)", 1.0, at_most=True),
        Goal("T(n) over ik_llama.cpp's T(n), 4 and 5 bits", 0.9, at_most=True),
        Goal("T(n) over ik_llama.cpp's T(n), Q8_0", 1.0, at_most=True),
        Goal("plain decoding over llama.cpp's", 1.0),
        Goal("plain decoding, geometric mean", 1.7 if has_avx512 else 1.3),
        Goal("plain decoding over llama-bench's", 1.0),
        Goal("prompt over llama.cpp's", 1.0),
        Goal("prompt, geometric mean", 2.0),
        Goal("time to load over llama.cpp's", 1.3, at_most=True),
        Goal("memory over llama.cpp's", 1.1, at_most=True),
        Goal("share of the read bandwidth, one row, memory-bound", 0.85),
        Goal("4 rows over 1 behind 1000 tokens, memory-bound", 1.25, at_most=True),
    ]
    return {goal.name: goal for goal in found}


@dataclass(frozen=True)
class Measured:
    """One target. `parts`: what was measured of it, by name; see `kernels.py`."""

    name: str
    type: str
    parts: Mapping[str, Any]

    @property
    def is_wide(self) -> bool:
        return self.name.startswith("wide")

    @property
    def is_deep(self) -> bool:
        return self.name.startswith("deep")


@dataclass(frozen=True)
class Verdict:
    """A goal at one place."""

    goal: Goal
    where: str
    value: float

    @property
    def reached(self) -> bool:
        return self.goal.is_reached(self.value)


def paired(over: list[float], under: list[float]) -> float:
    """Median over turns of the quotient within each."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def over_their_one(rows: Mapping[str, Any], n: str) -> float:
    """Our n rows over llama.cpp's single row."""
    return paired(rows["ours"][n], rows["theirs"]["1"])


def over_own(rows: Mapping[str, Any], n: str, whose: str = "theirs") -> float:
    """Our n rows over the n rows of llama.cpp, or ("ik") of ik_llama.cpp."""
    return paired(rows["ours"][n], rows[whose][n])


def prompt_ratio(prompt: Mapping[str, Any]) -> float:
    """Our speed over llama.cpp's."""
    return paired(prompt["theirs"], prompt["ours"])


def bench_over_turns(theirs: list[float], bench: float) -> float:
    """llama-bench's time over that of the turns; well below 1: the turns were unfair, or disturbed."""
    return bench / statistics.median(theirs)


def plain_results(part: Mapping[str, Any]) -> Results:
    return Results([OUR_PLAIN, LLAMA_PLAIN], [Run(**run) for run in part["runs"]])


def verdicts(targets: list[Measured], has_avx512: bool) -> list[Verdict]:
    """Every goal at every place it was measured at, in the order of the goals."""
    goals = goals_of(has_avx512)
    found = []
    for one in targets:
        for name, where, value in (*_rows(one), *_plain(one), *_prompts(one), *_loaded(one), *_rest(one)):
            if name in goals:
                found.append(Verdict(goals[name], where, value))
    means = {
        "plain decoding over llama.cpp's": "plain decoding, geometric mean",
        "prompt over llama.cpp's": "prompt, geometric mean",
    }
    for name, mean in means.items():
        values = [verdict.value for verdict in found if verdict.goal.name == name]
        if values:
            found.append(Verdict(goals[mean], f"{len(values)} places", geometric_mean(values)))
    order = list(goals)
    return sorted(found, key=lambda verdict: order.index(verdict.goal.name))


Figure = tuple[str, str, float]  # goal, where, value


def _rows(one: Measured) -> Iterator[Figure]:
    rows = one.parts.get("rows")
    if rows is None:
        return
    size = "memory-bound" if one.is_wide else "small"
    for n in rows["ours"]:
        if not one.is_deep and one.type in TYPES:
            yield f"T({n}) over llama.cpp's T(1), {size}", one.name, over_their_one(rows, n)
        yield "T(n) over llama.cpp's T(n)", f"{one.name}, {n} rows", over_own(rows, n)
        if "ik" in rows:
            kind = "Q8_0" if one.type == "Q8_0" else "4 and 5 bits"
            yield f"T(n) over ik_llama.cpp's T(n), {kind}", f"{one.name}, {n} rows", over_own(rows, n, "ik")


def _plain(one: Measured) -> Iterator[Figure]:
    if "plain" not in one.parts:
        return
    results = plain_results(one.parts["plain"])
    for cell in results.cells():
        ratio = results.ratio(cell, OUR_PLAIN, LLAMA_PLAIN)
        if ratio is not None:
            yield "plain decoding over llama.cpp's", f"{one.name}, {label(cell)}", ratio
    bench = one.parts["plain"].get("bench")
    if bench:
        # llama-bench samples nothing, so beside greedy decoding; a time for each prompt, in their order
        own = [run.ms / run.n for run in results.runs(("code", 0.0), OUR_PLAIN)]
        yield "plain decoding over llama-bench's", one.name, paired(bench, own)


def _prompts(one: Measured) -> Iterator[Figure]:
    for n, prompt in one.parts.get("prompt", {}).items():
        if n == "about":  # machine, commit, date
            continue
        yield "prompt over llama.cpp's", f"{one.name}, {n} tokens", prompt_ratio(prompt)


def _loaded(one: Measured) -> Iterator[Figure]:
    load = one.parts.get("load")
    if load is None:
        return
    yield "time to load over llama.cpp's", one.name, paired(load["ours"], load["theirs"])
    # not the proportional share: that of a mapped file falls when anybody else on the machine has it open
    memory = load["memory"]
    yield "memory over llama.cpp's", one.name, memory["ours"]["rss"] / memory["theirs"]["rss"]


def _rest(one: Measured) -> Iterator[Figure]:
    bandwidth, behind = (one.parts.get(name) for name in ("bandwidth", "behind"))
    if bandwidth is not None:
        speeds = [bandwidth["bytes"] / 1e6 / ms for ms in bandwidth["ours"]]  # GB/s
        share = paired(speeds, bandwidth["machine"])
        yield "share of the read bandwidth, one row, memory-bound", one.name, share
    if behind is not None:
        ratio = paired(behind["ours"]["4"], behind["ours"]["1"])
        yield "4 rows over 1 behind 1000 tokens, memory-bound", one.name, ratio
