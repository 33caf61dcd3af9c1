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
from typing import Any, Literal, TypeVar

from eaglecpp.engine.engine import Engine
from eaglecpp.engine.loops import is_looping
from eaglecpp.engine.session import Session
from eaglecpp.engine.stream import Stream, next_chunks
from eaglecpp.errors import EngineBusyError
from eaglecpp.options import ModelOptions, SamplingOptions
from eaglecpp.results import Chunk

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
    finish: Literal["stop", "text", "loop", "length"]


Task = Generator[GenerateJob, Generated, T]


def batch_options(model: ModelOptions, n_sequences: int) -> ModelOptions:
    """`model` for so many conversations, each with a cache of its own: attention then looks at the cells of
    its own conversation instead of those of all.
    """
    return replace(model, n_sequences=n_sequences, separate_caches=n_sequences > 1)


def run(
    engine: Engine, tasks: Iterable[Task[T]], on_tokens: Callable[[int], None] = lambda n: None
) -> Iterator[T]:
    """Runs the tasks, a new one as soon as one has ended; gives their results as they come.

    engine: as many tasks are under way as it has free sequences; with a drafter its strategy is used
    on_tokens: is told after each step how many tokens it gave
    Raises EngineBusyError when none is free, and what generating raises; what is under way is then lost.
    """
    if not engine.n_free:
        raise EngineBusyError("all conversations of this engine are open; close one")
    waiting = iter(tasks)
    with ExitStack() as stack:
        sessions = [stack.enter_context(engine.session()) for _ in range(engine.n_free)]
        places = [_Place(engine, session, on_tokens) for session in sessions]
        while True:
            for place in places:
                while place.stream is None and (task := next(waiting, None)) is not None:
                    yield from place.advance(task, None)
            busy = [(place, place.stream) for place in places if place.stream is not None]
            if not busy:
                return
            chunks = next_chunks([stream for _, stream in busy])
            for (place, stream), chunk in zip(busy, chunks, strict=True):
                yield from place.take(stream, chunk)


class _Place:
    """A conversation of the engine, and the task that it serves."""

    def __init__(self, engine: Engine, session: Session, on_tokens: Callable[[int], None]) -> None:
        self._engine, self._session, self._on_tokens = engine, session, on_tokens
        self.stream: Stream | None = None

    def advance(self, task: Task[Any], generated: Generated | None) -> Iterator[Any]:
        """Hands a task what it asked for and begins what it asks for next; gives its result if it has
        ended.
        """
        try:
            job = next(task) if generated is None else task.send(generated)
        except StopIteration as end:
            self.stream = None
            self._session.clear()  # the next task must not depend on this one
            yield end.value
            return
        self._task, self._job, self._text, self._found = task, job, b"", ""
        self.stream = self._session.stream(job.prompt, sampling=job.sampling, stop_when=self._ends)
        # The prompt is read alone, up to its first token: sequences that decode together then follow each
        # other in the cache, which llama.cpp wants for one graph over separate caches.
        yield from self.take(self.stream, next(self.stream))

    def _ends(self, tokens: list[int]) -> bool:
        """Whether what the job looks for came with the last token."""
        if self._job.stop:
            self._text += self._engine.token_to_piece(tokens[-1], special=True)
            self._found = "text" if self._job.stop in self._text else ""
        if not self._found and self._job.watch and len(tokens) % _LOOK_EVERY == 0 and is_looping(tokens):
            self._found = "loop"
        return bool(self._found)

    def take(self, stream: Stream, chunk: Chunk | BaseException | None) -> Iterator[Any]:
        """Adds what a step gave; goes on with the task when its generation has ended."""
        if isinstance(chunk, BaseException):
            raise chunk
        assert chunk is not None, "its prompt was read"
        self._on_tokens(len(chunk.tokens))
        if chunk.finish_reason is not None:
            finish: Any = self._found or chunk.finish_reason
            yield from self.advance(self._task, Generated(stream.completion().tokens, finish))
