# SPDX-License-Identifier: MIT
"""`Scheduler`: the loop that runs many generations of one engine, without threads or asyncio of its own.

`admit` gives free slots to waiting generations; `step` runs a round of all that have one: they draft
together and are verified in one batch, next to slices of the prompts that are still read. So each gets at
least one token per step, and none waits longer for another's prompt than a slice takes. A prompt gets the
free slot whose text it continues; a slot that has to make room may be swapped out to host memory.

`Engine.generate_many`, capturing and `AsyncEngine` run on it. One thread calls it; `submit` and `cancel` are
for any thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eaglecpp.engine.native import NativeSequence
from eaglecpp.engine.request import ResolvedRequest, Shared
from eaglecpp.engine.slots import HostCache, Slot, Slots
from eaglecpp.engine.stream import Stream, next_chunks
from eaglecpp.errors import EngineBrokenError, PreemptedError
from eaglecpp.results import Chunk

if TYPE_CHECKING:
    from concurrent.futures import Future

    from eaglecpp._extension import core

Update = Chunk | BaseException | None
"""A chunk, the error that ended a generation, or None when it gets a slot."""


class CancelledGenerationError(Exception):
    """The last event of a generation that was cancelled."""


@dataclass(eq=False)
class Generation:
    """One request, from the queue to its last event. The scheduler's thread writes all but `is_cancelled`.

    watch: keep `live`, the native counters, up to date
    slot_number: stays after the slot is left; -1 before
    fetched: prefix of its prompt, from a file
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
    return PreemptedError(f"the answer was stopped after {seconds:g} s: other requests wait for its slot")


class Scheduler:
    """cache: host memory for swapped out conversations; turns: held during a step; reads: as of `Stream`;
    reads_alone: a prompt is read before others go on; is_watched: each step is one round
    """

    def __init__(
        self,
        cache: HostCache | None = None,
        turns: AbstractContextManager[Any] | None = None,
        *,
        reads: bool = True,
        reads_alone: bool = False,
        is_watched: bool = True,
    ) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self.cache = HostCache(0) if cache is None else cache
        self.slots = Slots((), self.cache)
        self.broken: EngineBrokenError | None = None
        self._turns = turns or contextlib.nullcontext()
        self._reads, self._reads_alone, self._is_watched = reads, reads_alone, is_watched

    def open(self, shared: Shared, sequences: Iterable[NativeSequence]) -> None:
        """Takes the sequences that the generations run in."""
        self._shared, self.cache.prompts = shared, shared.prompts
        self.slots = Slots(sequences, self.cache)

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.waiting

    @property
    def may_admit(self) -> bool:
        """Whether a request waits for a slot, and not for a file with its prompt."""
        head = self.waiting[0].fetched if self.waiting else None
        return bool(self.waiting) and (
            head is None or head.done() or any(one.is_cancelled for one in self.waiting)
        )

    def submit(self, generation: Generation) -> None:
        self.waiting.append(generation)
        self.wake()

    def cancel(self, generation: Generation) -> None:
        """Ends a generation before the next round."""
        generation.is_cancelled = True
        self.wake()

    def wake(self, _: object = None) -> None:
        """Lets the thread look for work."""
        with self.changed:
            self.changed.notify()

    def run(self, requests: Sequence[ResolvedRequest]) -> list[Stream]:
        """Runs requests to their ends; returns their streams. Raises the first error."""
        generations = [Generation(request) for request in requests]
        self.waiting.extend(generations)
        while not self.is_idle:
            for _, event in self.turn():
                if isinstance(event, BaseException):
                    raise event
        return [one.stream for one in generations if one.stream is not None]

    def turn(self) -> Updates:
        """Admits and steps, as soon as there is something to do."""
        with self.changed:
            while not (self.running or self.may_admit):
                self.changed.wait()
        events = [*self.admit(), *self.step()]
        self.keep()
        return events

    def close(self) -> None:
        """Ends what runs. The texts stay cached."""
        self.end([*self.running])

    def admit(self, slot_time_s: float = 0.0) -> Updates:
        """Drops cancelled generations, then gives free slots to waiting ones. slot_time_s: seconds after
        which a generation is preempted if others wait; 0 = never
        """
        with self.changed:
            cancelled = [one for one in self.waiting if one.is_cancelled]
            for one in cancelled:
                self.waiting.remove(one)
        cancelled += [one for one in self.running if one.is_cancelled]
        events = self.end(cancelled, CancelledGenerationError())
        if slot_time_s > 0 and self.waiting and not self.slots.has_free:
            now = time.perf_counter()
            late = [one for one in self.running if now - one.begun > slot_time_s][: len(self.waiting)]
            events += self.end(late, preempted(slot_time_s))
        while self.waiting and self.slots.has_free and self._is_fetched(self.waiting[0]):
            with self.changed:
                one = self.waiting.popleft()
            try:
                in_file = None if one.fetched is None else one.fetched.result()
                one.slot = self.slots.find(one.request.prompt.tokens, in_file)
                one.stream = Stream(one.slot.sequence, self._shared, one.request, reads=self._reads)
            except Exception as error:
                one.slot = None
                events += self.end([one], error)
                continue
            one.slot.take(one.request.prompt.tokens)
            one.slot_number, one.begun = one.slot.number, time.perf_counter()
            self.running.append(one)
            events.append((one, None))
            while self._reads_alone and one.slot is not None and not one.stream.n_tokens:
                events += self.step([one])
        return events

    def _is_fetched(self, one: Generation) -> bool:
        """Returns whether the look-up of the prompt in files has ended. Other generations run meanwhile."""
        prompts, tokens = self._shared.prompts, one.request.prompt.tokens
        if prompts is None or not one.request.source.cache_prompt:
            return True
        if one.fetched is None:
            one.fetched = prompts.fetch(tokens, self.slots.n_held(tokens))
            one.fetched.add_done_callback(self.wake)
        return one.fetched.done()

    def keep(self) -> None:
        """Writes texts to files while nothing runs. The events of a step are sent before: an error ends this
        thread.
        """
        if self._shared.prompts is not None and not self.running:
            self.slots.keep(self._shared.prompts, lambda: not self.waiting)

    def step(self, running: Sequence[Generation] | None = None) -> Updates:
        """Runs a round of each generation that has its prompt, and a slice of the prompts of the others."""
        running = list(self.running) if running is None else running
        if not running:
            return []
        streams = [one.stream for one in running if one.stream is not None]
        # a generation that waits for a slot or its first token waits for rounds one by one
        is_watched = self._is_watched or bool(self.waiting) or not all(stream.n_tokens for stream in streams)
        try:
            with self._turns:
                results = next_chunks(streams, is_watched)
        except Exception as error:
            return self.end(running, error)
        events: Updates = []
        for one, result in zip(running, results, strict=True):
            if result is None:
                continue
            events.append((one, result))
            if isinstance(result, BaseException):
                self._leave(one)
                continue
            if one.watch and one.slot is not None:
                one.live = one.slot.sequence.timings()
            if result.finish_reason is not None:
                self._leave(one)
        return events

    def end(self, generations: Sequence[Generation], error: BaseException | None = None) -> Updates:
        """Ends generations; returns their last events."""
        if isinstance(error, EngineBrokenError):
            self.broken = error
        for one in generations:
            self._leave(one)
        return [(one, error) for one in generations]

    def _leave(self, one: Generation) -> None:
        """Ends a generation and frees its slot."""
        if one.stream is not None:
            one.stream.close()
        slot, one.slot = one.slot, None
        if slot is not None:
            slot.leave()
        with contextlib.suppress(ValueError):
            self.running.remove(one)
