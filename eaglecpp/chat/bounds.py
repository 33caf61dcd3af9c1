# SPDX-License-Identifier: MIT
"""Limits for chat templates: size, memory, characters and time.

A template comes with a model and may be hostile. What a compiler needs grows faster than the text, so the
text and its tokens are bounded before one sees them. Two rules bound a rendering in either language: no value
is larger than `MAX_CHARS` or `MAX_VALUE`, nested ones counted as if nothing in them were shared, so one
operation cannot take long; and everything that is made is paid for from one `Budget`, which looks at the time
as well, so many operations cannot either.

A child process would bound both without knowing any filter, but a library that starts processes is a nuisance
to the program that uses it, and neither Windows nor macOS bounds the memory of one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import GeneratorType
from typing import Any, TypeVar, cast

from eaglecpp.errors import TemplateError
from eaglecpp.human import human_bytes

T = TypeVar("T")

MAX_TEMPLATE = 256 << 10
"""Characters of a template; the longest known one has 30 thousand."""
MAX_TOKENS = 16_384
"""Words and signs of a template's language; the longest known ones have 2,500. What costs most of so many
takes 4 s (loops within each other) and 160 MiB (imported names) to compile.
"""
MAX_NESTING = 64
"""Levels of a template's syntax tree; known ones have 30. Jinja looks through the inner levels again for each
outer one.
"""
MAX_CHARS = 16 << 20
"""Characters of output, and of any value."""
MAX_PRODUCT = 32 << 20
"""Of the sizes of two values, where one operation may make so much of them, or take so many steps."""
MAX_VALUE = 64 << 20
"""Bytes of a list or dictionary with all that is in it."""
MAX_BYTES = 256 << 20
"""Bytes of everything that one rendering makes, added up."""
MAX_SECONDS = 10.0
"""Of computing, for one rendering and for all that `rendered_together` holds: a busy machine makes no honest
template hostile, and templates cannot wait.
"""

NODE = 64
"""Bytes of a value without its characters."""
_SMALL = 1024  # bytes of a flat list or dictionary that is measured again each time
_MAX_DEPTH = 100  # Python hashes nested tuples on the stack, without a limit of its own
_MAX_BITS = 16_384
_LOOK_S = 0.01  # from one look at the thread's clock to the next
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, *_VIEWS)


def failed(why: str, line: int = 0) -> TemplateError:
    """The error of a template."""
    return TemplateError(why, line, name="chat_template")


def stopped(why: str) -> TemplateError:
    """The error of a template that goes beyond a limit."""
    return failed(f"stopped: {why}")


class Budget:
    """What one rendering has left. Raises TemplateError where those before it took all the time."""

    def __init__(self) -> None:
        self.measures: dict[int, tuple[Any, tuple[int, int]]] = {}
        self._n_bytes = 0
        self._deadline = min(time.thread_time() + MAX_SECONDS, _deadline.get())
        self._look_at = 0.0
        self.check_time()

    def spend(self, n_bytes: int) -> None:
        """So much is about to be made or looked through."""
        self._n_bytes += n_bytes
        if self._n_bytes > MAX_BYTES:
            raise stopped(f"it needs more than {human_bytes(MAX_BYTES)}")
        if n_bytes > 4096:
            self.check_time()

    def check_time(self) -> None:
        """Between two pieces of work. The thread's own clock costs a system call, any clock tells when a look
        at it can be worth it.
        """
        now = time.perf_counter()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            if time.thread_time() > self._deadline:
                raise stopped(f"it takes longer than {MAX_SECONDS:.0f} s")


budget: ContextVar[Budget] = ContextVar("budget")
_deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))


@contextmanager
def held(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Inside the block a variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def budgeted() -> AbstractContextManager[None]:
    """What one rendering makes inside is paid for from one budget."""
    return held(budget, Budget())


def rendered_together() -> AbstractContextManager[None]:
    """All renderings inside, which have to be in this thread, share the time of one. Whoever makes room in a
    prompt renders it many times.
    """
    return held(_deadline, min(time.thread_time() + MAX_SECONDS, _deadline.get()))


def check_time_left() -> None:
    """Raises TemplateError when the renderings together took all their time."""
    Budget()


def check_size(text: str) -> None:
    """Before a template is read at all. Raises TemplateError."""
    if len(text) > MAX_TEMPLATE:
        raise failed(f"{len(text)} characters, at most {MAX_TEMPLATE}")


def chars(n: int) -> None:
    """Asks for a text of so many characters."""
    if n > MAX_CHARS:
        raise failed(f"stopped after {MAX_CHARS} characters of output")
    budget.get().spend(n)


def joined(parts: Iterable[str]) -> str:
    """A text of parts that are paid for."""
    n_chars, kept = 0, []
    for part in parts:
        n_chars += len(part)
        kept.append(part)
        if n_chars > MAX_CHARS:
            break
    chars(n_chars)
    return "".join(kept)


def measure(value: Any, level: int = 0) -> tuple[int, int]:
    """At least the characters of a value's text, of its JSON, and its bytes, with all that it holds, shared
    parts as often as they are held; and how deep it is nested. Remembered, because templates cannot change
    lists and dictionaries. Raises TemplateError beyond the limits.
    """
    if isinstance(value, str):
        return NODE + len(value) * (2 if value.isascii() and value.isprintable() else 12), 0
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise stopped(f"a number of {value.bit_length()} bits")
        return NODE + value.bit_length() // 3, 0
    if not isinstance(value, _CONTAINERS):
        return 4 * NODE, 0
    left = budget.get()
    if id(value) in left.measures:
        return left.measures[id(value)][1]
    size, depth = NODE, 0
    left.check_time()
    parts = [*value, *value.values()] if isinstance(value, dict) else list(cast(Iterable[Any], value))
    for part in parts:
        part_size, part_depth = measure(part, level + 1)
        size += part_size + NODE
        depth = max(depth, part_depth)
        if size > MAX_VALUE:
            raise stopped(f"a value of more than {human_bytes(MAX_VALUE)}")
    if max(depth, level) >= _MAX_DEPTH:
        raise stopped("a value nested too deeply")
    if (depth or size > _SMALL) and not isinstance(value, _VIEWS):
        left.measures[id(value)] = value, (size, depth + 1)  # held, so that its id stays its own
        left.spend(4 * NODE)
    return size, depth + 1


def made(value: Any) -> Any:
    """A value that was just made: paid for, and counted where it is made bit by bit."""
    budget.get().check_time()  # a comparison, for one, may have looked through two large values
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, Iterator):
        return counted(value)
    measure(value)
    if isinstance(value, list | tuple | dict):
        budget.get().spend(NODE * (1 + len(value)))
    return value


def counted(values: Iterable[Any]) -> Iterable[Any]:
    """A loop. One that is counted is not counted again: a template could put thousands into each other, and
    Python runs and frees those on the stack.
    """
    is_one = isinstance(values, GeneratorType) and values.gi_code is _counting.__code__
    return values if is_one else _counting(values)


def _counting(values: Iterable[Any]) -> Iterator[Any]:
    left = budget.get()
    for value in values:
        left.check_time()
        yield value


def as_text(value: Any) -> str:
    """`str(value)`, paid for: characters beyond ASCII take up to four bytes."""
    if not isinstance(value, str):
        chars(measure(value)[0])
        return str(value)
    if len(value) > MAX_CHARS:
        chars(len(value))
    budget.get().spend(sys.getsizeof(value) + 8)
    return value
