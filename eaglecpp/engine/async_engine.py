# SPDX-License-Identifier: MIT
"""`AsyncEngine`: one engine, one thread that steps it, and any number of asyncio tasks that wait for text.

    engine = await AsyncEngine.open("target.gguf", draft="draft.gguf", n_parallel=4)
    async with engine.stream("def main():", max_tokens=128) as stream:
        async for chunk in stream:
            ...

All native calls run in the engine's own thread. This thread runs a `Scheduler`, and queued calls between two
rounds. A request gets the free slot with the longest common prefix. If another slot has a longer common
prefix, the engine copies that prefix into the request's slot.

An error of one request ends only that request. An error inside a batch ends all requests in that batch,
because the error cannot be assigned to one request.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import logging
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack, cast, overload

from eaglecpp.engine.async_stream import AsyncGeneration, AsyncStream, send
from eaglecpp.engine.embedding import EmbedKeywords
from eaglecpp.engine.engine import Engine
from eaglecpp.engine.native import NativeSequence, checks_arguments
from eaglecpp.engine.prompt_cache import PromptCache, no_cache_reason
from eaglecpp.engine.request import GenerationRequest, ResolvedRequest
from eaglecpp.engine.scheduler import CancelledGenerationError, Scheduler, Updates, preempted
from eaglecpp.engine.session import MessageList
from eaglecpp.engine.slots import FairLock, HostCache
from eaglecpp.engine.vocabulary import Prompt
from eaglecpp.errors import (
    EagleError,
    EngineBrokenError,
    InvalidStateError,
    InvalidValueError,
    QueueFullError,
    UnsupportedError,
)
from eaglecpp.human import counted
from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, Strategy
from eaglecpp.results import READ_MS, Completion, Embedding
from eaglecpp.threads import Threads, cancel_when, check_wanted

T = TypeVar("T")
Lane = Literal["short", "long", "images"]
"""Kind of preparation that a request needs. A preparation waits only for preparations of the same kind."""
_N_PREPARED: Mapping[Lane, int] = {"short": 2, "long": 1, "images": 1}
_PAUSE_S = 0.5  # seconds without work after which an engine measures what opening had no time for
# maximum number of texts and characters that one request embeds in one turn
_EMBEDDED_TEXTS, _EMBEDDED_CHARS = 64, 1 << 13
_log = logging.getLogger("eaglecpp.async")


class Serving(TypedDict, total=False):
    """Options for serving requests.

    n_queue:  maximum number of requests that wait for a slot, and maximum number of requests that wait for
        embeddings; default 512
    host_cache_bytes: bytes of host memory for conversations that are swapped out; default 0
    slot_time_s: maximum seconds for which a generation holds its slot, or an embeddings request takes turns,
              while other requests wait; 0 = no limit
    n_unread: number of unread tokens after which a stream's generation is cancelled; 0 = no limit
    turns:    a lock shared with other engines in this process
    """

    n_queue: int
    host_cache_bytes: int
    slot_time_s: float
    n_unread: int
    turns: FairLock


if TYPE_CHECKING:
    from eaglecpp.options.typed import ChatKeywords, GenerateKeywords, OpenKeywords

    class OpenServing(Serving, OpenKeywords, total=False):
        """Arguments of `AsyncEngine.open`: the arguments of `Engine.open`, and the options of `Serving`."""

        strategy: str | Strategy | None
        model: ModelOptions | None
        drafting: DraftOptions | None
        sampling: SamplingOptions | None


RENAMED = {"place_s": "slot_time_s", "n_park_bytes": "host_cache_bytes"}
"""Former names of arguments by current name. Both names are accepted."""


class AsyncEngine(contextlib.AbstractAsyncContextManager["AsyncEngine", None]):
    """Serves many asyncio tasks from one `Engine`, which it owns and closes."""

    def __init__(self, engine: Engine | Callable[[], Engine], **serving: Unpack[Serving]) -> None:
        serving = cast("Serving", {RENAMED.get(name, name): value for name, value in serving.items()})
        self._n_queue = serving.get("n_queue", 512)
        self._preparing = {lane: Threads(f"{lane} prompts", n) for lane, n in _N_PREPARED.items()}
        self._embedding = Threads("embeddings", 1)
        self._n_embedding = 0
        self._slot_turns = asyncio.Lock()  # a slot method holds this lock while it copies a slot
        self._worker = _Worker(engine, serving)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # a failed constructor leaves no worker
            was_closing = self._worker.closing
            self._worker.stop()  # before the warning, which may be an error (python -W error)
            if was_closing == "no":
                warnings.warn(f"unclosed {self!r}; await its close()", ResourceWarning, 2, self)

    @classmethod
    async def open(
        cls,
        target: str | os.PathLike[str],
        draft: str | os.PathLike[str] | None = None,
        *,
        n_parallel: int = 4,
        **options: Unpack[OpenServing],
    ) -> Self:
        """Opens an engine as `Engine.open` does, with slots for `n_parallel` conversations at a time. If the
        calling task is cancelled, the call returns at once, and the engine is closed as soon as it is loaded.
        """
        opening: dict[str, Any] = {**options, "n_sequences": n_parallel}
        serving = {name: opening.pop(name) for name in options if name in Serving.__annotations__ | RENAMED}
        own = cls(partial(Engine.open, target, draft, **opening), **serving)
        try:
            await asyncio.to_thread(own.wait_opened)
            return own
        except BaseException:
            own._worker.stop()
            raise

    def wait_opened(self) -> None:
        """Blocks until the engine is open. Raises the error that prevents opening the engine."""
        self._worker.opened.result()

    @property
    def engine(self) -> Engine:
        """The `Engine`, for facts and the tokenizer. To generate, use the methods of `AsyncEngine`. For
        anything else that runs the model, use `call`. A native call from another thread waits for the running
        round and delays the next round.
        """
        if self._worker.engine is None:
            raise InvalidStateError("this engine is closed")
        return self._worker.engine

    @property
    def n_running(self) -> int:
        return len(self._worker.running)

    @property
    def running_slots(self) -> set[int]:
        """The numbers of the slots with a running generation."""
        return {task.slot_number for task in list(self._worker.running)}

    @property
    def n_waiting(self) -> int:
        return len(self._worker.waiting)

    @property
    def host_cached(self) -> tuple[int, int]:
        """Number of swapped out conversations in host memory, and the bytes that these conversations take."""
        return len(self._worker.cache), self._worker.cache.n_bytes

    @property
    def broken(self) -> BaseException | None:
        """The error that broke this engine; None if the engine works."""
        return self._worker.broken

    # Methods that generate text

    def resolve(self, request: GenerationRequest) -> ResolvedRequest:
        """Checks a request and prepares its prompt, its grammar and its sampler, which is the slow part.
        Raises the errors of `stream`, and GrammarError. This method blocks, so pass it to `run_in_lane`.
        """
        resolved = self.engine.shared.resolve(request)
        with checks_arguments():
            sampler = self.engine.native.make_sampler(resolved.params())
        return replace(resolved, sampler=sampler)

    async def run_in_lane(self, work: Callable[..., T], *args: Any, lane: Lane = "short") -> T:
        """Runs `work(*args)`, the preparation of a request, in a thread. If the caller is cancelled before
        the work starts, the work is dropped.
        """
        return await self._preparing[lane].run(work, *args)

    def stream(
        self, prompt: Prompt | ResolvedRequest, *, watch: bool = False, **options: Unpack[GenerateKeywords]
    ) -> AsyncStream:
        """Queues a generation. Takes the arguments of `Session.stream`, or a request from `resolve`. `watch`:
        keep the counters of `AsyncStream.live` up to date after every chunk.

        Raises QueueFullError, ContextFullError, EngineBrokenError, TypeError, ValueError, all before
        queueing. Unless `resolve` has parsed the grammar, the engine's thread parses it when the generation
        starts.
        """
        engine = self.engine
        if not isinstance(prompt, ResolvedRequest):
            prompt = engine.shared.resolve(GenerationRequest.of(options, prompt=prompt))
        request = prompt
        engine.vocabulary.check_fit(len(request.prompt.tokens))
        task = AsyncGeneration(request, watch, loop=asyncio.get_running_loop())
        with self._worker.changed:
            if self._worker.broken is not None:
                raise EngineBrokenError(f"the engine has failed: {self._worker.broken}; reopen the engine")
            if self._worker.closing != "no":
                raise InvalidStateError("this engine is closing")
            if self.n_waiting + self.n_running >= self._n_queue + len(self._worker.slots):
                raise QueueFullError(f"the queue is full: it has {counted(self.n_waiting, 'request')}")
            self._worker.submit(task)
        # A stream keeps its engine open, because this function refers to the engine.
        return AsyncStream(task, lambda generation: self._worker.cancel(generation))

    async def generate(self, prompt: Prompt, **options: Unpack[GenerateKeywords]) -> Completion:
        """Completes `prompt` and returns the whole result. Takes the arguments of `Session.stream`. A thread
        prepares the prompt and a grammar, so the event loop is not blocked.
        """
        request = GenerationRequest.of(options, prompt=prompt)
        return await self.stream(await self.run_in_lane(self.resolve, request, lane="long")).finish()

    @overload
    async def chat(
        self, messages: MessageList, *, stream: Literal[False] = False, **options: Unpack[ChatKeywords]
    ) -> Completion: ...
    @overload
    async def chat(
        self, messages: MessageList, *, stream: Literal[True], **options: Unpack[ChatKeywords]
    ) -> AsyncStream: ...
    async def chat(
        self, messages: MessageList, *, stream: bool = False, **options: Unpack[ChatKeywords]
    ) -> Completion | AsyncStream:
        """Answers a conversation. Takes the arguments of `Session.chat`, and raises the same errors. A thread
        prepares the prompt and a grammar, so the event loop is not blocked.
        """
        request = GenerationRequest.of(options, messages=messages)
        running = self.stream(await self.run_in_lane(self.resolve, request))
        return running if stream else await running.finish()

    async def embed(
        self,
        texts: Sequence[Prompt],
        *,
        n_ctx: int = 0,
        n_values_max: int = 0,
        **options: Unpack[EmbedKeywords],
    ) -> list[Embedding]:
        """Returns the vectors of a list of texts, as `Engine.embed` does. Computes the vectors between the
        rounds of conversations. Concurrent embeddings requests take turns. n_ctx: maximum tokens of a text,
        if less than the engine's context; n_values_max: maximum values in all vectors together, 0 = no limit.
        Also raises QueueFullError and PreemptedError.
        """
        if self._n_embedding > self._n_queue:
            n_waiting = self._n_embedding - 1
            raise QueueFullError(f"the queue is full: {counted(n_waiting, 'request')} waiting for embeddings")
        vectors: list[Embedding] = []
        begun, ended = time.perf_counter(), threading.Event()
        read = partial(self.engine.embedder.embed, n_ctx=n_ctx, lock=self._worker.turns, is_over=ended.is_set)
        self._n_embedding += 1
        try:
            for first, part in _parts(texts):
                vectors += await self._embedding.run(partial(read, part, n_before=first, **options))
                if self._n_embedding > 1 and 0 < self._worker.slot_time_s < time.perf_counter() - begun:
                    raise preempted(self._worker.slot_time_s)
                n_values = sum(embedding.vector.size for embedding in vectors)
                if n_values_max and n_values * len(texts) > n_values_max * len(vectors):
                    raise InvalidValueError(
                        f"{len(texts)} inputs give {n_values // len(vectors)} values each, but the maximum "
                        f"for all is {n_values_max} values; send fewer inputs at a time"
                    )
        finally:
            ended.set()  # if the caller is cancelled, the embedding stops at the next step
            self._n_embedding -= 1
        return vectors

    async def save_slot(self, number: int, name: str) -> tuple[int, int]:
        """Writes a slot's conversation to a file. Returns the conversation's number of tokens and the bytes
        of the file. `save_slot`, `restore_slot` and `erase_slot` raise UnsupportedError without a prompt
        cache, InvalidValueError for an invalid slot or name, EngineBusyError while the slot is in use, and
        EagleError if the file cannot be written.
        """
        prompts, n_bytes = self._files(), 0
        prompts.slot_file(name)
        async with self._slot_turns:
            state = await self.call(lambda engine: self._worker.slots.free(number).sequence.offload())
            if state is not None and state.n_past > 0:
                n_bytes = await asyncio.wrap_future(prompts.write(state, name))
        if state is None or n_bytes == 0:
            raise InvalidValueError(f"slot {number} is empty, or its file could not be written (see the log)")
        return len(state.tokens), n_bytes

    async def restore_slot(self, number: int, name: str) -> tuple[int, int]:
        """Restores a slot from a file that `save_slot` wrote. Returns the conversation's number of tokens and
        the bytes of the file.
        """
        prompts = self._files()
        async with self._slot_turns:
            state = await asyncio.to_thread(prompts.read_slot, name)

            def restore(engine: Engine) -> bool:
                slot = self._worker.slots.free(number)
                is_restored = state is not None and slot.sequence.restore(state)
                slot.tokens = slot.sequence.tokens
                return is_restored

            is_restored = await self.call(restore)
        if not is_restored or state is None:
            raise InvalidValueError(
                f"{name} cannot be restored: it is missing, damaged, made for another model or other "
                "options, or too large for the context"
            )
        return len(state.tokens), state.n_bytes

    async def erase_slot(self, number: int) -> int:
        """Clears a slot. Returns the number of tokens that were in the slot."""
        self._files()
        return await self.call(lambda engine: self._worker.slots.free(number).clear())

    def _files(self) -> PromptCache:
        if (prompts := self.engine.shared.prompts) is None:
            why = no_cache_reason(self.engine.native, self.engine.model.prompt_cache)
            raise UnsupportedError(f"this model's slots cannot be saved: {why}")
        return prompts

    async def call(self, function: Callable[[Engine], T]) -> T:
        """Runs `function(engine)` in the engine's thread, between two rounds. If the caller is cancelled
        first, the call is dropped.
        """
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(self.engine))
                except BaseException as error:
                    future.set_exception(error)

        with self._worker.changed:
            if not self._worker.thread.is_alive() or self._worker.closing == "now":
                raise InvalidStateError("this engine is closed")
            self._worker.calls.append(run)
            self._worker.changed.notify()
        return await asyncio.wrap_future(future)

    async def close(self, *, grace_s: float = 0.0) -> None:
        """Stops accepting requests, lets running generations finish for `grace_s` seconds, and frees the
        engine.
        """
        self._worker.closing = "when idle"
        self._worker.wake()
        await asyncio.to_thread(self._worker.thread.join, grace_s)
        self._worker.stop()
        await asyncio.to_thread(self._worker.thread.join)

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class _Worker(Scheduler):
    """The thread of an `AsyncEngine`, and its scheduler. A worker has no reference to its `AsyncEngine`, so
    that the garbage collector finds an `AsyncEngine` that was not closed.

    engine: None before the engine is open and after it is closed; calls: functions to run between two rounds
    """

    def __init__(self, engine: Engine | Callable[[], Engine], serving: Serving) -> None:
        cache = HostCache(serving.get("host_cache_bytes", 0))
        super().__init__(cache, serving.get("turns"), reads=False, for_ms=READ_MS)
        self.slot_time_s = serving.get("slot_time_s", 0.0)
        self.n_unread = serving.get("n_unread", 0)
        self.calls: deque[Callable[[], None]] = deque()
        self.closing: Literal["no", "when idle", "now"] = "no"
        self.opened: Future[None] = Future()
        self.engine: Engine | None = None
        run = partial(contextvars.copy_context().run, self._run, engine)
        self.thread = threading.Thread(target=run, name="eaglecpp-engine", daemon=True)
        self.thread.start()
        _started.add(self)

    def stop(self) -> None:
        """Ends all generations and queued calls after the current round. The engine's thread then frees the
        engine.
        """
        self.closing = "now"
        self.wake()

    def _run(self, engine: Engine | Callable[[], Engine]) -> None:
        cancel_when(lambda: self.closing == "now")
        try:
            self.engine = engine if isinstance(engine, Engine) else engine()
            shared = self.engine.shared
            # calls from other threads wait for the running round, so the round cannot fail
            shared.native.waits = True
            sequences = [NativeSequence(shared.native) for _ in range(self.engine.n_free)]
            self.engine.sequences.update(sequences)
            self.open(shared, sequences)
            check_wanted()
        except BaseException as error:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            closed = InvalidStateError("this engine was closed while it was loading")
            self.opened.set_exception(closed if is_cancelled else error)
            self._end_all()  # the queued calls raise an error, because the engine is closed
            return
        self.opened.set_result(None)
        try:
            while self._turn(self.engine):
                pass
        except BaseException as error:  # even a bug in this thread must not let callers wait forever
            _log.exception("the engine's thread failed")
            self.broken = EngineBrokenError(f"the engine has failed: {error!r}")
        finally:
            self._end_all()

    def _turn(self, engine: Engine) -> bool:
        """Runs queued calls, then one round. Returns False when the engine is to end."""
        with self.changed:
            is_complete = engine.exactness.is_complete
            has_work = self.changed.wait_for(self._has_work, None if is_complete else _PAUSE_S)
        if not has_work:
            # The next use of a broken engine raises the error again.
            with contextlib.suppress(EagleError, MemoryError):
                engine.measure_exactness(lambda: self.turns.is_free and not self._has_work())
        with self.changed:
            self.changed.wait_for(self._has_work)
            calls, self.calls, is_over = list(self.calls), deque(), self._is_over
        for call in calls:
            call()
        if is_over or self.broken is not None:
            return False
        send(self.admit(self.slot_time_s))
        send(self.step())
        self.keep()
        send(self._end_unread())
        if self.is_idle:
            engine.measure_for_its_share(lambda: not self._is_over)
        return True

    def _has_work(self) -> bool:
        return bool(self.calls or self.may_admit or self.running or self._is_over)

    def _end_unread(self) -> Updates:
        """Ends generations with too many unread tokens."""
        tasks = [task for task in self.running if isinstance(task, AsyncGeneration)]
        unread = [task for task in tasks if 0 < self.n_unread < task.n_unread]
        for task in unread:
            _log.warning("a generation was cancelled: its reader left %d tokens unread", task.n_unread)
        return self.end(unread, CancelledGenerationError())

    @property
    def _is_over(self) -> bool:
        return self.closing == "now" or (self.closing == "when idle" and self.is_idle)

    def _end_all(self) -> None:
        with self.changed:
            self.closing = "now"
            rest = [*self.running, *self.waiting]
            self.waiting.clear()
            calls, self.calls = list(self.calls), deque()
        send(self.end(rest, self.broken or CancelledGenerationError("the engine was closed")))
        engine, self.engine = self.engine, None
        for call in calls:  # each call raises an error in its caller, because the engine is closed
            call()
        if engine is not None:
            with contextlib.suppress(EagleError):
                engine.close()


_EXIT_S = 120.0  # maximum seconds for which Python's exit waits for running rounds

# Workers whose engines may still be open when Python exits. Python's exit closes these engines, which saves
# their planners' measurements.
_started: weakref.WeakSet[_Worker] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    workers = list(_started)
    for worker in workers:
        worker.stop()
    end = time.monotonic() + _EXIT_S
    for worker in workers:
        worker.thread.join(max(0.0, end - time.monotonic()))
    if n_stuck := sum(worker.thread.is_alive() for worker in workers):
        _log.warning("%s did not stop: one of its calls does not return", counted(n_stuck, "engine"))


def _parts(texts: Any) -> Iterator[tuple[int, Any]]:
    """Splits a list of texts into parts, one part per turn. Yields each part with the index of its first
    text. A value that is not a list becomes one part, which `Embedder.embed` refuses.
    """
    if not isinstance(texts, Sequence) or isinstance(texts, str | bytes):
        yield 0, texts
        return
    sizes = [len(text) if isinstance(text, Sized) else 1 for text in texts]
    first = 0
    for end in range(1, len(texts) + 1):
        is_full = end - first == _EMBEDDED_TEXTS or sum(sizes[first : end + 1]) > _EMBEDDED_CHARS
        if is_full or end == len(texts):
            yield first, texts[first:end]
            first = end
