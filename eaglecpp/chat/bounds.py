# SPDX-License-Identifier: MIT
"""Limits for chat templates: size, memory, characters and time.

A template comes with a model and may be hostile. The time and memory of a compiler grow faster than the text,
so the length of a template and its number of tokens are limited before it is compiled. Two rules limit a
rendering in Jinja or Go's language. The first rule: no value is larger than `MAX_CHARS` or `MAX_VALUE`, with
shared parts counted each time, so no single operation takes long. The second rule: all values are charged to
one `Budget`, which also checks the time, so many operations together do not take long either.

Rendering in a child process is no alternative: a library should not start processes in other programs, and
Windows and macOS do not limit the memory of a process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import datetime
from types import GeneratorType
from typing import Any, TypeVar, cast

from eaglecpp.errors import TemplateError
from eaglecpp.human import human_bytes

T = TypeVar("T")

MAX_TEMPLATE = 256 << 10
"""Maximum characters of a template. The longest known template has 30 thousand."""
MAX_TOKENS = 16_384
"""Maximum tokens of a template, as its language counts tokens. The longest known template has 2,500. The
worst templates of the maximum length take 4 s (nested loops) or 160 MiB (imported names) to compile.
"""
MAX_NESTING = 64
"""Maximum levels of a template's syntax tree. Known templates have up to 30 levels. Jinja visits the inner
levels again for each outer level.
"""
MAX_CHARS = 16 << 20
"""Maximum characters of the output, and of any text value."""
MAX_PRODUCT = 32 << 20
"""Maximum product of the sizes of an operation's two values, if the operation may take that many steps."""
MAX_VALUE = 64 << 20
"""Maximum bytes of a list or dictionary with its contents."""
MAX_BYTES = 256 << 20
"""Maximum sum of the bytes of all values of one rendering."""
MAX_SECONDS = 10.0
"""Maximum CPU time of one rendering, and of all renderings in a block of `rendered_together`. CPU time is
enough, because a template cannot wait. Wall-clock time would stop harmless templates on a busy machine.
"""

NODE = 64
"""Bytes that a value takes, without its characters."""
# Flat lists and dictionaries with fewer bytes are measured again at each use, instead of being cached.
_SMALL = 1024
# Maximum depth of a value. Python hashes nested tuples recursively on the stack, without its own limit.
_MAX_DEPTH = 100
_MAX_BITS = 16_384
_LOOK_S = 0.01  # minimum seconds between two readings of the thread's clock
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, *_VIEWS)


def failed(why: str, line: int = 0) -> TemplateError:
    """Returns the TemplateError for an error in a template."""
    return TemplateError(why, line, name="chat_template")


def stopped(why: str) -> TemplateError:
    """Returns the TemplateError for a template that exceeds a limit."""
    return failed(f"stopped: {why}")


class Budget:
    """Remaining bytes and time of one rendering. Raises TemplateError if no time is left."""

    def __init__(self) -> None:
        self.measures: dict[int, tuple[Any, tuple[int, int]]] = {}
        self._n_bytes = 0
        self._deadline = min(time.thread_time() + MAX_SECONDS, _deadline.get())
        self._look_at = 0.0
        self.check_time()

    def spend(self, n_bytes: int) -> None:
        """Charges bytes that a template is about to write or read."""
        self._n_bytes += n_bytes
        if self._n_bytes > MAX_BYTES:
            raise stopped(f"the template needs more than {human_bytes(MAX_BYTES)} of memory")
        if n_bytes > 4096:
            self.check_time()

    def check_time(self) -> None:
        """Raises TemplateError if the time of the rendering is used up. Reads the thread's clock at most once
        per `_LOOK_S` seconds, because reading it is a system call.
        """
        now = time.perf_counter()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            if time.thread_time() > self._deadline:
                raise stopped(f"the template runs longer than {MAX_SECONDS:.0f} s")


budget: ContextVar[Budget] = ContextVar("budget")
now: ContextVar[datetime | None] = ContextVar("now", default=None)
"""The date that templates print; None for today."""
_deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))


@contextmanager
def held(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Sets a context variable inside the `with` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def budgeted() -> AbstractContextManager[None]:
    """Charges all values of a rendering inside the `with` block to one budget."""
    return held(budget, Budget())


def rendered_together() -> AbstractContextManager[None]:
    """Limits all renderings of this thread inside the `with` block to the time of one rendering. Shortening a
    conversation needs this, because it renders the conversation many times.
    """
    return held(_deadline, min(time.thread_time() + MAX_SECONDS, _deadline.get()))


def rendered_at(date: datetime) -> AbstractContextManager[None]:
    """Makes templates that are rendered inside the `with` block print this date."""
    return held(now, date)


def check_time_left() -> None:
    """Raises TemplateError if the renderings of `rendered_together` have used up their time."""
    Budget()


def check_size(text: str) -> None:
    """Raises TemplateError for a template that is too long to parse."""
    if len(text) > MAX_TEMPLATE:
        raise failed(f"the template has {len(text)} characters; the maximum is {MAX_TEMPLATE}")


def chars(n: int) -> None:
    """Charges a text of `n` characters to the budget."""
    if n > MAX_CHARS:
        raise failed(f"stopped after {MAX_CHARS} characters of output")
    budget.get().spend(n)


def joined(parts: Iterable[str]) -> str:
    """Joins the parts to one text, and charges it to the budget."""
    n_chars, kept = 0, []
    for part in parts:
        n_chars += len(part)
        kept.append(part)
        if n_chars > MAX_CHARS:
            break
    chars(n_chars)
    return "".join(kept)


def measure(value: Any, level: int = 0) -> tuple[int, int]:
    """Returns an upper bound of a value's size as text, JSON and memory, counting shared parts each time, and
    its depth.

    The result is cached, because templates cannot change lists and dictionaries. Raises TemplateError beyond
    the limits.
    """
    if isinstance(value, str):
        return NODE + len(value) * (2 if value.isascii() and value.isprintable() else 12), 0
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise stopped(f"a number has {value.bit_length()} bits; the maximum is {_MAX_BITS}")
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
            raise stopped(f"a value has more than {human_bytes(MAX_VALUE)}")
    if max(depth, level) >= _MAX_DEPTH:
        raise stopped(f"a value has more than {_MAX_DEPTH} nested levels")
    if (depth or size > _SMALL) and not isinstance(value, _VIEWS):
        # The cache entry keeps the value alive, so the value's id stays unique.
        left.measures[id(value)] = value, (size, depth + 1)
        left.spend(4 * NODE)
    return size, depth + 1


def made(value: Any) -> Any:
    """Charges a new value to the budget, and returns it. An iterator is charged while it runs."""
    budget.get().check_time()  # comparing two large values before this call may have taken long
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, Iterator):
        return counted(value)
    measure(value)
    if isinstance(value, list | tuple | dict):
        budget.get().spend(NODE * (1 + len(value)))
    return value


def counted(values: Iterable[Any]) -> Iterable[Any]:
    """Returns an iterator that checks the time. An iterator that already checks the time is returned
    unchanged. Otherwise a template could nest thousands of iterators, and Python runs and frees nested
    iterators on the stack.
    """
    is_one = isinstance(values, GeneratorType) and values.gi_code is _counting.__code__
    return values if is_one else _counting(values)


def _counting(values: Iterable[Any]) -> Iterator[Any]:
    left = budget.get()
    for value in values:
        left.check_time()
        yield value


def as_text(value: Any) -> str:
    """Returns `str(value)`, and charges the text to the budget. A character beyond ASCII counts as up to four
    bytes.
    """
    if not isinstance(value, str):
        chars(measure(value)[0])
        return str(value)
    if len(value) > MAX_CHARS:
        chars(len(value))
    budget.get().spend(sys.getsizeof(value) + 8)
    return value
