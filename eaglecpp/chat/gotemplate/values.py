# SPDX-License-Identifier: MIT
"""Go values as Python ones, and the three things every action needs of them: truth, text, JSON.

    nil        None            an interface that holds nothing
    (invalid)  NO_VALUE        what is not there at all; prints as <no value>
    string     str             bytes that are not UTF-8 are surrogates U+DC80 to U+DCFF
    bool, int, float64         bool, int, float
    slice      list, tuple     an empty tuple is nil
    map        dict            str keys; Go walks and prints them sorted
    struct     Struct          a fixed set of fields; any other field is an error

Strings count and slice in bytes, as in Go. Sources: golang/go: src/fmt, src/encoding/json.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from eaglecpp.errors import InvalidValueError

__all__ = [
    "NO_VALUE",
    "JsonDict",
    "JsonList",
    "Struct",
    "TypeNames",
    "go_json",
    "is_true",
    "printed",
    "to_bytes",
    "to_text",
    "type_name",
]

Value = Any
"""One of the values above; the interpreter checks types at run time, as Go does for interfaces."""


class _NoValue:
    def __repr__(self) -> str:
        return "NO_VALUE"


NO_VALUE = _NoValue()


class Struct:
    """A Go struct: named fields in order.

    json_names: field -> name in JSON, for the fields that JSON has; a name that ends in "?" is left out when
                the field is empty. None: every field under its own name
    prints_json: whether it prints as JSON instead of as {a b c}
    """

    __slots__ = ("fields", "json_names", "prints_json", "type_name")

    def __init__(
        self,
        type_name: str,
        fields: Mapping[str, Value],
        json_names: Mapping[str, str] | None = None,
        prints_json: bool = False,
    ) -> None:
        self.type_name = type_name
        self.fields = fields
        self.json_names = json_names
        self.prints_json = prints_json


class JsonList(list[Value]):
    """A slice that prints as JSON."""


class JsonDict(dict[str, Value]):
    """A map that prints as JSON."""


class TypeNames(tuple[str, ...]):
    """The type of a tool's property: one name, or several. One prints as the bare name."""


def is_true(value: Value) -> bool:
    """Go's truth: nil, zero, false and everything of length zero are false; a struct is true."""
    if value is None or value is NO_VALUE:
        return False
    return isinstance(value, Struct) or bool(value)


def to_bytes(text: str) -> bytes:
    """The bytes of a string."""
    return text.encode("utf-8", "surrogateescape")


def to_text(data: bytes) -> str:
    """The string of some bytes; what is not UTF-8 becomes surrogates."""
    return data.decode("utf-8", "surrogateescape")


def type_name(value: Value) -> str:
    """The Go type, for messages."""
    if value is None or value is NO_VALUE:
        return "<nil>"
    if isinstance(value, Struct):
        return value.type_name
    names = {bool: "bool", int: "int", float: "float64", str: "string"}
    return names.get(type(value)) or (
        "map[string]interface {}" if isinstance(value, dict) else "[]interface {}"
    )


def printed(value: Value) -> str:
    """What printing the value gives, as `%v`."""
    if isinstance(value, str):
        return value
    if value is None:
        return "<nil>"
    if value is NO_VALUE:
        return "<no value>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, JsonList | JsonDict) or (isinstance(value, Struct) and value.prints_json):
        return go_json(value)
    if isinstance(value, Struct):
        return "{" + " ".join(printed(field) for field in value.fields.values()) + "}"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{printed(value[key])}" for key in sorted_keys(value)) + "]"
    if isinstance(value, TypeNames) and len(value) <= 1:
        return "".join(value)
    return "[" + " ".join(printed(element) for element in value) + "]"


def sorted_keys(value: Mapping[str, Value]) -> list[str]:
    """Keys in the order of their bytes, which is Go's."""
    return sorted(value, key=to_bytes)


def float_text(value: float, low: int = -4, high: int = 6) -> str:
    """The shortest digits that give the number back; in exponent form outside 10**low to 10**high."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    digits, exponent = f"{Decimal(repr(abs(value))).normalize():e}".lower().split("e")
    digits = digits.replace(".", "")
    power = int(exponent)
    minus = "-" if math.copysign(1, value) < 0 else ""
    if value != 0 and not low <= power < high:
        return f"{minus}{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}e{power:+03d}"
    if power < 0:
        return f"{minus}0.{'0' * (-power - 1)}{digits}"
    whole, fraction = digits[: power + 1].ljust(power + 1, "0"), digits[power + 1 :]
    return f"{minus}{whole}.{fraction}" if fraction else minus + whole


_JSON_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_JSON_SPECIAL = re.compile("[<>&\u2028\u2029\udc80-\udcff]")


def go_json(value: Value) -> str:
    """The value as Go's encoding/json writes it: no spaces, map keys sorted, `<`, `>` and `&` escaped."""
    return "".join(_json_parts(value))


def _json_parts(value: Value) -> Iterator[str]:
    if value is None or value is NO_VALUE:
        yield "null"
    elif isinstance(value, str):
        yield _json_string(value)
    elif isinstance(value, bool | int):
        yield json.dumps(value)
    elif isinstance(value, float):
        yield _json_float(value)
    elif isinstance(value, Struct):
        yield from _json_object(_json_fields(value))
    elif isinstance(value, TypeNames) and len(value) == 1:
        yield _json_string(value[0])
    elif isinstance(value, dict):
        yield from _json_object((key, value[key]) for key in sorted_keys(value))
    else:
        yield from _json_array(value)


def _json_object(items: Any) -> Iterator[str]:
    yield "{"
    for index, (key, element) in enumerate(items):
        yield ("," if index else "") + _json_string(key) + ":"
        yield from _json_parts(element)
    yield "}"


def _json_array(elements: Any) -> Iterator[str]:
    if not elements and isinstance(
        elements, tuple | JsonList
    ):  # a slice of a struct that holds nothing is nil
        yield "null"
        return
    yield "["
    for index, element in enumerate(elements):
        if index:
            yield ","
        yield from _json_parts(element)
    yield "]"


def _json_fields(value: Struct) -> Iterator[tuple[str, Value]]:
    names = value.json_names if value.json_names is not None else {field: field for field in value.fields}
    for field, name in names.items():
        if not (name.endswith("?") and not is_true(value.fields[field])):
            yield name.removesuffix("?"), value.fields[field]


def _json_string(text: str) -> str:
    escaped = json.dumps(text, ensure_ascii=False)
    return _JSON_SPECIAL.sub(lambda match: _JSON_ESCAPES.get(match[0], "\\ufffd"), escaped)


def _json_float(value: float) -> str:
    if not math.isfinite(value):
        raise InvalidValueError(f"json: unsupported value: {float_text(value)}")
    return re.sub(r"e-0(\d)$", r"e-\1", float_text(value, low=-6, high=21))
