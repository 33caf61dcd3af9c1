# SPDX-License-Identifier: MIT
"""Speed-ups of the last answers of a target and its drafter, relative to target-only decoding; saved between
processes.

All commands that report a speed-up use these numbers, so their reports agree. `bench` and `doctor --measure`
alternate target-only steps with drafting, and replace the saved answers by their measurement. Every other
answer with strategy `auto` adds the planner's own estimate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from eaglecpp.results import Timings

_N_MAX = 64  # maximum number of saved answers
_N_ENOUGH = 32  # minimum number of tokens in all saved answers; fewer tokens say little about the drafter


@dataclass(frozen=True)
class Answered:
    """Counters of one answer. n_steps: duration of the answer, in target-only steps."""

    n_tokens: Annotated[int, Meta(gt=0)]
    n_rounds: Annotated[int, Meta(gt=0)]
    n_steps: Annotated[float, Meta(gt=0)]
    is_greedy: bool


@dataclass(frozen=True)
class Gain:
    """Average over several answers. speed: speed relative to target-only decoding; tokens: tokens per
    round.
    """

    n_answers: int
    speed: float
    tokens: float


class Gains:
    """The last answers, oldest first. kernels: speed of target-only decoding with eaglecpp's kernels,
    relative to the speed with llama.cpp's kernels; None if not measured.
    """

    def __init__(self, answers: Iterable[Answered] = (), kernels: float | None = None) -> None:
        self.answers, self.kernels = list(answers), kernels

    def add(self, timings: Timings, temperature: float) -> None:
        """Adds the counters of an answer, if the answer ran with strategy `auto` and its speed-up is
        known.
        """
        speed = timings.plan.get("speedup")
        if timings.plan.get("strategy") == "auto" and speed and timings.rounds:
            n_steps = max(timings.predicted_n / speed, timings.rounds)
            answer = Answered(timings.predicted_n, timings.rounds, n_steps, temperature <= 0.0)
            self.answers = [*self.answers, answer][-_N_MAX:]

    def replace(self, answers: Iterable[Answered], kernels: float | None = None) -> None:
        """Replaces the saved answers by answers that were measured against target-only decoding."""
        self.answers = list(answers)[-_N_MAX:]
        self.kernels = kernels or self.kernels

    def gain(self, *, greedy: bool | None = None) -> Gain | None:
        """Returns the average of the saved answers. greedy: True = only greedy answers, False = only sampled
        answers, None = all answers. Returns None if these answers have too few tokens. The speed is at most
        the tokens per round, because a round takes at least one target-only step.
        """
        answers = [answer for answer in self.answers if greedy in (None, answer.is_greedy)]
        n_tokens = sum(answer.n_tokens for answer in answers)
        if n_tokens < _N_ENOUGH:
            return None
        tokens = n_tokens / max(sum(answer.n_rounds for answer in answers), 1)
        return Gain(len(answers), min(n_tokens / sum(answer.n_steps for answer in answers), tokens), tokens)
