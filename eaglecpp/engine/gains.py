# SPDX-License-Identifier: MIT
"""What the last answers of a target and its drafter gave, in times of plain decoding; kept between processes.

Whoever says how much drafting gives reads it here, so that all say the same. `bench` and `doctor --measure`,
which compare with plain steps that ran beside the answers, replace what is here; every other answer of `auto`
adds the planner's own count. A small JSON file beside the planner's; one that is damaged, old or cannot be
written is ignored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from eaglecpp.files import replace_bytes
from eaglecpp.results import Timings

_log = logging.getLogger("eaglecpp.planner")
T = TypeVar("T")

_N_MAX = 64  # answers; older ones tell of other texts
_N_ENOUGH = 32  # tokens; fewer say little about the drafter


@dataclass(frozen=True)
class Answered:
    """One answer. n_steps: plain steps that would have taken as long, as a fraction."""

    n_tokens: int
    n_rounds: int
    n_steps: float
    is_greedy: bool


@dataclass(frozen=True)
class Gain:
    """Of answers of one kind: speed in times of plain decoding, tokens per round."""

    n_answers: int
    speed: float
    tokens: float


KEPT_DAYS = 30.0
"""For which measurements are believed: drivers and machines change behind their keys."""


def read_record(path: Path, kind: type[T]) -> T | None:
    """What was written there as JSON; None where there is none, it is older than `KEPT_DAYS`, damaged or from
    another version.
    """
    try:
        if time.time() - path.stat().st_mtime <= KEPT_DAYS * 86400:
            return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError:
        _log.info("%s is damaged or from another version; measuring again", path)
    except OSError:
        pass
    return None


class _File(msgspec.Struct):
    answers: list[Answered]
    kernels: float | None


class Gains:
    """The last answers, oldest first. kernels: plain decoding with eaglecpp's kernels in times of llama.cpp's
    own, where that was measured. path: of the file, None = not kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._answers: list[Answered] = []
        self.kernels: float | None = None
        found = None if path is None else read_record(path, _File)
        if found and all(min(one.n_tokens, one.n_rounds, one.n_steps) > 0 for one in found.answers):
            self._answers, self.kernels = found.answers, found.kernels

    def add(self, timings: Timings, temperature: float) -> None:
        """Takes the counters of an answer, if they tell what `auto` gave."""
        speed = timings.plan.get("speedup")
        if timings.plan.get("strategy") == "auto" and speed and timings.rounds:
            n_steps = max(timings.predicted_n / speed, timings.rounds)
            one = Answered(timings.predicted_n, timings.rounds, n_steps, temperature <= 0.0)
            self._answers = [*self._answers, one][-_N_MAX:]

    def replace(self, answers: Iterable[Answered], kernels: float | None = None) -> None:
        """What was measured beside plain decoding takes the place of what was counted before."""
        self._answers = list(answers)[-_N_MAX:]
        self.kernels = kernels or self.kernels

    def gain(self, *, greedy: bool | None = None) -> Gain | None:
        """Of the greedy or the sampled answers, or of all; None of too few tokens. No speed is above the
        tokens of a round: a round takes at least a plain step.
        """
        found = [one for one in self._answers if greedy in (None, one.is_greedy)]
        n_tokens = sum(one.n_tokens for one in found)
        if n_tokens < _N_ENOUGH:
            return None
        tokens = n_tokens / max(sum(one.n_rounds for one in found), 1)
        n_steps = sum(one.n_steps for one in found)
        return Gain(len(found), min(n_tokens / n_steps, tokens), tokens)

    def save(self) -> None:
        """Writes the file. Raises `OSError`."""
        if self._path is not None and self._answers:
            replace_bytes(self._path, msgspec.json.encode(_File(self._answers, self.kernels)))
