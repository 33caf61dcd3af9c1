# SPDX-License-Identifier: MIT
"""Limits for Jinja templates: steps, characters, memory and time.

A template comes with a model and may be hostile. Every way in which it can make a value larger is known here
and checked first: operators, calls, filters, literals, output (`jinja.py` makes sure that nothing bypasses
this). What is not listed is refused, so a new method or filter does not open a hole. Two rules bound the
rest: no value is larger than `MAX_CHARS` or `MAX_VALUE`, nested ones counted as if nothing in them were
shared, so one step cannot take long; and everything that is made in one rendering is paid for from one
`Budget`, so many steps cannot either. Sizes of lists and dictionaries are remembered, because templates
cannot change them.
"""

from __future__ import annotations

import re
import string
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from eaglecpp.chat.gotemplate import TemplateError

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
        self.measures: dict[int, tuple[Any, _Measure]] = {}
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


@dataclass(frozen=True)
class _Measure:
    """Of a value with all that it holds, shared parts as often as they are held.

    n_chars: at least the length of its text and of its JSON; depth: of containers in containers
    """

    n_bytes: int
    n_chars: int
    depth: int


def _measure(value: Any, level: int = 0) -> _Measure:
    """Raises TemplateError beyond the limits."""
    if isinstance(value, str):
        is_plain = value.isascii() and value.isprintable()
        return _Measure(sys.getsizeof(value), 2 + len(value) * (2 if is_plain else 12), 0)
    if isinstance(value, int):
        n_bits = value.bit_length()
        if n_bits > _MAX_BITS:
            raise stopped(f"a number of {n_bits} bits")
        return _Measure(_NODE, 25 + n_bits // 3, 0)
    if not isinstance(value, _CONTAINERS):
        return _Measure(_NODE, 200, 0)
    known = budget.get().measures
    entry = known.get(id(value))
    if entry is None:
        entry = (value, _sum_up(value, level))  # held, so that its id stays its own
        if not isinstance(value, _VIEWS):
            known[id(value)] = entry
    return entry[1]


def _sum_up(value: Any, level: int) -> _Measure:
    n_bytes, n_chars, depth = _NODE, 40, 0
    parts = [*value, *value.values()] if isinstance(value, Mapping) else value
    for n, part in enumerate(parts):
        if n % 1024 == 1023:
            budget.get().check_time()
        one = _measure(part, level + 1)
        n_bytes += one.n_bytes + _NODE
        n_chars += one.n_chars + 4
        depth = max(depth, one.depth)
        if n_bytes > MAX_VALUE:
            raise stopped(f"a value of more than {MAX_VALUE >> 20} MiB")
    if max(depth, level) >= _MAX_DEPTH:
        raise stopped("a value nested too deeply")
    return _Measure(n_bytes, n_chars, depth + 1)


def text_size(value: Any) -> int:
    """At least the number of characters of `str(value)`, and of its JSON."""
    return len(value) if isinstance(value, str) else _measure(value).n_chars


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


# Operators


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Asks for what an operator is about to make."""
    if isinstance(left, str) and operator == "%":
        check_percent(left, right)
        return
    for one, other in ((left, right), (right, left)):
        if operator == "*" and isinstance(one, str | list | tuple) and isinstance(other, int):
            if isinstance(one, str):
                chars(len(one) * max(other, 0))
            else:
                budget.get().spend(_NODE * len(one) * max(other, 0))
            return
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        chars(len(left) + len(right))
    elif operator == "+" and isinstance(left, list | tuple):
        budget.get().spend(_NODE * (len(left) + len(right) if isinstance(right, list | tuple) else 1))
    elif operator == "**":
        raise stopped("** is not for templates")


_PERCENT = re.compile(r"%(?:\([^()]*\))?[#0\- +]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?")


def check_percent(form: str, values: Any) -> None:
    """Asks for what `form % values` makes."""
    fields = _PERCENT.findall(form)
    wide = any(part == "*" or len(part) > len(str(_MAX_WIDTH)) for field in fields for part in field)
    if wide or re.search(r"%\([^)]*\(", form):
        raise stopped(f"a format of more than {_MAX_WIDTH} columns")
    chars(len(form) + len(fields) * (_MAX_WIDTH + text_size(values)))


def check_braces(form: str, values: Any) -> None:
    """Asks for what `form.format(values)` makes."""
    n_fields = 0
    for _, name, spec, _ in string.Formatter().parse(form):
        n_fields += name is not None
        if "{" in (spec or "") or re.search(r"[0-9]{4}", spec or ""):
            raise stopped(f"a format of more than {_MAX_WIDTH} columns")
    chars(len(form) + n_fields * (_MAX_WIDTH + text_size(values)))


# Methods


def _replace(text: str, old: Any = "", new: Any = "", *_: Any, **__: Any) -> None:
    old, new = as_text(old), as_text(new)
    n_places = text.count(old) if old else len(text) + 1
    chars(len(text) + n_places * len(new))


def _split(text: str, separator: Any = None, *_: Any, **__: Any) -> None:
    n_parts = text.count(separator) if isinstance(separator, str) and separator else len(text) // 2
    budget.get().spend((n_parts + 1) * _NODE)


def _join(text: str, values: Any = ()) -> None:
    chars(text_size(values) + len(text) * (len(values) if hasattr(values, "__len__") else MAX_STEPS))


def _same(text: str, *_: Any) -> None:
    chars(3 * len(text))  # capital letters of one may be three


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _words(text: str) -> list[str]:
    return text.split()


_STRING_METHODS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("split", "rsplit", "splitlines"), _split),
    **dict.fromkeys(
        _words("""
            capitalize casefold lower lstrip partition removeprefix removesuffix
            rpartition rstrip strip swapcase title upper
        """),
        _same,
    ),
    **dict.fromkeys(
        _words("""
            count endswith find index isalnum isalpha isascii isdecimal isdigit
            isidentifier islower isnumeric isprintable isspace istitle isupper rfind
            rindex startswith
        """),
        _nothing,
    ),
    "replace": _replace,
    "join": _join,
    "format": lambda text, *values, **named: check_braces(text, [*values, named]),
}
_METHODS: dict[type, Mapping[str, Callable[..., None]]] = {
    str: _STRING_METHODS,
    dict: dict.fromkeys(("get", "items", "keys", "values", "copy"), _nothing),
    list: dict.fromkeys(("count", "index", "copy"), _nothing),
    tuple: dict.fromkeys(("count", "index"), _nothing),
    float: {"is_integer": _nothing},
    int: {"bit_length": _nothing},
}


def check_method(owner: Any, name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Asks for what a method of a value is about to make; False for one that templates may not call."""
    for kind, methods in _METHODS.items():
        if isinstance(owner, kind):
            if name not in methods:
                return False
            methods[name](owner, *arguments, **named)
            return True
    return False


# Filters


def _indent(text: str, width: Any = 4, *_: Any, **__: Any) -> None:
    n_columns = len(width) if isinstance(width, str) else int(width)
    chars(len(text) + (text.count("\n") + 2) * max(n_columns, 0))


def _join_filter(values: Any, separator: Any = "", *_: Any, **__: Any) -> None:
    chars(text_size(values) + len(values) * len(as_text(separator)))


def _list(values: Any, *_: Any, **__: Any) -> None:
    if isinstance(values, str):
        budget.get().spend(len(values) * _NODE)


def _whole_list(values: Any, *_: Any, **__: Any) -> None:
    _list(values)
    budget.get().spend(text_size(values))  # compares what is in it


def _sum(values: Any, *_: Any, start: Any = 0, **__: Any) -> None:
    if isinstance(start, _CONTAINERS) or any(isinstance(value, _CONTAINERS) for value in values):
        raise TypeError("sum: expected numbers")


def _json(value: Any, *_: Any, **named: Any) -> None:
    indent, separators = named.get("indent"), named.get("separators")
    n_columns = len(indent) if isinstance(indent, str) else indent or 0
    if not isinstance(n_columns, int) or n_columns > 16 or text_size(separators or "") > 100:
        raise stopped("tojson: an indent of more than 16 columns")
    n_nodes = text_size(value) // 4 + 1
    depth = _measure(value).depth
    chars(
        text_size(value)
        + (n_nodes * (n_columns * depth + text_size(separators or "")) if n_columns or separators else 0)
    )


def _as_string(value: Any, *_: Any, **__: Any) -> None:
    chars(text_size(value) * 6)  # an escaped character may be six


FILTERS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(
        _words("""
            abs capitalize count d default dictsort e escape first float forceescape format
            groupby indent int items join last length list lower map max min reject
            rejectattr replace reverse safe select selectattr sort string sum title tojson
            trim truncate unique upper wordcount
        """),
        _nothing,
    ),
    **dict.fromkeys(("list", "map", "select", "reject"), _list),
    **dict.fromkeys(("unique", "sort", "groupby", "dictsort", "max", "min", "reverse"), _whole_list),
    **dict.fromkeys(("e", "escape", "forceescape", "string", "safe"), _as_string),
    **dict.fromkeys(("lower", "upper", "title", "capitalize", "trim"), _as_string),
    "indent": lambda value, *a, **k: _indent(as_text(value), *a, **k),
    "replace": lambda value, *a, **k: _replace(as_text(value), *a, **k),
    "format": lambda value, *a, **k: check_percent(as_text(value), k or a),
    "join": _join_filter,
    "sum": _sum,
    "tojson": _json,
}
"""Jinja's filters that templates may use, and what asks for what they make."""


def run_filter(name: str, function: Callable[..., Any], arguments: Sequence[Any], named: Any) -> Any:
    """A filter's value: asked for before, measured after."""
    values = [list(counted(value)) if isinstance(value, Iterator) else value for value in arguments]
    budget.get().step()
    FILTERS[name](*values, **named)
    return made(function(*values, **named))
