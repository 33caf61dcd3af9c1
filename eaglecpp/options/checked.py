# SPDX-License-Identifier: MIT
"""`Option`: one declared option, and the check that a value has to pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eaglecpp.errors import InvalidTypeError, InvalidValueError

LARGEST_INT = 2**31 - 1
"""Of an option without a maximum of its own: the extension's whole numbers have 32 bits."""


@dataclass(frozen=True)
class Option:
    """One declared option. `kind`: the Python type of a scalar, or "strings", "pairs", "numbers" for
    the three list shapes.

    `flags`: command-line spellings, () = not on the command line. `parameter`: its Modelfile name, "" = none.
    `untrusted`: whether a model that somebody else made may set it, or up to which value. False by default,
    so that nothing opens a connection, names a path or a device, or uses more of this machine than usual.
    """

    name: str
    kind: type | str
    default: Any
    help: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    flags: tuple[str, ...]
    parameter: str
    untrusted: bool | int = False


def checked(option: Option, value: Any) -> Any:
    if isinstance(option.kind, str):
        return {"strings": _strings, "pairs": _pairs, "numbers": _numbers}[option.kind](option, value)
    if value is None and option.default is None:
        return None
    value = _scalar(option, value)
    if option.choices and value not in option.choices:
        raise InvalidValueError(f"{option.name} must be one of {', '.join(option.choices)}; got {value!r}")
    low, high = option.minimum, option.maximum
    if option.kind is int and high is None and abs(value) > LARGEST_INT:
        raise InvalidValueError(f"{option.name} has at most 31 bits ({LARGEST_INT}); got {value!r}")
    if (low is not None and value < low) or (high is not None and value > high):
        raise InvalidValueError(f"{option.name} must be {_range_text(low, high)}; got {value!r}")
    return value


def _scalar(option: Option, value: Any) -> Any:
    """Accepts whatever converts without loss: numpy scalars, ints for floats; never a bool for a number."""
    kind = option.kind
    assert isinstance(kind, type)
    if kind is int and hasattr(value, "__index__") and not isinstance(value, bool):
        return value.__index__()
    if kind is float and hasattr(value, "__float__") and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise InvalidValueError(f"{option.name} must be a finite number; got {value!r}")
        return number
    if kind in (bool, str) and isinstance(value, kind):
        return value
    raise InvalidTypeError(f"{option.name} must be {kind.__name__}, got {type(value).__name__} {value!r}")


def _strings(option: Option, value: Any) -> tuple[str, ...]:
    if not (value is None or isinstance(value, Iterable)):
        raise InvalidTypeError(f"{option.name} must be strings, got {type(value).__name__} {value!r}")
    values = (value,) if isinstance(value, str) else tuple(value or ())
    for entry in values:
        if not isinstance(entry, str):
            found = f"{type(entry).__name__} {entry!r}"
            raise InvalidTypeError(f"{option.name} must contain strings, got {found}")
    return values


def _numbers(option: Option, value: Any) -> tuple[float, ...]:
    """Shares, none of them negative: numbers, or text such as "3,1"."""
    try:
        entries = [e for e in value.split(",") if e.strip()] if isinstance(value, str) else list(value or ())
        numbers = tuple(float(entry) for entry in entries)
    except (TypeError, ValueError, OverflowError):
        raise InvalidTypeError(f"{option.name} must contain numbers, such as 3,1; got {value!r}") from None
    if any(not math.isfinite(number) or number < 0 for number in numbers) or (numbers and sum(numbers) == 0):
        raise InvalidValueError(f"{option.name} must contain numbers of at least 0, not all 0; got {value!r}")
    return numbers


def _pairs(option: Option, value: Any) -> tuple[tuple[Any, float], ...]:
    """`{key: number}` or a sequence of (key, number); keys are token ids for logit_bias, paths for lora."""
    entries = tuple(value.items()) if isinstance(value, Mapping) else tuple(() if value is None else value)
    key = str if option.name == "lora" else int
    try:
        pairs = tuple((key(left), float(right)) for left, right in entries)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidTypeError(f"{option.name} must map {key.__name__} to float: {error}") from None
    if key is int and any(abs(int(left)) > LARGEST_INT for left, _ in pairs):
        raise InvalidValueError(f"{option.name}: a token id has at most 31 bits; got {value!r:.80}")
    if any(math.isnan(number) for _, number in pairs):
        raise InvalidValueError(f"{option.name}: a value is not a number (nan)")
    return pairs


def _range_text(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
