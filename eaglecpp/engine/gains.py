# SPDX-License-Identifier: MIT
"""What the last answers of a target and its drafter gave, in times of plain decoding; kept between processes.

Whoever says how much drafting gives reads it here, so that all say the same. `bench` and `doctor --measure`,
which compare with plain steps that ran beside the answers, replace what is here; every other answer of `auto`
adds the planner's own count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from eaglecpp.results import Timings

_N_MAX = 64  # answers; older ones tell of other texts
_N_ENOUGH = 32  # tokens; fewer say little about the drafter


@dataclass(frozen=True)
class Answered:
    """One answer. n_steps: plain steps that would have taken as long, as a fraction."""

    n_tokens: Annotated[int, Meta(gt=0)]
    n_rounds: Annotated[int, Meta(gt=0)]
    n_steps: Annotated[float, Meta(gt=0)]
    is_greedy: bool


@dataclass(frozen=True)
class Gain:
    """Of answers of one kind: speed in times of plain decoding, tokens per round."""

    n_answers: int
    speed: float
    tokens: float


class Gains:
    """The last answers, oldest first. kernels: plain decoding with eaglecpp's kernels in times of llama.cpp's
    own, where that was measured.
    """

    def __init__(self, answers: Iterable[Answered] = (), kernels: float | None = None) -> None:
        self.answers, self.kernels = list(answers), kernels

    def add(self, timings: Timings, temperature: float) -> None:
        """Takes the counters of an answer, if they tell what `auto` gave."""
        speed = timings.plan.get("speedup")
        if timings.plan.get("strategy") == "auto" and speed and timings.rounds:
            n_steps = max(timings.predicted_n / speed, timings.rounds)
            one = Answered(timings.predicted_n, timings.rounds, n_steps, temperature <= 0.0)
            self.answers = [*self.answers, one][-_N_MAX:]

    def replace(self, answers: Iterable[Answered], kernels: float | None = None) -> None:
        """What was measured beside plain decoding takes the place of what was counted before."""
        self.answers = list(answers)[-_N_MAX:]
        self.kernels = kernels or self.kernels

    def gain(self, *, greedy: bool | None = None) -> Gain | None:
        """Of the greedy or the sampled answers, or of all; None of too few tokens. No speed is above the
        tokens of a round: a round takes at least a plain step.
        """
        found = [one for one in self.answers if greedy in (None, one.is_greedy)]
        n_tokens = sum(one.n_tokens for one in found)
        if n_tokens < _N_ENOUGH:
            return None
        tokens = n_tokens / max(sum(one.n_rounds for one in found), 1)
        return Gain(len(found), min(n_tokens / sum(one.n_steps for one in found), tokens), tokens)
