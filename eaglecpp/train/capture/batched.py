# SPDX-License-Identifier: MIT
"""Batched generation: one decode reads the weights once for all running conversations.

A task is a generator that yields a generation request (`GenerateJob`), receives its result (`Generated`), may
yield another request, and returns its own result. `run` runs as many tasks at a time as the engine has
sequences. Each generation depends on its own prompt, options and seed. If the target computes the same bits
in a batch of any size (as with quantised weights on a CPU), a generation does not depend on the other
generations in its batch.
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
    """A generation request. stop: text that ends the generation if the vocabulary has no token for the end of
    a turn, otherwise b""; watch: end the generation when its text repeats itself.
    """

    prompt: Sequence[int]
    sampling: SamplingOptions
    stop: bytes = b""
    watch: bool = True


@dataclass(frozen=True)
class Generated:
    """Result of a generation. tokens: the generated tokens, including an end token; finish: "stop" for an end
    token, "text" for the stop text (whose tokens are included), "loop" for repetition, "length" for a full
    context.
    """

    tokens: list[int]
    finish: str


Task = Generator[GenerateJob, Generated, T]


def batch_options(model: ModelOptions, n_sequences: int) -> ModelOptions:
    """Returns the options `model`, changed for `n_sequences` conversations with separate caches, so that
    attention only reads the cells of its own conversation.
    """
    return replace(model, n_sequences=n_sequences, separate_caches=n_sequences > 1)


def run(
    engine: Engine, tasks: Iterable[Task[T]], on_tokens: Callable[[int], None] = lambda n: None
) -> Iterator[T]:
    """Runs the tasks, and starts a new task whenever another ends. Yields the tasks' results in order of
    completion.

    engine: runs as many tasks at a time as it has free sequences; if it has a drafter, its strategy is used
    on_tokens: called after each step with the number of tokens that the step generated Raises EngineBusyError
    if no sequence is free, and the errors of generating; running tasks are then lost.
    """
    if not engine.n_free:
        raise EngineBusyError("all conversations of this engine are open; close a conversation")
    # With `reads_alone`, sequences that decode together are adjacent in the cache. llama.cpp needs adjacent
    # sequences to compute separate caches in one graph.
    scheduler = Scheduler(reads_alone=True, for_ms=0.0)
    under_way: dict[Generation, _Running[T]] = {}

    def advance(running: _Running[T], result: Generated | None) -> Iterator[T]:
        """Sends a result to a task, and submits the task's next request. If the task has ended, yields the
        task's result.
        """
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
                    # The caches are cleared, so that the next task does not depend on this task.
                    if running not in under_way.values():
                        scheduler.slots.free(generation.slot_number).clear()


class _Running(Generic[T]):
    """A running task, and the end conditions of its current generation."""

    def __init__(self, task: Task[T]) -> None:
        self.task = task

    def begin(self, engine: Engine, job: GenerateJob) -> GenerationRequest:
        self._engine, self._job, self._text, self.found = engine, job, b"", ""
        return GenerationRequest(prompt=job.prompt, sampling=job.sampling, stop_when=self._ends)

    def _ends(self, tokens: list[int]) -> bool:
        """Returns True if the last token completed the stop text or a repetition of the text."""
        if self._job.stop:
            self._text += self._engine.token_to_piece(tokens[-1], special=True)
            self.found = "text" if self._job.stop in self._text else ""
        if not self.found and self._job.watch and len(tokens) % _LOOK_EVERY == 0 and is_looping(tokens):
            self.found = "loop"
        return bool(self.found)
