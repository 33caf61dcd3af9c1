# SPDX-License-Identifier: MIT
"""Formats the statistics of an answer: the line after the answer, the lines of `--verbose`, and the speed-up
by drafting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eaglecpp.human import counted, human_bytes
from eaglecpp.results import PlanReason, Timings

if TYPE_CHECKING:
    from eaglecpp.engine.engine import Engine

# Minimum number of tokens for reporting a speed. The first token comes with the prompt, and the speed of one
# or two further tokens is noise.
_ENOUGH = 4
# minimum number of tokens for reporting a speed-up; the speed-up of fewer tokens is noise
_SAYS_SOMETHING = 16
_ENOUGH_TO_JUDGE = 32  # minimum number of tokens for judging the drafter


def stats_line(stats: Timings, *, has_draft: bool, speedup: float | None = None) -> str:
    """Formats the number of tokens, the tokens per second and, if known, the speed-up by drafting. A
    repetitive answer shows no speed-up, because drafting repetition is too easy.
    """
    parts = [counted(stats.predicted_n, "token")]
    if stats.predicted_n >= _ENOUGH:
        speed = stats.predicted_per_second
        parts.append(f"{speed:.0f} tokens/s" if speed >= 20 else f"{speed:.1f} tokens/s")
    if stats.loops:
        parts.append("the answer repeats itself")
    elif not stats.draft_n and not has_draft:
        parts.append("no drafter")
    elif not stats.draft_n:
        # An answer of one token has no drafts, even with a fixed strategy.
        strategy = stats.plan.get("strategy")
        if strategy in ("off", "auto"):
            parts.append("drafting off" if strategy == "off" else not_drafted(stats.plan))
    elif speedup is not None and stats.predicted_n >= _SAYS_SOMETHING:
        parts.append(f"{speedup:.1f}x faster with drafting" if speedup >= 1.05 else "no faster with drafting")
    return "[ " + " · ".join(parts) + " ]"


def not_drafted(plan: Mapping[str, Any]) -> str:
    """Returns the reason why the planner did not draft. plan: the value of `Timings.plan`."""
    return _NOT_DRAFTED.get(
        plan.get("reason", PlanReason.OFF), "not drafted: target-only decoding is faster here"
    )


_MEASURING = "not drafted yet: measuring target-only decoding first"
_NOT_DRAFTED: Mapping[str, str] = {
    PlanReason.OFF: _MEASURING,
    PlanReason.CALIBRATING: _MEASURING,
    PlanReason.ROOM: "not drafted: the context has no room left",
    PlanReason.NO_MATCH: "not drafted: no earlier text matches",
    PlanReason.OVER_BUDGET: "not drafted: drafting did not pay a moment ago; it is tried again soon",
    PlanReason.INEXACT: "not drafted: no batch of several tokens is known to be exact here",
}


def verbose_lines(stats: Timings, total_ms: float, load_ms: float, speedup: float | None = None) -> list[str]:
    """Returns Ollama's `--verbose` lines (ollama/ollama: api/types.go), followed by eaglecpp's own lines.
    Lines without a value are left out.
    """
    rows = [
        ("total duration", _duration(total_ms)),
        ("load duration", _duration(load_ms)),
        ("prompt eval count", f"{stats.prompt_n} token(s)" if stats.prompt_n else ""),
        ("prompt eval duration", _duration(stats.prompt_ms)),
        ("prompt eval rate", f"{stats.prompt_per_second:.2f} tokens/s" if stats.prompt_n else ""),
        ("eval count", f"{stats.predicted_n} token(s)" if stats.predicted_n else ""),
        ("eval duration", _duration(stats.predicted_ms)),
        ("eval rate", f"{stats.predicted_per_second:.2f} tokens/s" if stats.predicted_n >= _ENOUGH else ""),
        ("peak memory", human_bytes(stats.peak_memory) if stats.peak_memory else ""),
    ]
    strategy, why = stats.plan.get("strategy", ""), stats.plan.get("why", "")
    if stats.draft_n:
        rows += [
            ("strategy", f"{strategy} ({why})" if why else strategy),
            ("rounds", str(stats.rounds)),
            ("acceptance length", f"{stats.acceptance_length:.2f} tokens"),
            ("drafted", f"{stats.draft_n} token(s), {stats.draft_n_accepted} accepted"),
            ("accepted from text", f"{stats.text_draft_n_accepted or ''}"),
            ("accepted per depth", ", ".join(f"{rate:.2f}" for rate in stats.accepted_per_depth)),
            ("draft duration", _duration(stats.draft_ms)),
            ("verify duration", _duration(stats.verify_ms)),
            ("speed-up", "" if speedup is None else f"~{speedup:.2f}x target-only decoding"),
        ]
    return figures(rows)


def figures(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Formats names and values, one line each. Leaves out empty values."""
    return [f"{name + ':':<22}{value}" for name, value in rows if value]


def _duration(ms: float) -> str:
    """Formats a duration. Returns "" for zero."""
    return "" if ms <= 0 else f"{ms:.1f}ms" if ms < 1000 else f"{ms / 1000:.2f}s"


def verdict_line(stats: Timings, engine: Engine) -> str:
    """Returns the verdict on drafting and the kernels, or "" until an answer with the strategy `auto` was
    measured.
    """
    from eaglecpp.bench.verdict import verdict_of

    if stats.plan.get("strategy") != "auto" or stats.predicted_n < _ENOUGH_TO_JUDGE:
        return ""
    verdict = verdict_of(engine)
    return str(verdict) if verdict.greedy or verdict.sampled else ""
