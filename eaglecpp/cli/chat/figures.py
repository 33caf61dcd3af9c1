# SPDX-License-Identifier: MIT
"""The figures after an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaglecpp.cli.terminal import stats_line, verbose_lines

if TYPE_CHECKING:
    from eaglecpp.cli.chat.model import RunModel
    from eaglecpp.results import Timings

__all__ = ["answer_lines", "verdict_line"]

_ENOUGH_TO_JUDGE = 32  # shorter answers say little about the drafter


def answer_lines(
    stats: Timings, model: RunModel, total_ms: float, load_ms: float, *, verbose: bool
) -> list[str]:
    """The lines after an answer. total_ms: wall time, loading included; load_ms: of it, 0 if the model was
    already loaded.
    """
    lines = []
    speedup = stats.plan.get("speedup") if stats.draft_n else None
    if verbose:
        lines = ["", *verbose_lines(stats, total_ms, load_ms, speedup)]
        if model.is_open:
            lines.append(f"{'template:':<22}{model.chat.template.describe()}")
    has_draft = model.plan.can_draft if model.is_open else "rounds" in stats.plan
    return [*lines, stats_line(stats, has_draft=has_draft, speedup=speedup)]


def verdict_line(stats: Timings, model: RunModel) -> str:
    """What drafting and the kernels give here, in plain words; empty while no answer of `auto` has told."""
    from eaglecpp.bench import verdict_of

    if stats.plan.get("strategy") != "auto" or stats.predicted_n < _ENOUGH_TO_JUDGE:
        return ""
    found = verdict_of(model.engine)
    return str(found) if found.is_measured and (found.greedy or found.sampled) else ""
