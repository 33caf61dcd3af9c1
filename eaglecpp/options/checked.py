# SPDX-License-Identifier: MIT
"""Declares options: `declare` makes a dataclass field, `describe` lists such fields as `Option`s, and
`Checked` is a dataclass that checks its values. The options of the engine, the server, training and the
command line are declared with this module.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar

from eaglecpp.errors import InvalidTypeError, InvalidValueError

LARGEST_INT = 2**31 - 1
"""Default maximum of integer options: the extension's integers have 32 bits."""
FLOAT32_LIMIT = (2 - 2**-24) * 2.0**127
"""Smallest number that rounds to infinity in single precision, which the extension computes with."""
T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """Declaration of an option.

    kind:      Python type of a scalar; "strings", "pairs" or "numbers" for the three list shapes, "bytes" or
               "seconds"; the command line adds kinds of its own
    minimum, maximum: inclusive range; None = open
    flags:     command-line spellings; () = not on the command line
    parameter: name in a Modelfile; "" = not in a Modelfile
    untrusted: True if an untrusted model may set the option, or the largest value that such a model may set.
               The default is False, so that an untrusted model cannot open connections, name paths or
               devices, or use more resources than usual
    key:       "group.field" for the engine's options
    limit:     text for the list of limits in SECURITY.md: what happens above the option's value; "" = not
        listed
    shown:     arguments of `click.option` that only the command line needs
    """

    name: str
    kind: type | str
    default: Any
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    parameter: str = ""
    untrusted: bool | int = False
    key: str = ""
    limit: str = ""
    shown: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    @property
    def kind_name(self) -> str:
        """The kind of the option as text: "int", "strings" ..."""
        return self.kind if isinstance(self.kind, str) else self.kind.__name__

    def fitted(self, value: Any) -> Any:
        """Returns the value if it is in the option's range, else the nearest end of the range."""
        if isinstance(value, tuple | bool):
            return value
        high = LARGEST_INT if self.maximum is None and self.kind is int else self.maximum
        if self.minimum is not None and not value >= self.minimum:
            return type(value)(self.minimum)
        return type(value)(high) if high is not None and not value <= high else value

    @property
    def range(self) -> str:
        """The range as text: `0 to 1`, `-1 and up`, or "" for an open range."""
        if self.minimum in (None, -math.inf):
            return ""
        return f"{self.minimum} and up" if self.maximum is None else f"{self.minimum} to {self.maximum}"


def declare(
    default: T,
    help: str,
    *,
    kind: type | str | None = None,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    flags: str | None = None,
    parameter: str | bool = "",
    untrusted: bool | int = False,
    limit: str = "",
    **shown: Any,
) -> T:
    """Declares an option, and returns the option's dataclass field. kind: None = type of the default; low,
    high: the range; flags: separated by spaces, None = derived from the field's name; parameter: True = the
    field's name. `Option` explains the other arguments.
    """
    of_default: dict[type, type | str] = {type(None): str, tuple: "strings"}
    kind = kind or of_default.get(type(default), type(default))
    names = None if flags is None else tuple(flags.split())
    facts = {"kind": kind, "default": default, "help": help, "minimum": low, "maximum": high, "flags": names}
    facts |= {"choices": choices, "parameter": parameter, "untrusted": untrusted, "limit": limit}
    value: T = dataclasses.field(default=default, metadata={"option": facts | {"shown": shown}})
    return value


def describe(cls: type | Any) -> tuple[Option, ...]:
    """Returns the declared options of a dataclass, in the order of the fields."""
    return _described(cls if isinstance(cls, type) else type(cls))


@cache
def _described(cls: type) -> tuple[Option, ...]:
    options = []
    for field in dataclasses.fields(cls):
        if "option" in field.metadata:
            facts, name = dict(field.metadata["option"]), field.name
            facts["flags"] = ("--" + name.replace("_", "-"),) if facts["flags"] is None else facts["flags"]
            facts["parameter"] = name if facts["parameter"] is True else facts["parameter"]
            options.append(Option(name, **facts, key=f"{getattr(cls, 'GROUP', '')}.{name}"))
    return tuple(options)


@dataclass(frozen=True)
class Checked:
    """Base of dataclasses that check their declared options on construction."""

    GROUP: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for option in describe(self):
            if option.kind in (int, float, str, bool, *_SHAPES):
                object.__setattr__(self, option.name, checked(option, getattr(self, option.name)))


def checked(option: Option, value: Any) -> Any:
    """Checks a value, and returns the value converted to the option's type. Raises InvalidTypeError,
    InvalidValueError.
    """
    if isinstance(option.kind, str):
        return _SHAPES[option.kind](option, value)
    if value is None and option.default is None:
        return None
    value = _scalar(option, value)
    if option.choices and value not in option.choices:
        raise InvalidValueError(f"{option.name} must be one of {', '.join(option.choices)}; got {value!r}")
    low, high = option.minimum, option.maximum
    if option.kind is int and high is None and abs(value) > LARGEST_INT:
        raise InvalidValueError(f"{option.name} must be at most {LARGEST_INT} in size; got {value!r}")
    if (low is not None and value < low) or (high is not None and value > high):
        raise InvalidValueError(f"{option.name} must be {_range_text(low, high)}; got {value!r}")
    return value


def _scalar(option: Option, value: Any) -> Any:
    """Converts a scalar to the option's type if the conversion loses no information. Accepts numpy scalars,
    and ints for floats, but never a bool for a number.
    """
    kind = option.kind
    assert isinstance(kind, type)
    if kind is int and hasattr(value, "__index__") and not isinstance(value, bool):
        return value.__index__()
    if kind is float and hasattr(value, "__float__") and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not abs(number) < FLOAT32_LIMIT:
            raise InvalidValueError(f"{option.name} must be a finite number below 3.4e38; got {value!r}")
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
            entry_text = f"{type(entry).__name__} {entry!r}"
            raise InvalidTypeError(f"{option.name} must contain strings, got {entry_text}")
    return values


def _numbers(option: Option, value: Any) -> tuple[float, ...]:
    """Parses a list of non-negative shares: numbers, or text such as "3,1"."""
    try:
        entries = [e for e in value.split(",") if e.strip()] if isinstance(value, str) else list(value or ())
        numbers = tuple(float(entry) for entry in entries)
    except (TypeError, ValueError, OverflowError):
        raise InvalidTypeError(f"{option.name} must contain numbers, such as 3,1; got {value!r}") from None
    if any(not math.isfinite(number) or number < 0 for number in numbers) or (numbers and sum(numbers) == 0):
        raise InvalidValueError(f"{option.name} must contain numbers of at least 0, not all 0; got {value!r}")
    return numbers


def _pairs(option: Option, value: Any) -> tuple[tuple[Any, float], ...]:
    """Parses `{key: number}` or a sequence of (key, number). Keys are token ids or LoRA paths."""
    entries = tuple(value.items()) if isinstance(value, Mapping) else tuple(() if value is None else value)
    key = str if option.name == "lora" else int
    try:
        pairs = tuple((key(left), float(right)) for left, right in entries)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidTypeError(f"{option.name} must map {key.__name__} to float: {error}") from None
    if key is int and any(abs(int(left)) > LARGEST_INT for left, _ in pairs):
        raise InvalidValueError(f"{option.name}: a token id must fit in 31 bits; got {value!r:.80}")
    if any(math.isnan(number) or (key is str and math.isinf(number)) for _, number in pairs):
        raise InvalidValueError(f"{option.name}: expected finite numbers; got {value!r:.80}")
    return pairs


_SHAPES = {"strings": _strings, "pairs": _pairs, "numbers": _numbers}


def _range_text(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
