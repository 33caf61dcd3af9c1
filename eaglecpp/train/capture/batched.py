# SPDX-License-Identifier: MIT
"""Many generations at once: one decode reads the weights once for all conversations that wait for a token.

A task is a generator that asks for a generation (`GenerateJob`), is sent what came of it (`Generated`), may
ask again, and returns its result. `run` keeps as many tasks under way as the engine has sequences. Each
generation depends on its own prompt, options and seed; if the target gives a row the same bits in a batch of
any size (quantised weights on a CPU), it does not depend on the other generations in its batch either.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from eaglecpp.engine.engine import Engine
from eaglecpp.engine.request import generate_params
from eaglecpp.errors import EngineBusyError
from eaglecpp.options import ModelOptions, SamplingOptions
from eaglecpp.results import Timings

__all__ = ["GenerateJob", "Generated", "Task", "batch_options", "is_looping", "loop_start", "run"]

T = TypeVar("T")
_LOOP_TOKENS = 48
"""A tail that repeats itself over so many tokens, and at least four times, is a loop."""
_LOOP_PERIOD = 64
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
    with engine.exclusive() as native:
        slots = {(n := native.open_sequence()): _Slot(n, on_tokens) for _ in range(engine.n_free)}
    try:
        while True:
            for slot in slots.values():
                while slot.task is None and (task := next(waiting, None)) is not None:
                    yield from _advance(engine, slot, task, None)
            busy = [number for number, slot in slots.items() if slot.task is not None]
            if not busy:
                return
            with engine.exclusive() as native:
                results = native.step(busy)
            for result in results:
                yield from _take(engine, slots[result.sequence], result)
    finally:
        if not engine.closed:
            with engine.exclusive() as native:
                for number in slots:
                    native.close_sequence(number)


@dataclass
class _Slot:
    """A sequence of the engine and the task that it serves."""

    sequence: int
    on_tokens: Callable[[int], None]
    task: Task[Any] | None = None
    job: GenerateJob | None = None
    tokens: list[int] = field(default_factory=list)
    text: bytes = b""


def _advance(engine: Engine, slot: _Slot, task: Task[T], generated: Generated | None) -> Iterator[T]:
    """Hands a task what it asked for and begins what it asks for next; gives its result if it has ended."""
    try:
        job = next(task) if generated is None else task.send(generated)
    except StopIteration as end:
        slot.task = slot.job = None
        with engine.exclusive() as native:
            native.clear(slot.sequence)  # the next task must not depend on this one
        yield end.value
        return
    slot.task, slot.job, slot.tokens, slot.text = task, job, [], b""
    strategy, _ = engine.resolve(engine.strategy)
    params = generate_params(job.sampling, int(job.sampling.seed or 0), strategy)
    with engine.exclusive() as native:
        native.begin(slot.sequence, list(job.prompt), params)
    # The prompt is read alone, up to its first token: sequences that decode together then follow each other
    # in the cache, which llama.cpp wants for one graph over separate caches.
    while not slot.tokens and slot.task is task:
        with engine.exclusive() as native:
            (result,) = native.step([slot.sequence])
        yield from _take(engine, slot, result)


def _take(engine: Engine, slot: _Slot, result: Any) -> Iterator[Any]:
    """Adds what a step gave; goes on with the task when its generation has ended."""
    assert slot.task is not None and slot.job is not None
    if result.error is not None:
        raise result.error
    slot.tokens += result.tokens
    slot.on_tokens(len(result.tokens))
    finish: Any = result.finish or None
    if finish is None and slot.job.stop:
        slot.text += b"".join(engine.token_to_piece(token, special=True) for token in result.tokens)
        finish = "text" if slot.job.stop in slot.text else None
    if finish is None and slot.job.watch and len(slot.tokens) % _LOOK_EVERY == 0 and result.tokens:
        finish = "loop" if is_looping(slot.tokens) else None
    if finish is not None:
        with engine.exclusive() as native:
            native.end(slot.sequence)
            raw = native.timings(slot.sequence)
        engine.count(
            Timings.from_raw(raw, predicted_n=len(slot.tokens), plan={"strategy": str(engine.strategy)})
        )
        yield from _advance(engine, slot, slot.task, Generated(slot.tokens, finish))


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether a text ends in repetitions of its last few words."""
    return _period(tokens) > 0


def loop_start(tokens: Sequence[int]) -> int:
    """How many tokens come before the words that a text then repeats to no end, and those words said once;
    all of them if it never does.
    """
    for n in range(_LOOP_TOKENS, len(tokens) + 1):
        if period := _period(tokens[:n]):
            while n > period and tokens[n - 1] == tokens[n - 1 - period]:
                n -= 1
            return n
    return len(tokens)


def _period(tokens: Sequence[int]) -> int:
    """Length of what a text repeats at its end, 0 for nothing."""
    for period in range(1, min(_LOOP_PERIOD, len(tokens) // 4) + 1):
        n = max(4 * period, -(-_LOOP_TOKENS // period) * period)
        if n <= len(tokens) and tokens[-n:-period] == tokens[-n + period :]:
            return period
    return 0
