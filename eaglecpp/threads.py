# SPDX-License-Identifier: MIT
"""`Threads`: slow work beside an event loop, a few threads for each purpose. What shares one pool of threads
waits for each other: six downloads from a host that says nothing would keep every prompt from being read.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
_is_cancelled: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar("is_cancelled")


def check_wanted() -> None:
    """Raises CancelledError in a job of `Threads` whose caller was cancelled, or where a `cancel_when` holds;
    a long job calls it between its steps.
    """
    is_cancelled = _is_cancelled.get(None)
    if is_cancelled is not None and is_cancelled():
        raise asyncio.CancelledError


def cancel_when(holds: Callable[[], bool]) -> None:
    """Lets `check_wanted` raise in this context also when `holds()`."""
    before = _is_cancelled.get(bool)  # bool() is False
    _is_cancelled.set(lambda: holds() or before())


class Threads:
    """purpose: what they do, for debuggers; n: jobs at a time. Further ones wait, in the order of asking.

    They are daemons: no program waits for a server on the network to end.
    """

    def __init__(self, purpose: str, n: int) -> None:
        self._purpose = purpose
        self._free = asyncio.Semaphore(n)

    @property
    def is_full(self) -> bool:
        """Whether a further job would have to wait."""
        return self._free.locked()

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """What `work(*args)` returns or raises. Where the caller is cancelled, a job that waits is never
        begun; one under way goes on, to the next `check_wanted`, and keeps its thread.
        """
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
                told: tuple[Callable[[Any], None], Any] = done.set_result, context.run(work, *args)
            except BaseException as error:
                told = done.set_exception, error
            with suppress(RuntimeError):  # a closed loop: nobody listens any more
                loop.call_soon_threadsafe(settle, *told)

        try:
            threading.Thread(target=job, name=self._purpose, daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._free.release()
            raise
        return await done
