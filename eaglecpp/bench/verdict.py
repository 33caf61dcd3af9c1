# SPDX-License-Identifier: MIT
"""What drafting and the kernels give for one model on this machine, in one or two plain sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from eaglecpp._extension import core
from eaglecpp.bench.llama_plain import llama_plain_ms
from eaglecpp.bench.strategies import measure, plan_report, point_at

if TYPE_CHECKING:
    from eaglecpp.engine import Engine

__all__ = ["Verdict", "measure_verdict", "verdict_of"]

PAYS = 1.02  # times plain decoding, below which the planner may as well not draft
_STRATEGIES = ("off", "chain:3", "chain:5", "auto")
_ROWS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class Verdict:
    """`n_rows` of the target, a draft and the token before it, cost `row_cost` times one; the drafter gets
    `tokens` of a round and pays while they cost less than `most`. `speed`: of such rounds, in times of plain
    decoding. `is_measured`: so many rows have run here; else their cost follows from other sizes or from what
    came with the drafter. `kernels`: plain decoding with eaglecpp's kernels in times of that with
    llama.cpp's own; None = not measured. Without a drafter only `kernels` means something; `n_rows` is 0.
    """

    n_rows: int = 0
    row_cost: float = 0.0
    most: float = 0.0
    tokens: float = 0.0
    speed: float = 0.0
    is_measured: bool = False
    kernels: float | None = None

    @property
    def pays(self) -> bool:
        return self.speed >= PAYS

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"pays": self.pays}

    def __str__(self) -> str:
        parts = []
        rows = _ROWS[self.n_rows] if self.n_rows < len(_ROWS) else str(self.n_rows)
        cost = f"{rows} rows cost {self.row_cost:.1f} times one on this machine"
        cost += " (measured)" if self.is_measured else " (predicted)"
        if self.n_rows and self.pays:
            parts.append(
                f"Drafting pays here: {cost}, and this drafter gets {self.tokens:.1f} tokens out of them, "
                f"about {self.speed:.1f} times as fast as plain decoding."
            )
        elif self.n_rows:
            need = f"{self.most:.1f} or less" if self.most >= 1 else "more accepted tokens"
            parts.append(
                f"Drafting does not pay here, so auto leaves it off: {cost}, and this drafter would need "
                f"{need}."
            )
        if self.kernels is not None:
            parts.append(
                f"eaglecpp's kernels make plain decoding {self.kernels:.1f} times as fast as llama.cpp's own."
            )
        return " ".join(parts)


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
