# SPDX-License-Identifier: MIT
"""Limits for Jinja templates: steps, characters, memory and time.

A template comes with a model and may be hostile. Only methods and filters that are listed here exist, so a
new one does not open a hole. What may be large beside what it is made of (`*`, formats, `replace`, `join`,
`indent`, JSON, lists of characters) asks first; everything else is measured after (`jinja.py` makes sure that
nothing bypasses this). Two rules bound the rest: no value is larger than `MAX_CHARS` or `MAX_VALUE`, nested
ones counted as if nothing in them were shared, so one step cannot take long; and everything that is made in
one rendering is paid for from one `Budget`, so many steps cannot either. Sizes of lists and dictionaries are
remembered, because templates cannot change them.

A child process would bound time and memory without knowing any filter, but a library that starts processes is
a nuisance to the program that uses it, and neither Windows nor macOS bounds the memory of one.
"""

from __future__ import annotations

import re
import string
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from eaglecpp.errors import TemplateError

__all__ = ["MAX_BYTES", "MAX_CHARS", "MAX_SECONDS", "MAX_STEPS", "MAX_VALUE", "Budget", "budget"]

MAX_STEPS = 500_000
"""Loop rounds and calls in one rendering."""
MAX_CHARS = 16 << 20
"""Characters of output, and of any value."""
MAX_VALUE = 64 << 20
"""Bytes of a list or dictionary with all that is in it."""
MAX_BYTES = 256 << 20
"""Bytes of everything that one rendering makes, added up."""
MAX_SECONDS = 10.0
"""Of computing, for one rendering and for all that `rendered_together` holds: a busy machine makes no honest
template hostile, and templates cannot wait.
"""

_NODE = 64  # bytes of a value beside its characters
_MAX_DEPTH = 100
_MAX_BITS = 16_384
_MAX_WIDTH = 999  # of a format's field
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, frozenset, *_VIEWS)


def stopped(why: str) -> TemplateError:
    """The error of a template that goes beyond a limit."""
    return TemplateError(f"stopped: {why}", 0, name="chat_template")


class Budget:
    """What one rendering has left. n_static: characters of text in the template's macros and blocks."""

    def __init__(self, n_static: int = 0) -> None:
        self.n_static = n_static
        self.measures: dict[int, tuple[Any, tuple[int, int]]] = {}
        self._n_steps = 0
        self._n_bytes = 0
        self._deadline = min(time.thread_time() + MAX_SECONDS, _deadline.get())

    def step(self) -> None:
        """One loop round or call."""
        self._n_steps += 1
        if self._n_steps > MAX_STEPS:
            raise TemplateError(f"stopped after {MAX_STEPS} loop rounds and calls", 0, name="chat_template")
        if self._n_steps % 64 == 0:
            self.check_time()

    def spend(self, n_bytes: int) -> None:
        """So much is about to be made or looked through."""
        self._n_bytes += n_bytes
        if self._n_bytes > MAX_BYTES:
            raise stopped(f"it needs more than {MAX_BYTES >> 20} MiB")
        if n_bytes > 4096:
            self.check_time()

    def check_time(self) -> None:
        """Between two pieces of work."""
        if time.thread_time() > self._deadline:
            raise stopped(f"it takes longer than {MAX_SECONDS:.0f} s")


budget: ContextVar[Budget] = ContextVar("budget")
_deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))


@contextmanager
def rendered_together() -> Iterator[None]:
    """All renderings inside, which have to be in this thread, share the time of one. Whoever makes room in a
    prompt renders it many times.
    """
    token = _deadline.set(min(time.thread_time() + MAX_SECONDS, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)


def check_time_left() -> None:
    """Before a rendering. Raises TemplateError when those before it took all the time."""
    if time.thread_time() > _deadline.get():
        raise stopped(f"it takes longer than {MAX_SECONDS:.0f} s")


def chars(n: int) -> int:
    """Asks for a text of so many characters."""
    if n > MAX_CHARS:
        raise TemplateError(f"stopped after {MAX_CHARS} characters of output", 0, name="chat_template")
    budget.get().spend(n)
    return n


def _measure(value: Any, level: int = 0) -> tuple[int, int]:
    """At least the characters of a value's text, of its JSON, and its bytes, with all that it holds, shared
    parts as often as they are held; and how deep it is nested. Raises TemplateError beyond the limits.
    """
    if isinstance(value, str):
        return _NODE + len(value) * (2 if value.isascii() and value.isprintable() else 12), 0
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise stopped(f"a number of {value.bit_length()} bits")
        return _NODE + value.bit_length() // 3, 0
    if not isinstance(value, _CONTAINERS):
        return 4 * _NODE, 0
    known = budget.get().measures
    entry = known.get(id(value))
    if entry is None:
        entry = (value, _sum_up(value, level))  # held, so that its id stays its own
        if not isinstance(value, _VIEWS):
            known[id(value)] = entry
    return entry[1]


def _sum_up(value: Any, level: int) -> tuple[int, int]:
    size, depth = _NODE, 0
    parts = [*value, *value.values()] if isinstance(value, Mapping) else value
    for n, part in enumerate(parts):
        if n % 1024 == 1023:
            budget.get().check_time()
        part_size, part_depth = _measure(part, level + 1)
        size += part_size + _NODE
        depth = max(depth, part_depth)
        if size > MAX_VALUE:
            raise stopped(f"a value of more than {MAX_VALUE >> 20} MiB")
    if max(depth, level) >= _MAX_DEPTH:
        raise stopped("a value nested too deeply")
    return size, depth + 1


def text_size(value: Any) -> int:
    """At least the number of characters of `str(value)`, and of its JSON."""
    return len(value) if isinstance(value, str) else _measure(value)[0]


def made(value: Any) -> Any:
    """A value that was just made: paid for, and counted where it is made bit by bit."""
    if isinstance(value, str):
        chars(len(value))
    elif isinstance(value, Iterator):
        return counted(value)
    else:
        _measure(value)
        n_parts: int = len(value) if isinstance(value, Sized) else 0
        budget.get().spend(_NODE * (1 + n_parts))
    return value


def counted(values: Iterable[Any], n_static: int = 0) -> Iterator[Any]:
    """A loop. n_static: characters of text in its body."""
    left = budget.get()
    for value in values:
        left.step()
        if n_static:
            left.spend(n_static)
        yield value


def as_text(value: Any) -> str:
    """`str(value)`, paid for."""
    chars(text_size(value))
    return value if isinstance(value, str) else str(value)


def concat(first: Any, *others: Any) -> str:
    """The operator `~`."""
    parts = [as_text(part) for part in (first, *others)]
    chars(sum(map(len, parts)))
    return "".join(parts)


# What may be large beside what it is made of asks before it is made. All else is at most a few times as
# large, and is measured after.


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Asks for what an operator is about to make."""
    if operator == "**":
        raise stopped("** is not for templates")
    if operator == "%" and isinstance(left, str):
        _percent(left, right)
    for one, other in ((left, right), (right, left)):
        if operator == "*" and isinstance(one, str | list | tuple) and isinstance(other, int):
            chars(len(one) * max(other, 0))


def _fields(form: str, n_fields: int, is_wide: bool, values: Any) -> None:
    if is_wide:
        raise stopped(f"a format of more than {_MAX_WIDTH} columns")
    chars(len(form) + n_fields * (_MAX_WIDTH + text_size(values)))


def _percent(form: str, *values: Any, **named: Any) -> None:
    widths = re.findall(r"%(?:\([^()]*\))?[#0\- +]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?", form)
    is_wide = any(part == "*" or len(part) > 3 for width in widths for part in width)
    _fields(form, len(widths), is_wide or bool(re.search(r"%\([^)]*\(", form)), [*values, named])


def _braces(form: str, *values: Any, **named: Any) -> None:
    specs = [spec for _, name, spec, _ in string.Formatter().parse(form) if name is not None]
    is_wide = any("{" in (spec or "") or re.search(r"[0-9]{4}", spec or "") for spec in specs)
    _fields(form, len(specs), is_wide, [*values, named])


def _replace(value: Any, old: Any = "", new: Any = "", *_: Any) -> None:
    text, old, new = as_text(value), as_text(old), as_text(new)
    chars(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def _join(values: Any, separator: Any = "", *_: Any, **__: Any) -> None:
    chars(text_size(values) + len(values) * len(as_text(separator)))


def _indent(value: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    text, n_columns = as_text(value), len(width) if isinstance(width, str) else int(width)
    chars(len(text) + (text.count("\n") + 2) * max(n_columns, 0))


def _json(value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = (), **_: Any) -> None:
    n_columns = len(indent) if isinstance(indent, str) else indent or 0
    if not isinstance(n_columns, int) or n_columns > 16 or text_size(separators or "") > 512:
        raise stopped("tojson: an indent of more than 16 columns")
    size, depth = _measure(value)
    chars(size + size // _NODE * n_columns * depth)


def _taken_apart(text: Any, *_: Any, **__: Any) -> None:
    """A list with an entry for each character or word."""
    if isinstance(text, str):
        budget.get().spend(len(text) * _NODE)


def _sum(values: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):
        raise TypeError("sum: expected numbers")


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _names(text: str, **asking: Callable[..., None]) -> dict[str, Callable[..., None]]:
    return dict.fromkeys(text.split(), _nothing) | asking


_METHODS: dict[type, Mapping[str, Callable[..., None]]] = {
    str: _names(
        """capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit
        isidentifier islower isnumeric isprintable isspace istitle isupper lower lstrip partition removeprefix
        removesuffix rfind rindex rpartition rstrip startswith strip swapcase title upper""",
        format=_braces,
        join=lambda text, values=(): _join(list(values), text),
        replace=_replace,
        split=_taken_apart,
        rsplit=_taken_apart,
        splitlines=_taken_apart,
    ),
    dict: _names("get items keys values copy"),
    list: _names("count index copy"),
    tuple: _names("count index"),
    float: _names("is_integer"),
    int: _names("bit_length"),
}

_TAKEN_APART = ("dictsort", "groupby", "list", "map", "reverse", "select", "sort", "title", "unique",
                "wordcount")  # fmt: skip
FILTERS = _names(
    """abs capitalize count d default e escape first float forceescape int items last length lower max min
    reject rejectattr safe selectattr string trim truncate upper""",
    format=_percent,
    indent=_indent,
    join=_join,
    replace=_replace,
    sum=_sum,
    tojson=_json,
    **dict.fromkeys(_TAKEN_APART, _taken_apart),
)
"""Jinja's filters that templates may use, and what asks for what they make."""


def check_method(owner: Any, name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Asks for what a method of a value is about to make; False for one that templates may not call."""
    for kind, methods in _METHODS.items():
        if isinstance(owner, kind):
            if name not in methods:
                return False
            methods[name](owner, *arguments, **named)
            return True
    return False


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of Jinja's, asked for before, measured after. What Jinja passes first, such as the context,
    is no value.
    """
    n_first = int(hasattr(function, "jinja_pass_arg"))

    @wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        left = budget.get()
        left.step()
        left.check_time()
        args = tuple(list(counted(value)) if isinstance(value, Iterator) else value for value in args)
        FILTERS[name](*args[n_first:], **named)
        return made(function(*args, **named))

    return run
