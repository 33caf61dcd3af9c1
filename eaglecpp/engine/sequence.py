# SPDX-License-Identifier: MIT
"""`NativeSequence`: one conversation's place in the native engine, and the generation that runs there.

The handle that `Session` and `Stream` share: neither has to know the engine or the other's fields. Each
`begin` gives a generation a number; a call with an older number belongs to a generation that was replaced.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from eaglecpp._extension import core
from eaglecpp.engine.native import NativeEngine, checks_arguments
from eaglecpp.errors import EngineBusyError, InvalidStateError

__all__ = ["NativeSequence", "step_together"]

_POLL_S = 0.005  # of a thread that waits; short waits, so that Ctrl+C is heard


class NativeSequence:
    """Opens a sequence of the engine. Raises `EngineBusyError` when a thread holds it."""

    def __init__(self, engine: NativeEngine) -> None:
        with engine.exclusive() as native:
            self.number = native.open_sequence()
        self._engine = engine
        self._generation = 0
        self._running_in: int | None = None
        self._beginning = threading.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it gave its place back, or the engine is closed."""
        return self._closed or self._engine.closed

    @property
    def tokens(self) -> list[int]:
        """Tokens committed here: prompt and generated."""
        with self._exclusive() as native:
            return native.tokens(self.number)

    def begin(
        self, prompt: list[int], params: core.GenerateParams, sampler: core.MadeSampler | None = None
    ) -> tuple[int, int]:
        """Starts a generation, which ends the one before; returns its number and how many prompt tokens were
        reused.
        """
        with self._turn(), self._exclusive() as native:
            with checks_arguments():
                reused = native.begin(self.number, prompt, params, sampler)
            self._generation += 1
            self._running_in = threading.get_ident()
            return self._generation, reused

    def step(self, generation: int, for_ms: float = 0.0) -> core.StepResult:
        """One slice of the prompt, or one round; with `for_ms` as many rounds as begin in that time."""
        with self._exclusive() as native:
            self._require_current(generation)
            return native.step([self.number], for_ms)[0]

    def end(self, generation: int, n_taken: int) -> dict[str, Any]:
        """Ends the generation, of which n_taken tokens were used; returns its counters. Not for a generation
        that was taken over.
        """
        self._require_current(generation)
        self._running_in = None  # even if the engine is busy now: the next `begin` ends it natively
        with self._exclusive() as native:
            native.end(self.number, n_taken)
            return native.timings(self.number)

    def verified(self, generation: int) -> dict[str, NDArray[Any]]:
        """What was recorded of its drafts, before another one begins; see `eaglecpp.rounds`."""
        with self._exclusive() as native:
            self._require_current(generation)
            return native.verified(self.number)

    def timings(self) -> dict[str, Any]:
        """The counters of the running generation so far."""
        with self._exclusive() as native:
            return native.timings(self.number)

    def clear(self) -> None:
        """Forgets the conversation; nothing is reused by the next prompt."""
        with self._exclusive() as native:
            native.clear(self.number)

    def park(self) -> core.ParkedSequence | None:
        """What the conversation holds between two generations; None where it cannot leave the caches."""
        with self._exclusive() as native:
            return native.park(self.number) if native.can_park else None

    def unpark(self, parked: core.ParkedSequence) -> bool:
        """Puts a parked conversation in place of what is held here; False where there is no room, then
        nothing is held here.
        """
        with self._exclusive() as native:
            return native.unpark(self.number, parked)

    def close(self) -> None:
        """Gives the place back to the engine. A second call does nothing."""
        if not self.closed:
            with self._exclusive() as native:
                native.close_sequence(self.number)
        self._closed = True

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[core.Engine]:
        if self._closed:
            raise InvalidStateError("this session is closed")
        with self._engine.exclusive() as native:
            yield native

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """With `waits`: holds until no other thread has a generation open here."""
        if not self._engine.waits:
            yield
            return
        while not self._beginning.acquire(timeout=_POLL_S):
            pass
        try:
            while self._running_in not in (None, threading.get_ident()) and any(
                thread.ident == self._running_in for thread in threading.enumerate()
            ):
                time.sleep(_POLL_S)
            yield
        finally:
            self._beginning.release()

    def _require_current(self, generation: int) -> None:
        if generation != self._generation:
            raise EngineBusyError(
                "a newer generation took this session over and ended this stream; use engine.session() for "
                "conversations that run side by side"
            )


def step_together(
    running: Sequence[tuple[NativeSequence, int]], for_ms: float = 0.0
) -> list[core.StepResult]:
    """One step of generations of one engine, each given by its sequence and its number; sequences that
    generate are verified in one batch. With `for_ms` as many rounds as begin in that time, while all of them
    generate. Results in the order of `running`.
    """
    if not running:
        return []
    for sequence, generation in running:
        sequence._require_current(generation)
    first, _ = running[0]
    with first._exclusive() as native:
        results = native.step([one.number for one, _ in running], for_ms)
    found = {result.sequence: result for result in results}
    return [found[one.number] for one, _ in running]
