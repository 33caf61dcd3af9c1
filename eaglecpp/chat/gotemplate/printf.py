# SPDX-License-Identifier: MIT
"""`printf`, `print` and `println`: of Go's fmt package what prompts are made with.

Verbs %v %s %q %d %t %f %% with the flags `-`, `+`, `0`, a width and a precision. Whatever Go would mark in
the text (`%!d(string=hi)`) and every other verb is an error here: in a prompt it would be a mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from .literals import merged
from .values import NO_VALUE, printed, type_name

__all__ = ["FormatError", "sprint", "sprintf", "sprintln"]

MAX_WIDTH = 1000
"""Go allows a million; a template that asks for more than this is up to no good."""
MAX_TEXT = 16 << 20
_DIRECTIVE = re.compile(r"%([-+0]*)([0-9]*)(?:\.([0-9]+))?(.?)", re.DOTALL)


class FormatError(ValueError):
    """A format that is not supported, does not fit its values, or is too wide."""


def sprint(values: Sequence[Any]) -> str:
    """Values one after the other, a space between two that are both no strings."""
    parts: list[str] = []
    for index, value in enumerate(values):
        if index and not isinstance(value, str) and not isinstance(values[index - 1], str):
            parts.append(" ")
        parts.append(_plain(value))
    return "".join(parts)


def sprintln(values: Sequence[Any]) -> str:
    """Values with spaces between them and a newline behind."""
    return " ".join(map(_plain, values)) + "\n"


def sprintf(format_text: str, values: Sequence[Any]) -> str:
    """The format with each directive replaced. Raises FormatError."""
    left = list(values)
    parts: list[str] = []
    at = size = 0
    for match in _DIRECTIVE.finditer(format_text):
        parts.append(format_text[at : match.start()])
        at = match.end()
        if match[4] == "%":
            parts.append("%")
            continue
        if not left:
            raise FormatError(f"printf: no value for {match[0]}")
        parts.append(_formatted(match, left.pop(0)))
        size += len(parts[-1])
        if size > MAX_TEXT:
            raise FormatError(f"the text grows beyond {MAX_TEXT} characters")
    if left:
        raise FormatError(f"printf: {len(left)} values more than the format has")
    return merged("".join((*parts, format_text[at:])))


def _plain(value: Any) -> str:
    return printed(None if value is NO_VALUE else value)


def _formatted(match: re.Match[str], value: Any) -> str:
    flags, width, precision, verb = match.groups()
    for number in (width, precision or "0"):
        if len(number) > 4 or int(number or 0) > MAX_WIDTH:
            raise FormatError(f"a width or precision of {number} is more than {MAX_WIDTH}")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "v": True,
        "s": not is_number and not isinstance(value, bool),
        "q": isinstance(value, str),
        "d": isinstance(value, int) and is_number,
        "t": isinstance(value, bool),
        "f": isinstance(value, float),
    }
    if verb not in fits:
        raise FormatError(f"printf: {match[0]!r} is not supported; use %v %s %q %d %t %f")
    if not fits[verb]:
        raise FormatError(f"printf: {match[0]} of a value of type {type_name(value)}")
    text = _plain(value)
    if verb == "f":
        text = f"{value:.{precision or 6}f}"
    elif precision is not None and isinstance(value, str):
        text = text[: int(precision)]
    elif precision is not None:
        raise FormatError(f"printf: {match[0]}: a precision is for %s and %f")
    if verb == "q":
        text = json.dumps(text, ensure_ascii=False)
    sign = "+" if "+" in flags and is_number and not text.startswith("-") else ""
    if "-" in flags:
        return (sign + text).ljust(int(width or 0))
    zeros = is_number and "0" in flags
    return (sign + text).zfill(int(width or 0)) if zeros else (sign + text).rjust(int(width or 0))
