# SPDX-License-Identifier: MIT
"""`Scheduler`: a loop that runs many generations of one engine. A scheduler starts no threads and does not
use asyncio.

`admit` gives free slots to queued generations. `step` runs a round of all generations with a slot: they draft
together and are verified in one batch, next to slices of prompts that are still being processed. Each
generation gets at least one token per step, and waits for another's prompt no longer than one slice takes. A
prompt gets the free slot with the longest common prefix. The slot's old conversation may be swapped out to
host memory.

`Engine.generate_many`, the capture of training data and `AsyncEngine` use a scheduler. One thread calls its
methods, except that `submit` and `cancel` are thread-safe.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from eaglecpp._extension import core
from eaglecpp.engine.native import NativeSequence
from eaglecpp.engine.request import ResolvedRequest, Shared
from eaglecpp.engine.slots import FairLock, HostCache, Slot, Slots
from eaglecpp.engine.stream import UNWATCHED_MS, Stream, next_chunks
from eaglecpp.errors import EngineBrokenError, PreemptedError
from eaglecpp.results import Chunk

Update = Chunk | BaseException | None
"""An event of a generation: a chunk, the error that ended the generation, or None when it gets a slot."""


class CancelledGenerationError(Exception):
    """The last event of a cancelled generation."""


@dataclass(eq=False)
class Generation:
    """One request, from the queue to its last event. The scheduler's thread writes all fields but
    `is_cancelled`.

    watch: keep `live`, the native counters, up to date
    slot_number: number of the slot, kept after the slot is freed; -1 before the first slot
    fetched: running search for the prompt's prefix in files
    """

    request: ResolvedRequest
    watch: bool = False
    submitted: float = field(default_factory=time.perf_counter)
    begun: float = 0.0
    is_cancelled: bool = False
    slot: Slot | None = None
    slot_number: int = -1
    stream: Stream | None = None
    live: dict[str, Any] = field(default_factory=dict)
    fetched: Future[core.SavedSequence | None] | None = None


Updates = list[tuple[Generation, Update]]


def preempted(seconds: float) -> PreemptedError:
    return PreemptedError(f"the request was stopped after {seconds:g} s: other requests were queued")


class Scheduler:
    """Runs the generations of one engine.

    cache: host memory for swapped out conversations; turns: lock held during a step; reads: as in `Stream`;
    reads_alone: process each prompt before other generations continue; for_ms: as in `next_chunks`
    """

    def __init__(
        self,
        cache: HostCache | None = None,
        turns: FairLock | None = None,
        *,
        reads: bool = True,
        reads_alone: bool = False,
        for_ms: float = UNWATCHED_MS,
    ) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self.cache = HostCache(0) if cache is None else cache
        self.slots = Slots((), self.cache)
        self.broken: EngineBrokenError | None = None
        self.turns = turns or FairLock()
        self._reads, self._reads_alone, self._for_ms = reads, reads_alone, for_ms

    def open(self, shared: Shared, sequences: Iterable[NativeSequence]) -> None:
        """Sets the sequences in which generations run."""
        self._shared, self.cache.prompts = shared, shared.prompts
        self.slots = Slots(sequences, self.cache)

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.waiting

    @property
    def may_admit(self) -> bool:
        """True if `admit` has work: the search for the first waiting request's prompt in files has ended, or
        a waiting request is cancelled.
        """
        head = self.waiting[0].fetched if self.waiting else None
        return bool(self.waiting) and (
            head is None or head.done() or any(waiting.is_cancelled for waiting in [*self.waiting])
        )

    def submit(self, generation: Generation) -> None:
        self.waiting.append(generation)
        self.wake()

    def cancel(self, generation: Generation) -> None:
        """Ends a generation before the next round."""
        generation.is_cancelled = True
        self.wake()

    def wake(self, _: object = None) -> None:
        """Wakes the scheduler's thread, which then checks for work."""
        with self.changed:
            self.changed.notify()

    def run(self, requests: Sequence[ResolvedRequest]) -> list[Stream]:
        """Runs requests until all requests have ended. Returns their streams. Raises the first error of a
        request.
        """
        generations = [Generation(request) for request in requests]
        self.waiting.extend(generations)
        while not self.is_idle:
            for _, event in self.turn():
                if isinstance(event, BaseException):
                    raise event
        return [generation.stream for generation in generations if generation.stream is not None]

    def turn(self) -> Updates:
        """Waits for work, then admits generations and runs one step. Returns the events of the admission and
        of the step.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.running or self.may_admit)
        events = [*self.admit(), *self.step()]
        self.keep()
        return events

    def close(self) -> None:
        """Ends all running generations. Their texts stay cached."""
        self.end([*self.running])

    def admit(self, slot_time_s: float = 0.0) -> Updates:
        """Drops cancelled generations, then gives free slots to queued generations. slot_time_s: seconds
        after which a generation is preempted while other generations wait; 0 = never
        """
        with self.changed:
            cancelled = [generation for generation in self.waiting if generation.is_cancelled]
            for generation in cancelled:
                self.waiting.remove(generation)
        cancelled += [generation for generation in self.running if generation.is_cancelled]
        events = self.end(cancelled, CancelledGenerationError())
        if slot_time_s > 0 and self.waiting and not self.slots.has_free:
            now = time.perf_counter()
            late = [task for task in self.running if now - task.begun > slot_time_s][: len(self.waiting)]
            events += self.end(late, preempted(slot_time_s))
        while self.waiting and self.slots.has_free and self._is_fetched(self.waiting[0]):
            with self.changed:
                generation = self.waiting.popleft()
            try:
                in_file = None if generation.fetched is None else generation.fetched.result()
                request = generation.request
                generation.slot = self.slots.find(request.prompt.tokens, in_file)
                generation.stream = Stream(generation.slot.sequence, self._shared, request, reads=self._reads)
            except Exception as error:
                generation.slot = None
                events += self.end([generation], error)
                continue
            generation.slot.take(generation.request.prompt.tokens)
            generation.slot_number, generation.begun = generation.slot.number, time.perf_counter()
            self.running.append(generation)
            events.append((generation, None))
            while self._reads_alone and generation.slot is not None and not generation.stream.n_tokens:
                events += self.step([generation])
        return events

    def _is_fetched(self, generation: Generation) -> bool:
        """Returns whether the search for the generation's prompt in files has ended. Other generations run
        during this search.
        """
        prompts, tokens = self._shared.prompts, generation.request.prompt.tokens
        if prompts is None or not generation.request.source.cache_prompt:
            return True
        if generation.fetched is None:
            generation.fetched = prompts.fetch(tokens, self.slots.n_held(tokens))
            generation.fetched.add_done_callback(self.wake)
        return generation.fetched.done()

    def keep(self) -> None:
        """Writes texts of free slots to files while no generation runs. The caller must send the events of
        the last step first, because an error of this method ends the thread.
        """
        if self._shared.prompts is not None and not self.running:
            self.slots.keep(self._shared.prompts, lambda: not self.waiting)

    def step(self, running: Sequence[Generation] | None = None) -> Updates:
        """Runs the rounds that start within `for_ms`, or one round if a request waits for its first token.
        Processes a slice of each prompt that is not yet complete.
        """
        running = list(self.running) if running is None else running
        if not running:
            return []
        streams = [generation.stream for generation in running if generation.stream is not None]
        # Each step runs only one round while a request can get a slot or waits for its first token.
        is_urgent = (self.waiting and self.slots.has_free) or not all(stream.n_tokens for stream in streams)
        try:
            with self.turns:
                results = next_chunks(streams, 0.0 if is_urgent else self._for_ms)
        except Exception as error:
            return self.end(running, error)
        events: Updates = []
        for generation, result in zip(running, results, strict=True):
            if result is None:
                continue
            events.append((generation, result))
            if isinstance(result, BaseException):
                self._leave(generation)
                continue
            if generation.watch and generation.slot is not None:
                generation.live = generation.slot.sequence.timings()
            if result.finish_reason is not None:
                self._leave(generation)
        return events

    def end(self, generations: Sequence[Generation], error: BaseException | None = None) -> Updates:
        """Ends generations. Returns the last events of these generations."""
        if isinstance(error, EngineBrokenError):
            self.broken = error
        for generation in generations:
            self._leave(generation)
        return [(generation, error) for generation in generations]

    def _leave(self, generation: Generation) -> None:
        """Ends a generation and frees its slot."""
        if generation.stream is not None:
            generation.stream.close()
        slot, generation.slot = generation.slot, None
        if slot is not None:
            slot.leave()
        with contextlib.suppress(ValueError):
            self.running.remove(generation)
