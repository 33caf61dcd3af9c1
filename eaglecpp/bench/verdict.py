# SPDX-License-Identifier: MIT
"""What drafting and the kernels give for one model on this machine, in one or two plain sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from eaglecpp._extension import core
from eaglecpp.bench.llama_plain import llama_plain_ms
from eaglecpp.bench.strategies import measure, plan_report, point_at
from eaglecpp.engine.predicted_costs import predicted_gain

if TYPE_CHECKING:
    from eaglecpp.engine import Engine

__all__ = ["Verdict", "known_verdict", "measure_verdict", "verdict_of"]

PAYS = 1.05  # times plain decoding; what is less is no gain that a sentence with one decimal could name
_STRATEGIES = ("off", "chain:3", "chain:5", "auto")
_ROWS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class Verdict:
    """`n_rows` of the target, a draft and the token before it, cost `row_cost` times one; the drafter gets
    `tokens` of a round and pays while they cost less than `most`. `speed`: of such rounds, in times of plain
    decoding. `is_measured`: so many rows have run here; else their cost follows from other sizes, or from
    processor and file. `is_drafter_known`: it has drafted here; else `tokens` is what drafters usually get.
    `has_drafted`: `speed` is that of an answer, for most of which it drafted. `kernels`: plain decoding with
    eaglecpp's kernels in times of that with llama.cpp's own; None = llama.cpp's own run, or nothing is known.
    Without a drafter only `kernels` means something; `n_rows` is 0.
    """

    n_rows: int = 0
    row_cost: float = 0.0
    most: float = 0.0
    tokens: float = 0.0
    speed: float = 0.0
    is_measured: bool = False
    is_drafter_known: bool = True
    has_drafted: bool = False
    kernels: float | None = None
    are_kernels_measured: bool = True

    @property
    def pays(self) -> bool:
        return self.speed >= PAYS

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"pays": self.pays}

    def __str__(self) -> str:
        return " ".join(filter(None, (self._on_drafting(), self._on_kernels())))

    def _on_drafting(self) -> str:
        if not self.n_rows:
            return ""
        rows = _ROWS[self.n_rows] if self.n_rows < len(_ROWS) else str(self.n_rows)
        longer = f"{self.row_cost:.1f} times as long as" if self.row_cost >= 1.05 else "no longer than"
        cost = f"checking {rows} tokens at once takes {longer} one on this machine"
        cost += " (measured)" if self.is_measured else " (predicted)"
        gives = f"this drafter makes {self.tokens:.1f} tokens of that"
        speed = f"about {self.speed:.1f} times the speed of plain decoding"
        if self.pays and not self.is_drafter_known:
            return (
                f"Drafting should pay here: {cost}, and a drafter that makes {self.tokens:.1f} tokens of "
                f"that, which is usual, gives {speed}."
            )
        if self.pays:
            return f"Drafting pays here: {cost}, and {gives}, {speed}."
        if self.has_drafted:
            return f"Drafting makes little difference here: {cost}, and {gives}."
        if self.speed >= 1.0:
            usual = f"a usual drafter makes {self.tokens:.1f} tokens of that"
            return (
                f"Drafting should make little difference here: {cost}, and "
                f"{gives if self.is_drafter_known else usual}."
            )
        does = "does" if self.is_measured and self.is_drafter_known else "should"
        drafter = "this drafter" if self.is_drafter_known else "a usual drafter"
        if self.most >= 1:
            need = f"with {drafter}, it pays below {self.most:.1f} times"
        else:
            need = f"it would pay if more tokens of {drafter} were accepted"
        return f"Drafting {does} not pay here, so auto leaves it off: {cost}; {need}."

    def _on_kernels(self) -> str:
        if self.kernels is None:
            return ""
        make = "make" if self.are_kernels_measured else "should make"
        return (
            f"eaglecpp's kernels {make} plain decoding {self.kernels:.1f} times as fast as llama.cpp's own"
            + ("." if self.are_kernels_measured else " (predicted).")
        )


def verdict_of(report: Mapping[str, Any] | None, kernels: float | None = None) -> Verdict:
    """From `plan_report`: the chain with the best speed decides. None: no drafter, or nothing measured."""
    if report is None:
        return Verdict(kernels=kernels)
    plain: float = report["plain_ms"]
    best = max(report["chains"], key=lambda chain: float(chain["speed"]))
    n_rows = best["nodes"] + 1
    _, verify, n_samples = point_at(report["verify"], n_rows)
    rest = best["ms"] - verify  # drafting, and the host
    return Verdict(
        n_rows=n_rows,
        row_cost=verify / plain,
        most=(best["tokens"] * plain - rest) / plain,
        tokens=best["tokens"],
        speed=best["speed"],
        is_measured=n_samples > 0,
        kernels=kernels,
    )


def known_verdict(engine: Engine, speed: float | None = None) -> Verdict:
    """From what is known already, predicted where nothing was measured. speed: of an answer for most of which
    it drafted, in times of plain decoding.
    """
    is_drafter_known = engine.timings.predicted_n > 0
    if not is_drafter_known:
        engine.clear()  # opens the conversation that is reported on
    found = verdict_of(plan_report(engine), predicted_gain(engine.native))
    found = replace(found, is_drafter_known=is_drafter_known, are_kernels_measured=False)
    return found if speed is None else replace(found, speed=speed, has_drafted=True)


def measure_verdict(engine: Engine, seconds: float = 6.0) -> Verdict:
    """Decodes for about so many seconds, plain and with drafts, and where our kernels run, before and after
    that with llama.cpp's own, a sixth of the time each.
    """
    info = engine.device_info
    amx = core.system_info()["amx"]

    def of_llama() -> float | None:
        if not info["kernels"]:
            return None
        repack = not amx["claimed"] or amx["works"]
        return llama_plain_ms(engine.target_path, info["n_threads"], repack=repack, seconds=seconds / 6)

    before = of_llama()
    (plain, *_) = measure(engine, _STRATEGIES if engine.has_draft else _STRATEGIES[:1], seconds=seconds)
    after = of_llama()
    kernels = None if before is None or after is None else (before + after) / 2 / plain.ms
    return verdict_of(plan_report(engine), kernels)
