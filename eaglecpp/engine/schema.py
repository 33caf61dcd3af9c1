# SPDX-License-Identifier: MIT
"""JSON schemas to GBNF: llama-cpp-python's translator, and what it ignores.

It allows any integer where a schema has `minimum`, `maximum`, `exclusiveMinimum` or `exclusiveMaximum`, and
forgets everything except `type` if that is a list (llama_cpp/llama_grammar.py, `SchemaConverter.visit`).
The bounds of `number` are not enforced, as in llama.cpp.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from llama_cpp.llama_grammar import RESERVED_NAMES, SchemaConverter

__all__ = ["integers", "schema_to_gbnf"]

N_DIGITS = 16  # of the largest integer, as in the translator's own rule


def schema_to_gbnf(text: str) -> str:
    """A grammar for values of the schema in `text`.

    Raises whatever the translator does with a schema that it cannot read, and ValueError for integer bounds
    that nothing lies between.
    """
    converter = _Converter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
    converter.visit(converter.resolve_refs(json.loads(text), "stdin"), "")
    return str(converter.format_grammar())


class _Converter(SchemaConverter):  # type: ignore[misc]
    def visit(self, schema: dict[str, Any], name: str) -> Any:
        kind = schema.get("type")
        rule_name = name + "-" if name in RESERVED_NAMES else name or "root"
        if schema.keys() & {"$ref", "oneOf", "anyOf"}:
            return super().visit(schema, name)
        if schema.keys() & {"const", "enum"}:  # says more than the type, which would be looked at first
            return super().visit({key: schema[key] for key in schema if key != "type"}, name)
        if isinstance(kind, list):
            each = [{**schema, "type": one} for one in kind]
            return self._add_rule(rule_name, self._generate_union_rule(name, each))
        if kind == "integer":
            low, high = _bounds(schema)
            if low is not None or high is not None:
                return self._add_rule(rule_name, f"({integers(low, high)}) space")
        return super().visit(schema, name)


def _bounds(schema: dict[str, Any]) -> tuple[int | None, int | None]:
    """The least and the largest integer that a schema allows; None: no bound. Booleans are draft 4's."""

    def number(key: str) -> float | None:
        value = schema.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    lows = [] if (x := number("minimum")) is None else [math.ceil(x)]
    highs = [] if (x := number("maximum")) is None else [math.floor(x)]
    if schema.get("exclusiveMinimum") is True and lows:
        lows = [math.floor(schema["minimum"]) + 1]
    if schema.get("exclusiveMaximum") is True and highs:
        highs = [math.ceil(schema["maximum"]) - 1]
    if (x := number("exclusiveMinimum")) is not None:
        lows.append(math.floor(x) + 1)
    if (x := number("exclusiveMaximum")) is not None:
        highs.append(math.ceil(x) - 1)
    low, high = max(lows, default=None), min(highs, default=None)
    if low is not None and high is not None and low > high:
        raise ValueError(f"no integer is at least {low} and at most {high}")
    return low, high


def integers(low: int | None, high: int | None) -> str:
    """GBNF alternatives for the integers from low to high, both included; None: up to N_DIGITS digits."""
    most = 10**N_DIGITS - 1
    low, high = max(-most, -most if low is None else low), min(most, most if high is None else high)
    if low > high:
        raise ValueError(f"integers have up to {N_DIGITS} digits, the schema asks for longer ones")
    parts = list(_naturals(max(low, 0), high)) if high >= 0 else []
    if low < 0:
        negative = " | ".join(_naturals(max(1, -high), -low))
        parts.append(f'"-" ({negative})')
    return " | ".join(parts)


def _naturals(low: int, high: int) -> Iterator[str]:
    """Alternatives for low to high, 0 <= low <= high, one or more for each number of digits."""
    for n in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 0 if n == 1 else 10 ** (n - 1))
        yield from _same_length(str(first), str(min(high, 10**n - 1)))


def _same_length(low: str, high: str) -> Iterator[str]:
    """Alternatives for the numbers between two of the same number of digits."""
    rest = len(low) - 1
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        yield _digit(low[0], high[0]) + (f" [0-9]{{{rest}}}" if rest else "")
    elif low[0] == high[0]:
        yield f'"{low[0]}" ({" | ".join(_same_length(low[1:], high[1:]))})'
    else:
        first, last = int(low[0]), int(high[0])
        if low[1:] != "0" * rest:
            yield from _same_length(low, low[0] + "9" * rest)
            first += 1
        if high[1:] != "9" * rest:
            last -= 1
        if first <= last:
            yield from _same_length(str(first) + "0" * rest, str(last) + "9" * rest)
        if last < int(high[0]):
            yield from _same_length(high[0] + "0" * rest, high)


def _digit(low: str, high: str) -> str:
    return f"[{low}-{high}]" if low != high else f'"{low}"'
