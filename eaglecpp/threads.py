# SPDX-License-Identifier: MIT
"""`Threads`: runs slow work outside an event loop, in a few threads for each purpose. With one shared pool,
one purpose could block another: six downloads from an unresponsive host would delay every prompt.

asyncio is imported where it is used, because `eaglecpp run` needs only `check_wanted`.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
_is_cancelled: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar("is_cancelled")


def check_wanted() -> None:
    """Raises CancelledError if the caller of this job of `Threads` was cancelled, or if the job's
    `cancel_when` condition holds. A long job calls this function between its steps.
    """
    is_cancelled = _is_cancelled.get(None)
    if is_cancelled is not None and is_cancelled():
        from asyncio import CancelledError

        raise CancelledError


def cancel_when(holds: Callable[[], bool]) -> None:
    """Makes `check_wanted` in this context also raise CancelledError once `holds()` is true."""
    before = _is_cancelled.get(bool)  # by default, `before` is bool, and bool() returns False
    _is_cancelled.set(lambda: holds() or before())


class Threads:
    """A limited number of daemon threads, so that the process can exit without waiting for a remote server.

    purpose: thread name, for debuggers; n: concurrent jobs. Further jobs wait in order of arrival.
    """

    def __init__(self, purpose: str, n: int) -> None:
        self._purpose = purpose
        import asyncio

        self._free = asyncio.Semaphore(n)

    @property
    def is_full(self) -> bool:
        """True if a further job would have to wait."""
        return self._free.locked()

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Runs `work(*args)` in a thread and returns its result or raises its error. If the caller is
        cancelled, a waiting job never starts, and a running job continues until its next `check_wanted`.
        """
        import asyncio

        await self._free.acquire()
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        done: asyncio.Future[T] = loop.create_future()
        context.run(_is_cancelled.set, done.cancelled)

        def settle(set_done: Callable[[Any], None], value: Any) -> None:
            self._free.release()
            if not done.done():
                set_done(value)

        def job() -> None:
            try:
                outcome: tuple[Callable[[Any], None], Any] = done.set_result, context.run(work, *args)
            except BaseException as error:
                outcome = done.set_exception, error
            with suppress(RuntimeError):  # a closed event loop has no waiting caller
                loop.call_soon_threadsafe(settle, *outcome)

        try:
            threading.Thread(target=job, name=self._purpose, daemon=True).start()
        except RuntimeError:  # the system cannot start another thread
            self._free.release()
            raise
        return await done
