# SPDX-License-Identifier: MIT
"""`printf`, `print` and `println` as Go's fmt package has them.

Verbs %v %s %q %d %t %c %U %x %X %o %O %b %e %E %f %F %g %G %T %% with flags, width and precision. What does
not fit is shown in place, as `%!d(string=hi)`, the way Go does. Argument indexes (`%[1]d`) are refused.
Source of the rules: golang/go: src/fmt/print.go, format.go.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .literals import merged
from .values import (
    NO_VALUE,
    JsonDict,
    JsonList,
    Struct,
    float_text,
    printed,
    sorted_keys,
    to_bytes,
    type_name,
)

__all__ = ["FormatError", "quote", "sprint", "sprintf", "sprintln"]

MAX_WIDTH = 1000
"""Go allows a million; a template that asks for more than this is up to no good."""
MAX_TEXT = 16 << 20
_DIRECTIVE = re.compile(r"%([-+# 0]*)(\*|[0-9]+)?(?:\.(\*|[0-9]*))?(.)?", re.DOTALL)


class FormatError(ValueError):
    """A format that is not supported or too wide."""


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
    arguments = list(values)
    parts: list[str] = []
    at = size = 0
    for match in _DIRECTIVE.finditer(format_text):
        parts += (format_text[at : match.start()], _directive(match, arguments))
        at = match.end()
        size += len(parts[-1])
        if size > MAX_TEXT:
            raise FormatError(f"the text grows beyond {MAX_TEXT} characters")
    parts.append(format_text[at:])
    if arguments:
        shown = ", ".join(_typed(value) for value in arguments)
        parts.append(f"%!(EXTRA {shown})")
    return merged("".join(parts))


def _plain(value: Any) -> str:
    return printed(None if value is NO_VALUE else value)


def _typed(value: Any) -> str:
    return "<nil>" if value is None or value is NO_VALUE else f"{type_name(value)}={_plain(value)}"


@dataclass(frozen=True)
class _Spec:
    """One directive: `%` flags width . precision verb."""

    flags: str
    width: int
    precision: int | None
    verb: str

    def padded(self, text: str, zeros: bool = False) -> str:
        missing = self.width - len(text)
        if missing <= 0:
            return text
        if "-" in self.flags:
            return text + " " * missing
        if not zeros or "0" not in self.flags:
            return " " * missing + text
        sign = text[:1] if text[:1] in ("+", "-", " ") else ""
        return sign + "0" * missing + text[len(sign) :]

    def signed(self, magnitude: str, negative: bool) -> str:
        plus = "+" if "+" in self.flags else " " if " " in self.flags else ""
        return ("-" if negative else plus) + magnitude


def _directive(match: re.Match[str], arguments: list[Any]) -> str:
    flags, width_text, precision_text, verb = match.groups()
    if verb == "[":
        raise FormatError("argument indexes such as %[1]d are not supported; list the arguments in order")
    width, problem = _number(width_text, arguments, "%!(BADWIDTH)")
    precision, second_problem = _number(precision_text, arguments, "%!(BADPREC)")
    if width is not None and width < 0:  # from *
        flags, width = flags + "-", -width
    if precision_text is not None and precision is None:
        precision = 0
    prefix = problem + second_problem
    if verb is None:
        return prefix + "%!(NOVERB)"
    if verb == "%":
        return prefix + "%"
    if not arguments:
        return f"{prefix}%!{verb}(MISSING)"
    if precision is not None and precision < 0:
        precision = None
    return prefix + _formatted(_Spec(flags, width or 0, precision, verb), arguments.pop(0))


def _number(text: str | None, arguments: list[Any], problem: str) -> tuple[int | None, str]:
    """A width or precision, from the format or, for `*`, the arguments; and what to print when it is none."""
    if not text:
        return None, ""
    number: Any = text
    if text == "*":
        number = arguments.pop(0) if arguments else None
        if not isinstance(number, int) or isinstance(number, bool):
            return None, problem
    elif len(text) > 7:
        raise FormatError(f"a width or precision of {text} is more than {MAX_WIDTH}")
    if abs(int(number)) > MAX_WIDTH:
        raise FormatError(f"a width or precision of {number} is more than {MAX_WIDTH}")
    return int(number), ""


def _formatted(spec: _Spec, value: Any) -> str:
    if value is NO_VALUE:
        value = None
    if spec.verb == "T":
        return spec.padded(type_name(value))
    if isinstance(value, JsonList | JsonDict) or (isinstance(value, Struct) and value.prints_json):
        value = printed(value) if spec.verb in "vsqxX" else value
    if isinstance(value, Struct):
        return "{" + " ".join(_element(spec, field) for field in value.fields.values()) + "}"
    if isinstance(value, dict):
        pairs = (f"{_element(spec, key)}:{_element(spec, value[key])}" for key in sorted_keys(value))
        return "map[" + " ".join(pairs) + "]"
    if isinstance(value, list | tuple):
        return "[" + " ".join(_element(spec, element) for element in value) + "]"
    text = _scalar(spec, value)
    if text is not None:
        return text
    if value is None:
        return f"%!{spec.verb}(<nil>)"
    return f"%!{spec.verb}({type_name(value)}={_scalar(replace(spec, verb='v'), value)})"


def _element(spec: _Spec, value: Any) -> str:
    return "<nil>" if value is None else _formatted(spec, value)  # inside something no verb is wrong for nil


def _scalar(spec: _Spec, value: Any) -> str | None:
    """The formatted value, None where the verb does not fit its type."""
    if isinstance(value, str):
        return _string(spec, value)
    if isinstance(value, bool):
        return spec.padded(printed(value), zeros=True) if spec.verb in "vt" else None
    if isinstance(value, int):
        return _integer(spec, value)
    if isinstance(value, float):
        return _float(spec, value)
    return spec.padded("<nil>") if spec.verb == "v" else None


def _string(spec: _Spec, value: str) -> str | None:
    if spec.precision is not None:
        value = value[: spec.precision]
    match spec.verb:
        case "v" | "s":
            return spec.padded(value, zeros=True)
        case "q":
            return spec.padded(quote(value, '"', "+" in spec.flags), zeros=True)
        case "x" | "X":
            separator = " " if " " in spec.flags else ""
            digits = to_bytes(value).hex(separator) if separator else to_bytes(value).hex()
            return spec.padded(digits.upper() if spec.verb == "X" else digits, zeros=True)
        case _:
            return None


def _integer(spec: _Spec, value: int) -> str | None:
    if spec.verb == "c":
        return spec.padded(_character(value))
    if spec.verb == "q":
        return spec.padded(quote(_character(value), "'", "+" in spec.flags))
    if spec.verb == "U":
        return spec.padded(f"U+{value:04X}")
    base = {"v": "d", "d": "d", "b": "b", "o": "o", "O": "o", "x": "x", "X": "X"}.get(spec.verb)
    if base is None:
        return None
    prefix = "0o" if spec.verb == "O" else ""
    if "#" in spec.flags:
        prefix = {"b": "0b", "o": "0", "O": "0o", "x": "0x", "X": "0X"}.get(spec.verb, "")
    digits = "" if spec.precision == 0 == value else f"{abs(value):{base}}".rjust(spec.precision or 0, "0")
    return spec.padded(spec.signed(prefix + digits, value < 0), zeros=spec.precision is None)


def _float(spec: _Spec, value: float) -> str | None:
    verb = spec.verb
    if verb not in "veEfFgG":
        return None
    if not math.isfinite(value):
        text = float_text(abs(value)).lstrip("+")
        return spec.padded(("+" if math.isinf(value) and value > 0 else "-" if value < 0 else "") + text)
    if verb in "vgG" and spec.precision is None:
        magnitude = float_text(abs(value))
    else:
        precision = 6 if spec.precision is None else spec.precision
        magnitude = f"{abs(value):.{precision}{verb.lower() if verb != 'v' else 'g'}}"
    if verb in "EG":
        magnitude = magnitude.upper()
    return spec.padded(spec.signed(magnitude, math.copysign(1, value) < 0), zeros=True)


def _character(code: int) -> str:
    return chr(code) if 0 <= code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF else "\ufffd"


_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
}


def quote(text: str, mark: str, ascii_only: bool = False) -> str:
    """The text as a Go literal between marks."""
    return mark + "".join(_quoted_char(char, mark, ascii_only) for char in text) + mark


def _quoted_char(char: str, mark: str, ascii_only: bool) -> str:
    code = ord(char)
    if char == mark:
        return "\\" + mark
    if char in _ESCAPES:
        return _ESCAPES[char]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if char.isprintable() and (code < 0x80 or not ascii_only):
        return char
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
