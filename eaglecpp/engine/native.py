# SPDX-License-Identifier: MIT
"""`NativeEngine`: the extension's engine, which one thread at a time can use until the engine is closed.
`NativeSequence`: one conversation of the engine, with its running generation.

`Session` and `Stream` share a `NativeSequence`, so neither class needs the engine or the other class's
fields. Each `begin` gives the new generation a number. A call with an older number belongs to a replaced
generation.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from typing import Any, NoReturn

from eaglecpp._extension import core
from eaglecpp.errors import EagleError, EngineBusyError, InvalidStateError, InvalidValueError
from eaglecpp.log import drain
from eaglecpp.threads import check_wanted

_log = logging.getLogger("eaglecpp.engine")
# Seconds between two checks of a waiting thread. The checks are needed because Ctrl+C may lose a
# notification.
_LOST_S = 1.0


@contextlib.contextmanager
def checks_arguments() -> Iterator[None]:
    """Turns a ValueError inside the `with` block into an InvalidValueError. For native calls that check the
    caller's arguments; a ValueError of any other native call is a bug.
    """
    try:
        yield
    except EagleError:
        raise
    except ValueError as error:
        raise InvalidValueError(str(error)) from error


class Unique:
    """Base of classes whose objects release something when they end. A copy would release it a second
    time.
    """

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"objects of {type(self).__name__} cannot be copied or pickled")


class _Hold:
    """A call that has exclusive use of an engine. thread: ident of the calling thread; 0 = the call has
    ended.
    """

    thread = 0


class NativeEngine(Unique):
    """Owns a `core.Engine`. waits: True = threads wait for each other, instead of raising
    `EngineBusyError`.
    """

    def __init__(self, options: core.EngineOptions) -> None:
        self.waits = False
        self._native: core.Engine | None = None
        self._holder: dict[str, int] = {}  # {"thread": ident} while a thread has exclusive use
        self._outer: Callable[[], _Hold | None] = lambda: None
        self._left = threading.Event()
        self.released: list[int] = []  # numbers of open sequences that no longer have an owner
        # Function to call before the engine's first answer with a grammar, while no other sequence generates.
        # It is None after this call. It is also None if the engine drafts answers without a grammar.
        self.before_forms: Callable[[], None] | None = None
        self.is_wanted = False  # True if another thread waits for the engine
        try:
            with checks_arguments():
                self._native = core.Engine(options, check_wanted)
        finally:
            drain()

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._native is None

    @property
    def chains_only(self) -> str:
        """Reason why this target supports only draft chains; "" if the target supports draft trees, or the
        engine is closed.
        """
        return "" if self._native is None else self._native.chains_only

    def get(self) -> core.Engine:
        """Returns the extension's engine, for reading facts, which needs no exclusive use. Raises
        InvalidStateError once the engine is closed.
        """
        if self._native is None:
            raise InvalidStateError("this engine is closed")
        return self._native

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[core.Engine]:
        """Gives this thread exclusive use of the engine for one native call, then forwards the call's log.
        Raises `EngineBusyError` if another thread uses the engine.

        A lock would not do, because Ctrl+C between `acquire` and `try` would leave the lock taken forever.
        After such an interruption, `_holder` still names the interrupted thread, and that thread's next call
        removes the entry. `setdefault` is atomic. The garbage collector may start a nested call in the same
        thread; the end of a nested call does not end the outer call's exclusive use.
        """
        me, hold = threading.get_ident(), _Hold()
        while self._holder.setdefault("thread", me) != me:
            if not self.waits:
                raise EngineBusyError(
                    "the engine is in use by another thread; an engine can be used by one thread at a time"
                )
            self.is_wanted = True
            self._left.clear()
            if self._holder:  # `_holder` is empty if the other call ended before `clear`
                self._left.wait(_LOST_S)
        self.is_wanted = False
        outer = self._outer()  # `_outer` returns None if the outer call was interrupted
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

    def close_released(self, native: core.Engine) -> None:
        """Closes the released sequences. If an interruption stops this method, its next call closes the
        remaining sequences.
        """
        while self.released:
            # an interruption may come after a sequence was closed and before it was removed from the list
            with contextlib.suppress(ValueError):
                native.close_sequence(self.released[-1])
            self.released.pop()

    def close(self, last: Callable[[core.Engine], None]) -> None:
        """Calls `last` with the engine, then frees weights and caches. A second call does nothing."""
        if self._native is None:
            return
        with self.exclusive() as native:
            last(native)
            self._native = None
            native.close()


class NativeSequence(Unique):
    """A sequence of the engine. The constructor opens the sequence. The sequence is released when this object
    is closed or garbage collected. Raises `EngineBusyError` if another thread uses the engine.
    """

    _closed = True  # stays True until the constructor has opened a sequence

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine
        self._generation = 0
        self._numbers: list[int] = []
        self._closed = False
        with engine.exclusive() as native:
            engine.close_released(native)
            # Opening the sequence and storing its number is a single C call. So a signal handler cannot raise
            # an exception in between.
            self._numbers.extend(starmap(native.open_sequence, [()]))

    def __del__(self) -> None:
        if not self._closed:
            self._engine.released.extend(self._numbers)

    @property
    def number(self) -> int:
        """Number that the engine has given the sequence."""
        return self._numbers[0]

    @property
    def closed(self) -> bool:
        """True if the sequence was released, or the engine is closed."""
        return self._closed or self._engine.closed

    @property
    def tokens(self) -> list[int]:
        """Tokens committed in this sequence: prompt and generated."""
        with self._exclusive() as native:
            return native.tokens(self.number)

    def begin(
        self, prompt: list[int], params: core.GenerateParams, sampler: core.MadeSampler | None = None
    ) -> tuple[int, int]:
        """Starts a generation, and ends the sequence's previous generation. Returns the new generation's
        number and the number of reused prompt tokens.
        """
        with self._exclusive() as native:
            prepare = self._engine.before_forms
            if params.sampling.grammar and params.strategy.kind != "off" and prepare is not None:
                native.end(self.number)
                with contextlib.suppress(EngineBusyError):  # another sequence generates
                    prepare()
                    self._engine.before_forms = None
            with checks_arguments():
                reused = native.begin(self.number, prompt, params, sampler)
            self._generation += 1
            return self._generation, reused

    def end(self, generation: int, n_taken: int) -> dict[str, Any]:
        """Ends the generation and returns its counters. n_taken: number of the generation's tokens that the
        caller has used. Raises EngineBusyError for a replaced generation.
        """
        self._require_current(generation)
        with self._exclusive() as native:
            native.end(self.number, n_taken)
            return native.timings(self.number)

    def timings(self) -> dict[str, Any]:
        """Returns the counters of the running generation so far."""
        with self._exclusive() as native:
            return native.timings(self.number)

    def clear(self) -> None:
        """Forgets the conversation, so that the next prompt reuses none of its tokens. Ends a running
        generation.
        """
        with self._exclusive() as native:
            native.clear(self.number)
            self._generation += 1

    def offload(self) -> core.SavedSequence | None:
        """Saves the conversation between two generations and returns it; None if this engine's caches cannot
        be saved.
        """
        with self._exclusive() as native:
            return native.save(self.number) if native.can_save else None

    def restore(self, saved: core.SavedSequence) -> bool:
        """Replaces this sequence's conversation by a saved conversation. Returns False if the caches have no
        room, or if the saved conversation is from another engine.
        """
        with self._exclusive() as native:
            try:
                return native.restore(self.number, saved)
            except ValueError as error:  # the state may come from an invalid file
                _log.info("a conversation could not be restored: %s", error)
                return False

    def close(self) -> None:
        """Releases the sequence. A second call does nothing."""
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
                "a newer call took this session over and ended this stream; for several conversations at the "
                "same time, open each with engine.session()"
            )


def step_together(
    running: Sequence[tuple[NativeSequence, int]], for_ms: float = 0.0
) -> list[core.StepResult]:
    """Runs one step of several generations of one engine. running: sequence and number of each generation.
    Sequences that already generate tokens are verified in one batch. for_ms: runs as many rounds as start
    within this time, as long as all sequences generate; 0 = one round. Results are in the order of `running`.
    """
    if not running:
        return []
    for sequence, generation in running:
        sequence._require_current(generation)
    first, _ = running[0]
    with first._exclusive() as native:
        results = native.step([sequence.number for sequence, _ in running], for_ms)
    by_number = {result.sequence: result for result in results}
    return [by_number[sequence.number] for sequence, _ in running]
