# SPDX-License-Identifier: MIT
"""`AsyncStream`: one generation of an `AsyncEngine`, for the asyncio task that reads the generation. The
engine's thread runs the same generation as an `AsyncGeneration`, which sends events to the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eaglecpp.engine.native import Unique
from eaglecpp.engine.scheduler import CancelledGenerationError, Generation, Update, preempted
from eaglecpp.errors import InvalidStateError
from eaglecpp.results import Chunk, Completion


@dataclass(eq=False, kw_only=True)
class AsyncGeneration(Generation):
    """A generation that an asyncio task reads. taken_up: set when the generation has a slot, or has ended
    without a slot; n_unread: number of tokens in `events`, counted by the event loop
    """

    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[Chunk | BaseException] = field(default_factory=asyncio.Queue)
    taken_up: asyncio.Event = field(default_factory=asyncio.Event)
    n_unread: int = 0


class AsyncStream(Unique, AsyncIterator[Chunk], contextlib.AbstractAsyncContextManager["AsyncStream", None]):
    """A running or queued generation: `async for` yields chunks, `completion()` returns the result so far.

    Leaving `async with`, or `cancel()`, frees the slot before the next round.
    """

    def __init__(self, task: AsyncGeneration, cancel: Callable[[Generation], None]) -> None:
        self._task = task
        self._cancel = cancel
        self._lost: BaseException | None = None
        self._is_over = False

    @property
    def slot_number(self) -> int:
        """The number of the generation's slot, from 0; -1 while the generation waits for a slot."""
        return self._task.slot_number

    @property
    def queue_ms(self) -> float:
        """Time in the queue so far, in milliseconds."""
        return 1000 * ((self._task.begun or time.perf_counter()) - self._task.submitted)

    async def started(self, timeout: float | None = None) -> bool:
        """Waits until the generation has a slot, and returns True. Returns False after `timeout` seconds. If
        the generation fails before it gets a slot, raises its error.
        """
        if not self._is_over:
            try:
                # asyncio.wait_for may lose a cancellation in Python 3.11
                async with asyncio.timeout(timeout):
                    await self._task.taken_up.wait()
            except TimeoutError:
                return False
            if not self._task.begun:
                async for _ in self:
                    pass
        return True

    async def __anext__(self) -> Chunk:
        if self._is_over:
            raise StopAsyncIteration
        event = await self._task.events.get()
        if self._lost is not None:
            event = self._lost
        self._is_over = not isinstance(event, Chunk) or event.finish_reason is not None
        if isinstance(event, Chunk):
            self._task.n_unread -= len(event.tokens)
            reader = self._task.request.reader
            return event if reader is None else reader.read(event)
        self._lost = event
        raise StopAsyncIteration if isinstance(event, CancelledGenerationError) else event

    async def finish(self) -> Completion:
        """Waits for the end of the generation and returns the whole result. Frees the slot if this task is
        cancelled.
        """
        async with self:
            async for _ in self:
                pass
            return self.completion()

    def completion(self) -> Completion:
        """Returns the result so far. Raises InvalidStateError before the generation has started, and if it
        never started.
        """
        if self._task.stream is None:
            why = "it was cancelled" if self._task.is_cancelled else self._lost
            end = f"ended before it began: {why}" if self._is_over else "has not started"
            raise InvalidStateError(f"this generation {end}")
        reader = self._task.request.reader
        return replace(self._task.stream.completion(), _message=None if reader is None else reader.message)

    @property
    def live(self) -> dict[str, Any]:
        """The native counters after the last chunk. They are kept up to date only if the stream was started
        with `watch`.
        """
        return self._task.live

    def cancel(self) -> None:
        """Ends the generation before the next round. Its text stays available."""
        if not self._is_over:
            self._is_over = True
            self._cancel(self._task)

    def end_late(self, max_s: float) -> None:
        """Ends the generation if it has held its slot for more than `max_s` seconds, because other requests
        wait. After the chunks that are ready, the stream then raises PreemptedError.
        """
        if self._lost is None and self._task.begun and time.perf_counter() - self._task.begun > max_s:
            self._lost = preempted(max_s)
            self._task.events.put_nowait(self._lost)
            self._cancel(self._task)

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.cancel()


def send(events: Sequence[tuple[Generation, Update]]) -> None:
    """Sends events to the tasks that read the generations, with one wake-up for each event loop."""
    of_tasks = [(task, event) for task, event in events if isinstance(task, AsyncGeneration)]
    for loop in {task.loop for task, _ in of_tasks}:
        own = [(task, event) for task, event in of_tasks if task.loop is loop]
        with contextlib.suppress(RuntimeError):  # a closed event loop has no tasks that wait for chunks
            loop.call_soon_threadsafe(_put, own)


def _put(events: Sequence[tuple[AsyncGeneration, Update]]) -> None:
    for task, event in events:
        task.taken_up.set()
        if event is not None:
            task.n_unread += len(event.tokens) if isinstance(event, Chunk) else 0
            task.events.put_nowait(event)
