# SPDX-License-Identifier: MIT
"""The numbers of `compare.py`: ratios of paired runs, the best setting in hindsight, the goals.

Pure functions from `Run`s to numbers. A *cell* is one prompt set at one temperature. Runs of a cell are
paired by prompt: a ratio is the median over prompts of the ratio of two speeds on the same prompt.
Contestants of a sweep that were far behind on a cell's first prompt are not run on its later ones
(`still_in`) and cannot be the best in hindsight. Goals that need a known shape of target ask for a name that
begins with "wide".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

Cell = tuple[str, float]  # prompt set, temperature

GOALS = {
    "1 planner over plain, wide code greedy": 2.4,
    "1 share of the limit, wide code greedy": 0.95,
    "2 planner over llama.cpp's best setting": 1.0,
    "2 the same, wide code": 1.05,
    "2 planner over llama.cpp's default, all sets": 1.15,
    "3 planner over plain": 0.97,
    "4 planner over best fixed strategy": 0.98,
}
DEFAULT_N_MAX = 3  # of llama.cpp's ways of drafting with a drafter


@dataclass(frozen=True)
class Contestant:
    """`kind`: "plain", "planner", "fixed", "draft-eagle3", "draft-simple" or "ngram-mod"; `setting`: the
    strategy or n_max.
    """

    system: str  # "eaglecpp" or "llama.cpp"
    kind: str
    draft: str = ""
    setting: str = ""

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.system, self.kind, self.setting, self.draft) if part)

    @property
    def sweep(self) -> str | None:
        """The group of settings of which one is best in hindsight; None for those that always run."""
        if self.kind == "fixed":
            return f"{self.kind} {self.draft}"
        is_default = self.kind.startswith("draft-") and self.setting == str(DEFAULT_N_MAX)
        return "llama.cpp" if self.is_their_drafting and not is_default else None

    @property
    def is_their_drafting(self) -> bool:
        """Whether llama.cpp drafts here."""
        return self.kind == "ngram-mod" or self.kind.startswith("draft-")


OUR_PLAIN, LLAMA_PLAIN = Contestant("eaglecpp", "plain"), Contestant("llama.cpp", "plain")


@dataclass(frozen=True)
class Run:
    """One generation. `n`, `ms`: tokens and their time as the program itself counts them; `verify_ms`: the
    target's part of it, 0 where unknown; `same`: the tokens are those of our plain decoding.
    """

    contestant: str
    set: str
    temperature: float
    prompt: int
    n: int
    ms: float
    verify_ms: float = 0.0
    prompt_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0
    same: bool = True
    load: float = 0.0

    @property
    def cell(self) -> Cell:
        return self.set, self.temperature

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return 1000.0 * self.n / self.ms


class Results:
    """All runs on one target."""

    def __init__(self, contestants: Sequence[Contestant], runs: Iterable[Run]) -> None:
        self.contestants = list(contestants)
        self._runs: dict[tuple[Cell, str], dict[int, Run]] = {}
        for run in runs:
            self._runs.setdefault((run.cell, run.contestant), {})[run.prompt] = run

    def cells(self) -> list[Cell]:
        """In the order they were first run."""
        return list(dict.fromkeys(cell for cell, _ in self._runs))

    def runs(self, cell: Cell, one: Contestant) -> list[Run]:
        """By prompt."""
        return list(self._runs.get((cell, one.name), {}).values())

    def speed(self, cell: Cell, one: Contestant) -> float | None:
        """Median tokens per second."""
        speeds = [run.speed for run in self.runs(cell, one)]
        return statistics.median(speeds) if speeds else None

    def ratios(self, cell: Cell, one: Contestant, other: Contestant) -> list[float]:
        """Speed of `one` over that of `other` on every prompt both ran."""
        a, b = self._runs.get((cell, one.name), {}), self._runs.get((cell, other.name), {})
        return [a[prompt].speed / b[prompt].speed for prompt in a if prompt in b]

    def ratio(self, cell: Cell, one: Contestant, other: Contestant) -> float | None:
        """Their median; None when there is no pair."""
        ratios = self.ratios(cell, one, other)
        return statistics.median(ratios) if ratios else None

    def finalists(self, cell: Cell) -> list[Contestant]:
        """Contestants that ran on every prompt of the cell."""
        n_runs = {one: len(self.runs(cell, one)) for one in self.contestants}
        return [one for one in self.contestants if n_runs[one] == max(n_runs.values()) > 0]

    def against_best(
        self, cell: Cell, one: Contestant, rivals: Iterable[Contestant]
    ) -> tuple[float, Contestant] | None:
        """The smallest ratio to a rival that ran on every prompt, and that rival: the best in hindsight."""
        finalists = self.finalists(cell)
        found = [(self.ratio(cell, one, rival), rival) for rival in rivals if rival in finalists]
        pairs = [(ratio, rival) for ratio, rival in found if ratio is not None]
        return min(pairs, key=lambda pair: pair[0]) if pairs else None

    def share_of_limit(self, cell: Cell, one: Contestant) -> float | None:
        """Median over prompts of target time over all time: 1 when drafting and host work are free."""
        shares = [run.verify_ms / run.ms for run in self.runs(cell, one) if run.verify_ms > 0]
        return statistics.median(shares) if shares else None


@dataclass(frozen=True)
class Verdict:
    """A figure that was to be reached, one per place it is asked for."""

    goal: str
    where: str
    value: float
    beside: str = ""  # what the value is a ratio to, where hindsight chose it

    @property
    def wanted(self) -> float:
        return GOALS[self.goal]

    @property
    def reached(self) -> bool:
        return self.value >= self.wanted


def geometric_mean(values: Iterable[float]) -> float:
    """Raises `ValueError` for no values."""
    logs = [math.log(value) for value in values]
    if not logs:
        raise ValueError("geometric mean of no values")
    return math.exp(statistics.fmean(logs))


def spread(results: Results, one: Contestant) -> float | None:
    """How far apart the speeds of `one` over all cells lie: 90th over 10th percentile, minus 1. For plain
    decoding every token costs about the same, so this is the machine's noise. None for fewer than two runs.
    """
    speeds = [run.speed for cell in results.cells() for run in results.runs(cell, one)]
    if len(speeds) < 2:
        return None
    deciles = statistics.quantiles(speeds, n=10, method="inclusive")
    return deciles[-1] / deciles[0] - 1.0


def still_in(results: Results, cell: Cell, prune: float) -> list[Contestant]:
    """Who runs on the cell's next prompt: all on the first one, then of each sweep only those that reached
    `prune` of its fastest there.
    """
    finalists = results.finalists(cell)
    if not finalists:
        return results.contestants
    first = {one: results.runs(cell, one)[0].speed for one in finalists}
    ranked = sorted((one for one in finalists if one.sweep), key=lambda one: str(one.sweep))
    dropped: set[Contestant] = set()
    for _, members in groupby(ranked, key=lambda one: one.sweep):
        group = list(members)
        best = max(first[one] for one in group)
        dropped |= {one for one in group if first[one] < prune * best}
    return [one for one in finalists if one not in dropped]


def label(cell: Cell) -> str:
    """ "code greedy", "prose 0.8"."""
    return f"{cell[0]} greedy" if cell[1] == 0 else f"{cell[0]} {cell[1]:g}"


def verdicts(targets: Mapping[str, Results]) -> list[Verdict]:
    """Every goal at every place it applies to and was measured at."""
    found: list[Verdict] = []
    over_default: dict[str, list[float]] = {}
    for name, results in targets.items():
        for planner in (one for one in results.contestants if one.kind == "planner"):
            for cell in results.cells():
                where = f"{name}, {label(cell)}, {planner.draft}"
                is_wide_code = name.startswith("wide") and cell[0] == "code"
                found += _own_goals(results, cell, planner, where, is_wide_code and cell[1] == 0)
                found += _fixed_goal(results, cell, planner, where)
                found += _llama_goals(results, cell, planner, where, is_wide_code)
                default = _default_of(results, planner)
                ratio = None if default is None else results.ratio(cell, planner, default)
                if ratio is not None:
                    over_default.setdefault(planner.draft, []).append(ratio)
    for draft, ratios in over_default.items():
        goal = "2 planner over llama.cpp's default, all sets"
        found.append(Verdict(goal, f"{len(ratios)} cells, {draft}", geometric_mean(ratios)))
    order = list(GOALS)
    return sorted(found, key=lambda verdict: order.index(verdict.goal))


def _own_goals(
    results: Results, cell: Cell, planner: Contestant, where: str, is_wide_code_greedy: bool
) -> list[Verdict]:
    found = []
    over_plain = results.ratio(cell, planner, OUR_PLAIN)
    if over_plain is not None:
        found.append(Verdict("3 planner over plain", where, over_plain))
    if is_wide_code_greedy:
        share = results.share_of_limit(cell, planner)
        if over_plain is not None:
            found.append(Verdict("1 planner over plain, wide code greedy", where, over_plain))
        if share is not None:
            found.append(Verdict("1 share of the limit, wide code greedy", where, share))
    return found


def _fixed_goal(results: Results, cell: Cell, planner: Contestant, where: str) -> list[Verdict]:
    """Not drafting at all is a fixed strategy, too."""
    rivals = [one for one in results.contestants if one.kind == "fixed" and one.draft == planner.draft]
    best = results.against_best(cell, planner, [OUR_PLAIN, *rivals]) if rivals else None
    if best is None:
        return []
    return [Verdict("4 planner over best fixed strategy", where, best[0], best[1].setting or "off")]


def _llama_goals(
    results: Results, cell: Cell, planner: Contestant, where: str, is_wide_code: bool
) -> list[Verdict]:
    """With the drafter llama.cpp has, too."""
    rivals = [one for one in results.contestants if one.is_their_drafting]
    has_drafter = any(one.draft == planner.draft for one in rivals)
    best = results.against_best(cell, planner, rivals) if has_drafter else None
    if best is None:
        return []
    beside = f"{best[1].kind} {best[1].setting}".strip()
    goals = ["2 planner over llama.cpp's best setting", *(["2 the same, wide code"] if is_wide_code else [])]
    return [Verdict(goal, where, best[0], beside) for goal in goals]


def _default_of(results: Results, planner: Contestant) -> Contestant | None:
    default = Contestant("llama.cpp", "draft-eagle3", planner.draft, str(DEFAULT_N_MAX))
    return default if default in results.contestants else None
