# SPDX-License-Identifier: MIT
"""`AsyncEngine`: one engine, one thread that steps it, and any number of asyncio tasks that wait for text.

    engine = await AsyncEngine.open("target.gguf", draft="draft.gguf", n_parallel=4)
    async with engine.stream("def main():", max_tokens=128) as stream:
        async for chunk in stream:
            ...

Everything native happens in the engine's own thread. Between two rounds it admits waiting requests and drops
cancelled ones; then every conversation that is generating takes a round, all drafted together and verified
in one batch, and a slice of a prompt that is being read is a part of that batch. So each of them gets at
least one token per turn of the loop, and none waits longer than a slice takes for another's prompt. A
request gets the free conversation whose cached text its prompt continues; what any other conversation begins
with is taken over from there. A conversation that has to make room for another one can be parked in host
memory, and comes back with the next prompt that goes on from it.

An error belongs to the request that caused it. One inside a batch ends the requests of that batch, because
nobody knows whose it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from eaglecpp.engine.engine import Engine
from eaglecpp.engine.parking import WORTH, ParkingLot, n_common
from eaglecpp.engine.request import Request, make_request
from eaglecpp.engine.sequence import NativeSequence
from eaglecpp.engine.stream import Stream, next_chunks
from eaglecpp.errors import ContextFullError, EagleError, EngineBrokenError, QueueFullError

if TYPE_CHECKING:
    from eaglecpp.engine.vocabulary import Prompt
    from eaglecpp.results import Chunk, Completion

__all__ = ["AsyncEngine", "AsyncStream", "TurnLock"]

T = TypeVar("T")
_log = logging.getLogger("eaglecpp.async")
_REUSE_LEAST = 4  # a prompt that shares less than 1/4 of itself with a text does not claim that text's place


class TurnLock:
    """A lock that is handed on in the order of asking.

    Engines that share a machine take turns with it: two that compute at the same time are slower than one
    after the other. A plain lock may be taken again at once by the thread that has just left it.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._next = self._serving = 0

    def __enter__(self) -> Self:
        with self._condition:
            mine, self._next = self._next, self._next + 1
            while self._serving != mine:
                self._condition.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._condition:
            self._serving += 1
            self._condition.notify_all()


@dataclass(eq=False)
class _Task:
    """One request, from the queue to its last event. The engine's thread writes all but `cancelled`."""

    request: Request
    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[tuple[str, Any]]
    asked: float = field(default_factory=time.perf_counter)
    begun: float = 0.0
    cancelled: bool = False
    place: _Place | None = None
    stream: Stream | None = None
    is_prefilling: bool = True
    watch: bool = False
    live: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class _Place:
    """One of the engine's conversations: what its caches hold, and who uses it."""

    sequence: NativeSequence
    tokens: list[int] = field(default_factory=list)
    task: _Task | None = None
    used: float = 0.0


class AsyncStream(AsyncIterator["Chunk"]):
    """A running or waiting generation: `async for` gives chunks, `completion()` the result so far.

    Leaving `async with`, or `cancel()`, frees its place before the next round.
    """

    def __init__(self, engine: AsyncEngine, task: _Task) -> None:
        self._engine = engine
        self._task = task
        self._held: list[tuple[str, Any]] = []
        self._is_over = False

    @property
    def prompt_tokens(self) -> list[int]:
        return list(self._task.request.prompt)

    @property
    def queue_ms(self) -> float:
        """How long it waited for a place; until now if it still does."""
        return 1000 * ((self._task.begun or time.perf_counter()) - self._task.asked)

    async def started(self, timeout: float | None = None) -> bool:
        """Waits until the engine has taken the request up, and raises what kept it from doing so. False when
        `timeout` seconds were not enough.
        """
        if self._task.begun or self._held or self._is_over:
            return True
        try:
            async with asyncio.timeout(timeout):  # wait_for may lose a cancellation until Python 3.12
                event = await self._task.events.get()
        except TimeoutError:
            return False
        if event[0] == "error":
            self._is_over = True
            raise event[1]
        if event[0] != "begun":
            self._held.append(event)
        return True

    async def __anext__(self) -> Chunk:
        while not self._is_over:
            kind, value = self._held.pop(0) if self._held else await self._task.events.get()
            if kind == "chunk":
                self._is_over = value.finish_reason is not None
                chunk: Chunk = value
                return chunk
            if kind in ("error", "cancelled"):
                self._is_over = True
                if kind == "error":
                    raise value
        raise StopAsyncIteration

    def completion(self) -> Completion:
        """Everything generated so far. Before the first chunk there is nothing: ValueError."""
        if self._task.stream is None:
            raise ValueError("this generation has not begun")
        return self._task.stream.completion()

    @property
    def live(self) -> dict[str, Any]:
        """The native counters after the last chunk; only with `watch`."""
        return self._task.live

    def cancel(self) -> None:
        """Ends the generation before the next round. What it gave stays."""
        self._is_over = True
        self._engine._cancel(self._task)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if not self._is_over:
                self.cancel()


class AsyncEngine:
    """Serves many asyncio tasks from one `Engine`, which it owns and closes.

    n_queue:    requests that may wait for a place
    n_park_bytes: host memory for conversations that wait to go on
    turns:      a lock shared with other engines of this machine, see `TurnLock`
    """

    def __init__(
        self,
        engine: Engine | Callable[[], Engine],
        *,
        n_queue: int = 512,
        n_park_bytes: int = 0,
        turns: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._n_queue = n_queue
        self._turns = turns if turns is not None else contextlib.nullcontext()
        self._condition = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._running: list[_Task] = []
        self._places: list[_Place] = []
        self._lot = ParkingLot(n_park_bytes)
        self._closing: Literal["no", "when idle", "now"] = "no"
        self._broken: BaseException | None = None
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._run, args=(engine,), name="eaglecpp-engine", daemon=True)
        self._thread.start()

    @classmethod
    async def open(
        cls,
        target: Any,
        draft: Any = None,
        *,
        n_parallel: int = 4,
        n_queue: int = 512,
        n_park_bytes: int = 0,
        turns: AbstractContextManager[Any] | None = None,
        **options: Any,
    ) -> Self:
        """Opens an engine as `Engine.open` does, with room for `n_parallel` conversations at a time."""
        own = cls(
            lambda: Engine.open(target, draft, n_sequences=n_parallel, **options),
            n_queue=n_queue,
            n_park_bytes=n_park_bytes,
            turns=turns,
        )
        return await own.ready()

    async def ready(self) -> Self:
        """Waits until the engine is open; raises what kept it from opening."""
        await asyncio.to_thread(self.wait_opened)
        return self

    def wait_opened(self) -> None:
        """As `ready`, for a thread that may wait."""
        self._opened.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def engine(self) -> Engine:
        """The engine itself, for facts and the tokenizer. Generating is for the methods here."""
        if self._engine is None:
            raise ValueError("this engine is closed")
        return self._engine

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_parked(self) -> tuple[int, int]:
        """Conversations that wait in host memory to go on, and their bytes."""
        return len(self._lot), self._lot.n_bytes

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._waiting

    @property
    def broken(self) -> BaseException | None:
        """Why this engine can generate no more; None while it can."""
        return self._broken

    # Generating

    def stream(self, prompt: Prompt, *, watch: bool = False, **options: Any) -> AsyncStream:
        """Queues a generation; arguments as `Session.stream`. What can be wrong with them is raised here.
        `watch`: keep counters up to date after every chunk, see `AsyncStream.live`.

        Raises QueueFullError, ContextFullError, EngineBrokenError, TypeError, ValueError. A grammar is parsed
        when the generation begins.
        """
        engine = self.engine
        request = make_request(engine.shared, prompt, **options)
        check_fit(len(request.prompt), engine)
        task = _Task(request, asyncio.get_running_loop(), asyncio.Queue(), watch=watch)
        with self._condition:
            if self._broken is not None:
                raise EngineBrokenError(f"the engine has failed: {self._broken}; open it anew")
            if self._closing != "no":
                raise ValueError("this engine is closing")
            if len(self._waiting) >= self._n_queue:
                raise QueueFullError(
                    f"the queue is full: {len(self._waiting)} requests wait for {len(self._places)} places"
                )
            self._waiting.append(task)
            self._condition.notify()
        return AsyncStream(self, task)

    async def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Completes `prompt` and returns the whole result."""
        async with self.stream(prompt, **options) as stream:
            async for _ in stream:
                pass
            return stream.completion()

    async def chat(self, messages: Sequence[Any], **options: Any) -> Completion:
        """Answers a conversation through the model's chat template; `template`, `tools`, `think` as there."""
        of_prompt = {name: options.pop(name) for name in ("template", "tools", "think") if name in options}
        prompt = await asyncio.to_thread(self.engine.chat_prompt, messages, **of_prompt)
        return await self.generate(prompt, **options)

    async def call(self, function: Callable[[Engine], T]) -> T:
        """Runs `function(engine)` in the engine's thread, between two rounds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = function(self.engine)
            except BaseException as error:
                _post(loop, _settle_error, future, error)
            else:
                _post(loop, _settle, future, result)

        with self._condition:
            if not self._thread.is_alive() or self._closing == "now":
                raise ValueError("this engine is closed")
            self._calls.append(run)
            self._condition.notify()
        return await future

    async def close(self, *, grace_s: float = 0.0) -> None:
        """Takes nothing new, gives what runs `grace_s` seconds to end, ends the rest, frees the engine."""
        with self._condition:
            self._closing = "when idle"
            self._condition.notify()
        await asyncio.to_thread(self._thread.join, grace_s)
        with self._condition:
            self._closing = "now"
            self._condition.notify()
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _cancel(self, task: _Task) -> None:
        with self._condition:
            task.cancelled = True
            self._condition.notify()

    # The engine's thread

    def _run(self, engine: Engine | Callable[[], Engine]) -> None:
        try:
            self._engine = engine if isinstance(engine, Engine) else engine()
            shared = self._engine.shared
            self._places = [_Place(NativeSequence(shared.native)) for _ in range(self._engine.n_free)]
        except BaseException as error:
            self._failure = error
            self._closing = "now"
            return
        finally:
            self._opened.set()
        try:
            while self._turn():
                pass
        except BaseException as error:  # a fault of this module: nobody may wait for ever
            _log.exception("the engine's thread ends")
            self._broken = error
        finally:
            self._end_all()

    def _turn(self) -> bool:
        """One turn: everything between two rounds, and a round. False at the end."""
        with self._condition:
            while not (self._calls or self._waiting or self._running or self._closing != "no"):
                self._condition.wait()
            calls, self._calls = list(self._calls), deque()
            is_over = self._closing == "now" or (self._closing == "when idle" and self.is_idle)
        for call in calls:
            call()
        if is_over or self._broken is not None:
            return False
        self._drop_cancelled()
        self._admit()
        tasks = self._reading() + [task for task in self._running if not task.is_prefilling]
        if tasks:
            self._step(tasks)
        return True

    def _reading(self) -> list[_Task]:
        """Whose prompt is read in this turn: the first one's, and others' as long as all fit in a slice."""
        found: list[_Task] = []
        n_rows = 0
        for task in self._running:
            if not task.is_prefilling:
                continue
            n_rows += len(task.request.prompt)
            if found and n_rows > self.engine.native.n_shared_rows:
                break
            found.append(task)
        return found

    def _drop_cancelled(self) -> None:
        with self._condition:
            gone = [task for task in self._waiting if task.cancelled]
            for task in gone:
                self._waiting.remove(task)
        for task in gone:
            _tell([(task, "cancelled", None)])
        for task in [task for task in self._running if task.cancelled]:
            self._leave(task)
            _tell([(task, "cancelled", None)])

    def _admit(self) -> None:
        while True:
            free = [place for place in self._places if place.task is None]
            with self._condition:
                if not free or not self._waiting:
                    return
                task = self._waiting.popleft()
            try:
                place = self._place_for(free, task.request.prompt)
                task.stream = Stream(place.sequence, self.engine.shared, task.request)
            except Exception as error:
                self._note_broken(error)
                _tell([(task, "error", error)])
                continue
            task.place, place.task, place.tokens = place, task, task.request.prompt
            task.begun = time.perf_counter()
            self._running.append(task)
            _tell([(task, "begun", None)])

    def _place_for(self, free: list[_Place], prompt: list[int]) -> _Place:
        """The place whose text the prompt goes on from, which may come from the parking lot. What another
        conversation loses there goes to the lot.
        """
        place = _best_place(free, prompt)
        n_kept = n_common(place.tokens, prompt)
        parked, n_parked = self._lot.find(prompt)
        # what another place holds is copied from there
        if parked and n_parked < WORTH + max(n_common(one.tokens, prompt) for one in self._places):
            parked = None
        if parked:
            place, n_kept = _unused_longest(free), 0
        self._lot.park(place.sequence, place.tokens, n_kept)
        if parked:
            self._lot.bring_back(place.sequence, parked, n_parked)
            place.tokens = place.sequence.tokens
        return place

    def _step(self, tasks: list[_Task]) -> None:
        """One slice of a prompt, or one round, of each of these."""
        streams = [task.stream for task in tasks if task.stream is not None]
        try:
            with self._turns:
                results = next_chunks(streams)
        except Exception as error:
            self._note_broken(error)
            for task in tasks:
                self._leave(task)
            _tell([(task, "error", error) for task in tasks])
            return
        events: list[tuple[_Task, str, Any]] = []
        for task, result in zip(tasks, results, strict=True):
            if isinstance(result, BaseException):
                self._leave(task)
                events.append((task, "error", result))
            elif result is not None:
                task.is_prefilling = False
                if task.watch and task.place is not None:
                    task.live = task.place.sequence.timings()
                if result.finish_reason is not None:
                    self._leave(task)
                events.append((task, "chunk", result))
        _tell(events)

    def _leave(self, task: _Task) -> None:
        """Ends a task and gives its place free. Its text stays cached there."""
        if task.stream is not None:
            task.stream.close()
        place, task.place = task.place, None
        if place is not None:
            place.task, place.used = None, time.perf_counter()
            with contextlib.suppress(EagleError, ValueError):
                place.tokens = place.sequence.tokens
        with contextlib.suppress(ValueError):
            self._running.remove(task)

    def _note_broken(self, error: BaseException) -> None:
        if isinstance(error, EngineBrokenError):
            self._broken = error

    def _end_all(self) -> None:
        with self._condition:
            self._closing = "now"
            rest = [*self._waiting]
            self._waiting.clear()
            calls, self._calls = list(self._calls), deque()
        running, error = list(self._running), self._broken
        for task in running:
            self._leave(task)
        event = ("cancelled", None) if error is None else ("error", _broken_error(error))
        _tell([(task, *event) for task in (*running, *rest)])
        engine, self._engine = self._engine, None
        for call in calls:  # each finds a closed engine, and says so to whoever waits
            call()
        if engine is not None:
            with contextlib.suppress(EagleError):
                engine.close()


def check_fit(n_prompt: int, engine: Engine) -> None:
    """Raises ContextFullError for a prompt that leaves no room for an answer."""
    if n_prompt >= engine.n_ctx:
        raise ContextFullError(
            f"the prompt has {n_prompt} tokens but the context holds {engine.n_ctx} and the answer needs "
            "room; "
            f"raise n_ctx (the model was trained for {engine.native.n_ctx_train}) or shorten the prompt"
        )


def _best_place(free: Sequence[_Place], prompt: list[int]) -> _Place:
    """The one whose text the prompt shares most of; where that is little, an unused one or the one left
    longest ago, so that texts that may go on stay.
    """
    shared = {id(place): n_common(place.tokens, prompt) for place in free}
    best = max(free, key=lambda place: (shared[id(place)], -place.used))
    return best if shared[id(best)] * _REUSE_LEAST >= len(prompt) else _unused_longest(free)


def _unused_longest(free: Sequence[_Place]) -> _Place:
    return min(free, key=lambda place: (bool(place.tokens), place.used))


def _tell(events: Sequence[tuple[_Task, str, Any]]) -> None:
    """Hands events to the tasks' loops, one wake-up for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Task, str, Any]]] = {}
    for event in events:
        by_loop.setdefault(event[0].loop, []).append(event)
    for loop, own in by_loop.items():
        _post(loop, _put, own)


def _put(events: Sequence[tuple[_Task, str, Any]]) -> None:
    for task, kind, value in events:
        task.events.put_nowait((kind, value))


def _post(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    with contextlib.suppress(RuntimeError):  # a closed loop: nobody listens any more
        loop.call_soon_threadsafe(function, *arguments)


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _settle_error(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _broken_error(error: BaseException) -> EngineBrokenError:
    return (
        error
        if isinstance(error, EngineBrokenError)
        else EngineBrokenError(f"the engine has failed: {error!r}")
    )
