# SPDX-License-Identifier: MIT
"""Many generations at once: one decode reads the weights once for all conversations that wait for a token.

A task is a generator that asks for a generation (`GenerateJob`), is sent what came of it (`Generated`), may
ask again, and returns its result. `run` keeps as many tasks under way as the engine has sequences. Each
generation depends on its own prompt, options and seed; if the target gives a row the same bits in a batch of
any size (quantised weights on a CPU), it does not depend on the other generations in its batch either.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from eaglecpp.engine.engine import Engine
from eaglecpp.engine.loops import is_looping
from eaglecpp.engine.request import GenerationRequest
from eaglecpp.engine.scheduler import Generation, Scheduler
from eaglecpp.errors import EngineBusyError
from eaglecpp.options import ModelOptions, SamplingOptions

T = TypeVar("T")
_LOOK_EVERY = 32


@dataclass(frozen=True)
class GenerateJob:
    """stop: text that ends it (a turn's end that the model's vocabulary has no token for), b"" for none;
    watch: end it as soon as it repeats itself.
    """

    prompt: Sequence[int]
    sampling: SamplingOptions
    stop: bytes = b""
    watch: bool = True


@dataclass(frozen=True)
class Generated:
    """tokens: with the end token, if it ended itself; finish: "stop" an end token came, "text" the stop text
    came (and is among the tokens), "loop" it began to repeat itself, "length" there was no more room.
    """

    tokens: list[int]
    finish: str


Task = Generator[GenerateJob, Generated, T]


def batch_options(model: ModelOptions, n_sequences: int) -> ModelOptions:
    """`model` for so many conversations, each with a cache of its own: attention then looks at the cells of
    its own conversation instead of those of all.
    """
    return replace(model, n_sequences=n_sequences, separate_caches=n_sequences > 1)


def run(
    engine: Engine, tasks: Iterable[Task[T]], on_tokens: Callable[[int], None] = lambda n: None
) -> Iterator[T]:
    """Runs the tasks, a new one as soon as one has ended; yields their results as they come.

    engine: as many tasks are under way as it has free sequences; with a drafter its strategy is used
    on_tokens: called after each step with the number of its tokens
    Raises EngineBusyError when none is free, and what generating raises; what is under way is then lost.
    """
    if not engine.n_free:
        raise EngineBusyError("all conversations of this engine are open; close one")
    # Sequences that decode together then follow each other in the cache, which llama.cpp wants for one graph
    # over separate caches.
    scheduler = Scheduler(reads_alone=True)
    under_way: dict[Generation, _Running[T]] = {}

    def advance(running: _Running[T], result: Generated | None) -> Iterator[T]:
        """Passes a result to a task and submits what it asks for next; yields its own result at its end."""
        try:
            job = next(running.task) if result is None else running.task.send(result)
        except StopIteration as end:
            yield end.value
            return
        request = running.begin(engine, job)
        under_way[generation := Generation(engine.shared.resolve(request))] = running
        scheduler.submit(generation)

    waiting = iter(tasks)
    with ExitStack() as stack:
        sessions = [stack.enter_context(engine.session()) for _ in range(engine.n_free)]
        scheduler.open(engine.shared, [session.slot for session in sessions])
        stack.callback(scheduler.close)
        while True:
            while len(under_way) < len(sessions) and (task := next(waiting, None)) is not None:
                yield from advance(_Running(task), None)
            if not under_way:
                return
            for generation, event in scheduler.turn():
                if isinstance(event, BaseException):
                    raise event
                if event is None:
                    continue
                on_tokens(len(event.tokens))
                if event.finish_reason is not None and generation.stream is not None:
                    running, tokens = under_way.pop(generation), generation.stream.completion().tokens
                    yield from advance(running, Generated(tokens, running.found or event.finish_reason))
                    if running not in under_way.values():  # the next task must not depend on this one
                        scheduler.slots.free(generation.slot_number).clear()


class _Running(Generic[T]):
    """A task, and what ends the generation that it waits for."""

    def __init__(self, task: Task[T]) -> None:
        self.task = task

    def begin(self, engine: Engine, job: GenerateJob) -> GenerationRequest:
        self._engine, self._job, self._text, self.found = engine, job, b"", ""
        return GenerationRequest(prompt=job.prompt, sampling=job.sampling, stop_when=self._ends)

    def _ends(self, tokens: list[int]) -> bool:
        """Returns whether what the job looks for came with the last token."""
        if self._job.stop:
            self._text += self._engine.token_to_piece(tokens[-1], special=True)
            self.found = "text" if self._job.stop in self._text else ""
        if not self.found and self._job.watch and len(tokens) % _LOOK_EVERY == 0 and is_looping(tokens):
            self.found = "loop"
        return bool(self.found)
