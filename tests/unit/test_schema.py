# SPDX-License-Identifier: MIT
"""Bounds of integers and lists of types in JSON schemas reach the grammar."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.engine.schema import integers
from eaglecpp.errors import GrammarError


def pattern(gbnf: str) -> re.Pattern[str]:
    """The same language as a regular expression; enough for what `integers` writes."""
    return re.compile(re.sub(r'"(.)"', r"\1", gbnf).replace(" ", ""))


def accepted(low: int | None, high: int | None, candidates: set[int]) -> set[int]:
    grammar = pattern(integers(low, high))
    return {x for x in candidates if grammar.fullmatch(str(x))}


def test_small_ranges_hold_exactly_their_integers() -> None:
    everything = set(range(-130, 131))
    for low in range(-25, 25):
        for high in range(low, 26):
            assert accepted(low, high, everything) == set(range(low, high + 1)), (low, high)


def test_large_ranges_end_where_they_should() -> None:
    rng = random.Random(1)
    for _ in range(300):
        low, high = sorted(
            rng.randint(-(10 ** rng.randint(1, 15)), 10 ** rng.randint(1, 15)) for _ in range(2)
        )
        inside = {low, high, *(rng.randint(low, high) for _ in range(20))}
        outside = {low - 1, high + 1, low - 10 ** rng.randint(0, 15), high + 10 ** rng.randint(0, 15)}
        assert accepted(low, high, inside | outside) == inside, (low, high)


@pytest.mark.parametrize(("low", "high"), [(None, -5), (-7, None), (0, None), (None, 0), (12, None)])
def test_open_ends_take_every_length(low: int | None, high: int | None) -> None:
    values = {s * 10**n + d for n in range(15) for s in (-1, 1) for d in (-1, 0, 1)} | {-7, -5, 12}
    assert accepted(low, high, values) == {
        x for x in values if (low is None or x >= low) and (high is None or x <= high)
    }


def test_leading_zeros_and_minus_zero_are_no_integers() -> None:
    for text in ("007", "-0", "+1", "", "-"):
        assert not pattern(integers(-50, 50)).fullmatch(text)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"minimum": 3, "maximum": 5}, {3, 4, 5}),
        ({"exclusiveMinimum": 3, "exclusiveMaximum": 6}, {4, 5}),
        ({"minimum": 3, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": True}, {4}),
        ({"minimum": 2.5, "maximum": 4.5}, {3, 4}),
        ({"minimum": -1, "maximum": 1}, {-1, 0, 1}),
    ],
)
def test_all_forms_of_bounds(bounds: dict[str, Any], expected: set[int]) -> None:
    text = resolve_grammar(json_schema={"type": "integer", **bounds})
    assert text is not None
    rule = re.search(r"^root ::= \((.*)\) space$", text, re.M)
    assert rule is not None
    assert {x for x in range(-20, 20) if pattern(rule[1]).fullmatch(str(x))} == expected


def test_bounds_of_an_inner_property_and_beside_null() -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": ["integer", "null"], "minimum": 18, "maximum": 19}},
    }
    text = resolve_grammar(json_schema=json.dumps(schema)) or ""
    assert '"1" ([8-9])' in text and "null" in text
    assert "integer ::=" not in text


def test_an_enumeration_counts_beside_a_list_of_types() -> None:
    text = resolve_grammar(json_schema={"type": ["string", "null"], "enum": ["a", None]}) or ""
    assert '"\\"a\\""' in text and '"null"' in text


@pytest.mark.parametrize("bounds", [{"minimum": 5, "maximum": 4}, {"minimum": 10**20}])
def test_bounds_with_nothing_between_are_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match=r"no integer|up to 16 digits"):
        resolve_grammar(json_schema={"type": "integer", **bounds})
