# SPDX-License-Identifier: MIT
"""The functions a template can call: Go's own without those for web pages, and the four of Ollama.

`and` and `or` are missing here because they evaluate only the arguments they need; the evaluator has them.
Sources: golang/go: src/text/template/funcs.go; ollama/ollama: template/template.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from typing import Any

from .printf import FormatError, sprint, sprintf, sprintln
from .values import NO_VALUE, Struct, go_json, is_true, to_bytes, to_text, type_name

__all__ = ["FUNCTIONS", "FUNCTION_NAMES", "CallError", "Function"]


class CallError(ValueError):
    """A function that cannot do what it is asked to; the evaluator adds the line."""


@dataclass(frozen=True)
class Function:
    """What a name stands for. n_fixed: arguments that must be there; variadic: whether more may follow."""

    call: Callable[..., Any]
    n_fixed: int
    variadic: bool = False


def _is_none(value: Any) -> bool:
    return value is None or value is NO_VALUE


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(to_bytes(value))
    if isinstance(value, list | tuple | dict):
        return len(value)
    raise CallError(f"len of {'nil pointer' if _is_none(value) else f'type {type_name(value)}'}")


def _position(index: Any, end: int) -> int:
    if isinstance(index, bool) or not isinstance(index, int):
        what = "nil" if _is_none(index) else f"type {type_name(index)}"
        raise CallError(f"cannot index slice/array with {what}")
    if not 0 <= index <= end:
        raise CallError(f"index out of range: {index}")
    return index


def _index(value: Any, *indexes: Any) -> Any:
    if _is_none(value):
        raise CallError("index of untyped nil")
    for index in indexes:
        if _is_none(value):
            raise CallError("index of nil pointer")
        if isinstance(value, dict):
            if not isinstance(index, str):
                problem = (
                    "is nil; should be of type"
                    if _is_none(index)
                    else f"has type {type_name(index)}; should be"
                )
                raise CallError(f"value {problem} string")
            value = value.get(index)
        elif isinstance(value, str | list | tuple):
            sequence = to_bytes(value) if isinstance(value, str) else value
            position = _position(index, len(sequence))
            if position == len(sequence):
                raise CallError(f"index out of range: {index}")
            value = sequence[position]
        else:
            raise CallError(f"can't index item of type {type_name(value)}")
    return value


def _slice(value: Any, *indexes: Any) -> Any:
    if _is_none(value):
        raise CallError("slice of untyped nil")
    if len(indexes) > 3:
        raise CallError(f"too many slice indexes: {len(indexes)}")
    if not isinstance(value, str | list | tuple):
        raise CallError(f"can't slice item of type {type_name(value)}")
    if isinstance(value, str) and len(indexes) == 3:
        raise CallError("cannot 3-index slice a string")
    sequence = to_bytes(value) if isinstance(value, str) else value
    positions = [_position(index, len(sequence)) for index in indexes]
    bounds = [*positions, *[0, len(sequence), len(sequence)][len(positions) :]]
    for low, high in pairwise(bounds):
        if low > high:
            raise CallError(f"invalid slice index: {low} > {high}")
    part = sequence[bounds[0] : bounds[1]]
    return to_text(part) if isinstance(part, bytes) else part


def _kind(value: Any) -> str:
    """The kind that comparisons go by; "" for what cannot be compared."""
    kinds = {bool: "bool", int: "int", float: "float", str: "string"}
    return kinds.get(type(value), "")


def _equal(first: Any, second: Any) -> bool:
    kinds = _kind(first), _kind(second)
    if kinds[0] != kinds[1]:
        if _is_none(first) or _is_none(second):
            return False
        raise CallError(f"incompatible types for comparison: {type_name(first)} and {type_name(second)}")
    if kinds[0]:
        return bool(first == second)
    nils = _is_nil(first), _is_nil(second)
    if any(nils):
        return nils[0] == nils[1]
    if isinstance(first, Struct) and isinstance(second, Struct):
        return first is second
    raise CallError(f"non-comparable type {type_name(second)}")


def _is_nil(value: Any) -> bool:
    return _is_none(value) or (isinstance(value, tuple) and not value)


def _eq(first: Any, *others: Any) -> bool:
    if not others:
        raise CallError("missing argument for comparison")
    return any(_equal(first, other) for other in others)


def _less(first: Any, second: Any) -> bool:
    kinds = _kind(first), _kind(second)
    if "" in kinds or kinds == ("bool", "bool"):
        raise CallError("invalid type for comparison")
    if kinds[0] != kinds[1]:
        raise CallError(f"incompatible types for comparison: {type_name(first)} and {type_name(second)}")
    if isinstance(first, str):
        return to_bytes(first) < to_bytes(second)
    return bool(first < second)


def _less_or_equal(first: Any, second: Any) -> bool:
    return _less(first, second) or _equal(first, second)


def _printf(format_text: Any, *values: Any) -> str:
    if not isinstance(format_text, str):
        raise CallError(f"wrong type for value; expected string; got {type_name(format_text)}")
    try:
        return sprintf(format_text, values)
    except FormatError as error:
        raise CallError(str(error)) from None


def _json(value: Any) -> str:
    try:
        return go_json(value)
    except ValueError:
        return ""  # as in Ollama, which drops the error


def _call(function: Any, *_arguments: Any) -> Any:
    problem = "call of nil" if _is_none(function) else f"non-function of type {type_name(function)}"
    raise CallError(problem)


_TYPESCRIPT = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "array": "any[]",
    "object": "Record<string, any>",
    "null": "null",
}


def _typescript(value: Any) -> str:
    """The TypeScript type of a tool's property."""
    if not isinstance(value, Struct) or value.type_name != "api.ToolProperty":
        return "any"
    options = value.fields["AnyOf"]
    if options:
        return " | ".join(_typescript(option) for option in options)
    return " | ".join(_TYPESCRIPT.get(name, "any") for name in value.fields["Type"]) or "any"


def _today(days: int) -> str:
    return (date.today() + timedelta(days=days)).isoformat()


FUNCTIONS: Mapping[str, Function] = {
    "call": Function(_call, 1, variadic=True),
    "eq": Function(_eq, 1, variadic=True),
    "ge": Function(lambda first, second: not _less(first, second), 2),
    "gt": Function(lambda first, second: not _less_or_equal(first, second), 2),
    "index": Function(_index, 1, variadic=True),
    "le": Function(_less_or_equal, 2),
    "len": Function(_length, 1),
    "lt": Function(_less, 2),
    "ne": Function(lambda first, second: not _equal(first, second), 2),
    "not": Function(lambda value: not is_true(value), 1),
    "print": Function(lambda *values: sprint(values), 0, variadic=True),
    "printf": Function(_printf, 1, variadic=True),
    "println": Function(lambda *values: sprintln(values), 0, variadic=True),
    "slice": Function(_slice, 1, variadic=True),
    "currentDate": Function(lambda *_ignored: _today(0), 0, variadic=True),
    "json": Function(_json, 1),
    "toTypeScriptType": Function(_typescript, 1),
    "yesterdayDate": Function(lambda *_ignored: _today(-1), 0, variadic=True),
}
FUNCTION_NAMES = frozenset((*FUNCTIONS, "and", "or"))
