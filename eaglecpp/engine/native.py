# SPDX-License-Identifier: MIT
"""`NativeEngine`: the extension's engine, for one thread at a time and until it is closed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from eaglecpp._extension import core
from eaglecpp.errors import EagleError, EngineBusyError, InvalidStateError, InvalidValueError
from eaglecpp.log import drain

__all__ = ["NativeEngine", "checks_arguments"]


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


class NativeEngine:
    """Owns a `core.Engine`. waits: threads wait for each other instead of raising `EngineBusyError`."""

    def __init__(
        self, options: core.EngineOptions, *, waits: bool = False, weights: core.Engine | None = None
    ) -> None:
        self.waits = waits
        self._options = options
        self._native: core.Engine | None = None
        self._holder: dict[str, int] = {}  # {"thread": ident} while one is inside, see `exclusive`
        try:
            with checks_arguments():
                self._native = core.Engine(options, weights)
        finally:
            drain()

    def beside(self, n_sequences: int, n_ctx: int) -> NativeEngine:
        """Another engine with the weights of this one and what it has learned, and caches of its own."""
        with self.exclusive() as native:
            costs, acceptance = native.planner_state("beside", "beside")
            self._options.n_sequences, self._options.n_ctx = n_sequences, n_ctx
            other = NativeEngine(self._options, waits=self.waits, weights=native)
            if native.exact_points:
                other.get().set_exact_rows(native.exact_points)
        other.get().load_costs(costs.encode(), "beside")
        other.get().load_acceptance(acceptance.encode(), "beside")
        return other

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
        was interrupted still holds the engine, and its next call releases it. `setdefault` is atomic.
        """
        me = threading.get_ident()
        while self._holder.setdefault("thread", me) != me:
            if self.waits:
                time.sleep(0.001)
                continue
            raise EngineBusyError(
                "the engine is in use by another thread; an engine can be used by one thread at a time"
            )
        try:
            yield self.get()
        finally:
            self._holder.pop("thread", None)
            drain()

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
