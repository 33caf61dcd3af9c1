# SPDX-License-Identifier: MIT
"""`NativeEngine`: the extension's engine, for one thread at a time and until it is closed; `NativeSequence`:
one conversation in it, and the generation that runs there.

`Session` and `Stream` share a sequence: neither has to know the engine or the other's fields. Each `begin`
gives a generation a number; a call with an older number belongs to a generation that was replaced.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from typing import Any

from eaglecpp._extension import core
from eaglecpp.errors import EagleError, EngineBusyError, InvalidStateError, InvalidValueError
from eaglecpp.log import drain
from eaglecpp.threads import check_wanted

_log = logging.getLogger("eaglecpp.engine")
_LOST_S = 1.0  # after which a waiting thread looks by itself: Ctrl+C may keep the one before from telling it


@contextlib.contextmanager
def checks_arguments() -> Iterator[None]:
    """For native calls that check what the caller asked for: what they refuse is an InvalidValueError, which
    is the caller's fault, as a bare ValueError of any other call is not.
    """
    try:
        yield
    except EagleError:
        raise
    except ValueError as error:
        raise InvalidValueError(str(error)) from error


class _Hold:
    """A call that holds an engine. thread: its ident, 0 = it has ended."""

    thread = 0


class NativeEngine:
    """Owns a `core.Engine`. waits: threads wait for each other instead of raising `EngineBusyError`."""

    def __init__(self, options: core.EngineOptions) -> None:
        self.waits = False
        self._native: core.Engine | None = None
        self._holder: dict[str, int] = {}  # {"thread": ident} while one is inside, see `exclusive`
        self._outer: Callable[[], _Hold | None] = lambda: None
        self._left = threading.Event()
        self.released: list[int] = []  # sequences that nobody owns any more
        # called with a sequence before its first answer with a grammar, where nothing else is drafted
        self.before_forms: Callable[[int], None] | None = None
        try:
            with checks_arguments():
                self._native = core.Engine(options, check_wanted)
        finally:
            drain()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    @property
    def chains_only(self) -> str:
        """Why this target takes chains only; "" when it takes trees, or is closed."""
        return "" if self._native is None else self._native.chains_only

    def get(self) -> core.Engine:
        """The extension's object, for facts, which need no exclusive call. Raises InvalidStateError once
        closed.
        """
        if self._native is None:
            raise InvalidStateError("this engine is closed")
        return self._native

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[core.Engine]:
        """Holds the engine for one native call and hands its log on; `EngineBusyError` if a thread holds it.

        Not a lock: Ctrl+C between `acquire` and `try` would leave that locked for ever. Here the thread that
        was interrupted still holds the engine, and its next call releases it. `setdefault` is atomic. A call
        inside another of the same thread, which the garbage collector may begin, leaves the outer hold.
        """
        me, hold = threading.get_ident(), _Hold()
        while self._holder.setdefault("thread", me) != me:
            if not self.waits:
                raise EngineBusyError(
                    "the engine is in use by another thread; an engine can be used by one thread at a time"
                )
            self._left.clear()
            if self._holder:  # whoever left before `clear` has set the event already
                self._left.wait(_LOST_S)
        outer = self._outer()  # gone with its frame if it was interrupted
        if outer is not None and outer.thread == me:
            yield self.get()
            return
        try:
            hold.thread, self._outer = me, weakref.ref(hold)
            yield self.get()
        finally:
            hold.thread = 0
            self._holder.pop("thread", None)
            self._left.set()
            drain()

    def prepare_forms(self, sequence: int) -> None:
        """Calls `before_forms` once, while no other sequence generates."""
        if self.before_forms is not None:
            with contextlib.suppress(EngineBusyError):
                self.before_forms(sequence)
                self.before_forms = None

    def close_released(self, native: core.Engine) -> None:
        """Closes the sequences that were released. Interrupted, it is done again by the next call."""
        while self.released:
            with contextlib.suppress(ValueError):  # closed before it was interrupted
                native.close_sequence(self.released[-1])
            self.released.pop()

    def close(self, last: Callable[[core.Engine], None]) -> None:
        """Frees weights and caches, after `last` was called with what is to be freed. A second call does
        nothing.
        """
        if self._native is None:
            return
        with self.exclusive() as native:
            last(native)
            self._native = None
            native.close()


class NativeSequence:
    """Opens a sequence of the engine, which has it back when this object is closed or gone. Raises
    `EngineBusyError` when a thread holds it.
    """

    _closed = True  # as long as it is being made

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine
        self._generation = 0
        self._numbers: list[int] = []
        self._closed = False
        with engine.exclusive() as native:
            engine.close_released(native)
            # one call into C, after which a signal's handler may raise and the number is known
            self._numbers.extend(starmap(native.open_sequence, [()]))

    def __del__(self) -> None:
        if not self._closed:
            self._engine.released.extend(self._numbers)

    @property
    def number(self) -> int:
        """The engine's number of it."""
        return self._numbers[0]

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
        with self._exclusive() as native:
            if params.sampling.grammar and params.strategy.kind != "off":
                self._engine.prepare_forms(self.number)
            with checks_arguments():
                reused = native.begin(self.number, prompt, params, sampler)
            self._generation += 1
            return self._generation, reused

    def end(self, generation: int, n_taken: int) -> dict[str, Any]:
        """Ends the generation, of which n_taken tokens were used; returns its counters. Not for a generation
        that was taken over.
        """
        self._require_current(generation)
        with self._exclusive() as native:
            native.end(self.number, n_taken)
            return native.timings(self.number)

    def timings(self) -> dict[str, Any]:
        """The counters of the running generation so far."""
        with self._exclusive() as native:
            return native.timings(self.number)

    def clear(self) -> None:
        """Forgets the conversation; nothing is reused by the next prompt."""
        with self._exclusive() as native:
            native.clear(self.number)

    def offload(self) -> core.SavedSequence | None:
        """What the conversation holds between two generations; None where it cannot leave the caches."""
        with self._exclusive() as native:
            return native.save(self.number) if native.can_save else None

    def restore(self, saved: core.SavedSequence) -> bool:
        """Puts an offloaded conversation in place of what is held here; False where there is no room, or it
        is none of this engine's.
        """
        with self._exclusive() as native:
            try:
                return native.restore(self.number, saved)
            except ValueError as error:  # it may come from a file
                _log.info("not restored: %s", error)
                return False

    def close(self) -> None:
        """Gives the place back to the engine. A second call does nothing."""
        if not self.closed:
            with self._exclusive() as native:
                self._engine.released.append(self.number)
                self._closed = True
                self._engine.close_released(native)
        self._closed = True

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[core.Engine]:
        if self._closed:
            raise InvalidStateError("this session is closed")
        with self._engine.exclusive() as native:
            yield native

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
