# SPDX-License-Identifier: MIT
"""Tests JSON schemas. Either the grammar of a schema matches exactly the schema's values, or the schema is
refused. The cost of the grammar grows with the length of the schema.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from typing import Any

import pytest

from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.errors import GrammarError
from eaglecpp.limits import PATTERN_CHARS
from eaglecpp.lowlevel import Target
from helpers.models import Models
from helpers.native import make_sampler, open_target
from helpers.tiny_tokenizer import CONTROL, EOS

pytestmark = pytest.mark.alone  # these tests measure time


@pytest.fixture(scope="module")
def target(models: Models) -> Target:
    return open_target(models.target)


def fits(target: Target, schema: Any, text: str) -> bool:
    """Returns True if the whole text follows the schema's grammar, which has a space after each separator."""
    sampler = make_sampler(target, grammar=resolve_grammar(json_schema=schema) or "")
    spaced = re.sub(r'("(?:\\.|[^"\\])*")|([:,])', lambda found: found[1] or found[2] + " ", text)
    try:
        for byte in spaced.encode():
            sampler.accept(len(CONTROL) + byte)
    except GrammarError:
        return False
    return sampler.allowed()[EOS]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


PERSON = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "boolean"}},
    "required": ["b"],
}
ONE, TWOS = {"x": {"const": 1}}, {"x": {"const": 2}}
HALF = {"type": "string", "pattern": "^" + "a" * (PATTERN_CHARS // 2) + "$"}


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        (
            PERSON,
            ['{"b":"x"}', '{"a":1,"b":"","c":true}', '{"b":"x","c":false}'],
            ["{}", '{"a":1}', '{"b":"","b":""}'],
        ),
        (
            {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
            ['{"a":[1,{"x":null}],"z":3}', '{"z":3,"y":4}', "{}"],
            ['{"z":"3"}'],
        ),
        ({"prefixItems": [{"const": 1}, {"type": "string"}]}, ['[1,"a"]', "[1]"], ['["a",1]']),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', r'"a\né"'], ['"a"', '"abcd"']),
        ({"type": "string"}, ['""', r'"\""'], ['"\n"', '"a']),
        (nested(64), ["[" * 64 + "null" + "]" * 64], ["null"]),
        ({"title": "anything"}, ["1", "[true]", '"x"', "{}"], ["x"]),
        (
            {"allOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}}]},
            ['{"a":1,"b":2}', "{}"],
            ['{"a":2}'],
        ),
        ({"type": "string", "pattern": "^(?=a)$"}, ['"b"'], ["1"]),
        # the automaton in llguidance has no look-around assertions
        ({"pattern": r"^a($|/)+$"}, ['"b"'], ["1"]),
        ({"pattern": r"^a\bc$"}, ['"b"'], ["1"]),
        (
            {"properties": {"a": {"const": 1}}, "required": ["a", "b"]},
            ['{"a":1,"b":[]}', '{"a":1,"b":2}'],
            ['{"a":1}', '{"a":1,"b":2,"c":3}'],
        ),
        (
            {"patternProperties": {"^(?!a)b$": {"const": 1}}, "additionalProperties": False},
            ['{"b":1}', '{"x":1}'],
            ['{"b":2}'],
        ),
        ({"patternProperties": {"a": {"const": 1}, ".": {"const": 2}}}, ['{"ab":1}', '{"b":2}'], ['{"a":3}']),
        ({"allOf": [{"enum": ["x"]}]}, ['"x"'], ["{}"]),
        ({"pattern": r"^\d{3}-\w*?[^b]$"}, ['"123-a_"', r'"123-\n"'], ['"12-a"', '"123-b"']),
        ({"pattern": "^.$"}, ['"a"', r'"\\"', '"é"'], ['"\\"', r'"\n"', '"""']),
        ({"pattern": "^$"}, ['""'], ['"a"']),
        ({"pattern": r"(?<y>\d{2})$"}, ['"12"', '"x12"'], ['"12x"']),
        (
            {"properties": {"age": {"type": ["integer", "null"], "minimum": 18, "maximum": 19}}},
            ['{"age":18}', '{"age":null}'],
            ['{"age":20}'],
        ),
        (  # a reference inside a part with an id refers to that part
            {"properties": {"a": {"$id": "t", "$defs": ONE, "$ref": "#/$defs/x"}}, "$defs": TWOS},
            ['{"a":1}'],
            ['{"a":2}'],
        ),
    ],
)
def test_a_grammar_has_exactly_the_values_of_its_schema(
    schema: Any, yes: list[str], no: list[str], target: Target
) -> None:
    for text in yes:
        assert fits(target, schema, text), text
    for text in no:
        assert not fits(target, schema, text), text


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("[" * 100_000, "cannot be read"),
        ({"type": "strin"}, "Invalid type: strin"),
        ("3", "expected an object or true, found 3"),
        ({"$ref": "https://example.com"}, "not present in a registry"),
        ({"$ref": "#/$defs/none"}, "Pointer '/$defs/none' does not exist"),
        ({"type": "string", "maxLength": 10**10}, "at most 1000000000 for maxLength, found 10000000000"),
        ({"type": "string", "pattern": "^" + "(" * 3000 + ")" * 3000 + "$"}, "regex parse error"),
        ({"enum": ["x" * (1 << 20)]}, "at most 1048576 bytes, found"),
        ({"anyOf": [HALF, HALF, HALF]}, f"at most {PATTERN_CHARS} characters in all patterns"),
        (nested(65), "at most 64 levels of nested schemas, found 65"),
        (
            {"properties": {f"p{i}": {"type": "null"} for i in range(3000)}},
            "at most 3000 schemas, found 3001",
        ),
        (
            # Earlier versions took more than 40 s for this schema.
            {"patternProperties": {f"^x{i}[a-z]*$": {} for i in range(1000)}},
            "at most 80 patterns of properties, found 1000",
        ),
        # earlier versions took 30 s
        ({"type": "integer", "multipleOf": 99.9983}, "multiple of all multipleOf, found 999983"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": -991}]}, "found 988027"),
    ],
)
def test_an_unsupported_schema_is_refused_with_a_reason(schema: Any, text: str, target: Target) -> None:
    with pytest.raises(GrammarError) as caught:
        fits(target, schema, "")
    assert text in str(caught.value)


def chained(n: int, one: Any) -> dict[str, Any]:
    """Returns schemas that refer to each other in a chain. `one` wraps a reference."""
    parts = {str(i): one({"$ref": f"#/$defs/{i + 1}"}) for i in range(n)}
    return {"$defs": parts | {str(n): {"type": "string"}}, "$ref": "#/$defs/0"}


ALTERNATIVES = {"anyOf": [{"type": "string"}, {"pattern": "a"}, {"type": "object", "properties": {"a": {}}}]}


JOINED: dict[str, Any] = {
    "refs": chained(900, lambda ref: ref),
    "properties": chained(400, lambda ref: {"properties": {"a": ref}}),
    "all-of": chained(300, lambda ref: {"allOf": [ref], "minLength": 1}),
    "twice-all": chained(60, lambda ref: {"allOf": [ref, ref]}),
    "twice-any": chained(60, lambda ref: {"anyOf": [ref, ref]}),
    "items": chained(60, lambda ref: {"type": "array", "prefixItems": [ref, ref]}),
    "product": {"allOf": [ALTERNATIVES] * 25},
    "names": {"allOf": [{"patternProperties": {f"^x{i}[a-z]*$": {}}} for i in range(80)]},
    "self": {"$ref": "#"},
    "self-all": {"allOf": [{"$ref": "#"}]},
}


@pytest.mark.parametrize("name", JOINED)
def test_joined_and_chained_schemas_cost_little_or_are_refused(name: str, target: Target) -> None:
    """Tests that joined and chained schemas either need little stack and time, or are refused."""

    def make() -> None:
        with contextlib.suppress(GrammarError):
            fits(target, JOINED[name], "")

    start, usual = time.process_time(), threading.stack_size(1 << 19)
    try:
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(usual)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": True},
        {"if": {"type": "string"}, "then": {"maxLength": 3}},
        {"not": {"type": "string"}},
        {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
        {"type": "string", "format": "phone"},
        {"type": "string", "pattern": "^(?=a)$"},
    ],
)
def test_strict_refuses_keywords_that_are_not_enforced(schema: Any, target: Target) -> None:
    for strict in (False, True):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}
        try:
            make_sampler(target, grammar=resolve_grammar(response_format=form) or "")
            assert not strict
        except GrammarError:
            assert strict


COSTLY: dict[str, Any] = {
    "pattern": {"type": "string", "pattern": "^a{1,300000}$"},
    "patterns": {"type": "string", "pattern": "^((a{1,1000000000}){1,1000000000}b)*$"},
    "min-length": {"type": "string", "minLength": 10**9},
    "max-length": {"type": "string", "maxLength": 10**9},
    "min-items": {"type": "array", "items": {"type": "string"}, "minItems": 10**9},
    "enum": {"enum": [f"word {i}" for i in range(20_000)]},
    "object": {"type": "object", "properties": {chr(0x4E00 + i): {"type": "string"} for i in range(2000)}},
    "look-around": {
        "type": "object",
        "properties": {f"p{i}": {"pattern": rf"^a{i}$|\b$"} for i in range(2000)},
    },
    "refs": {
        "anyOf": [{"$ref": f"#/$defs/{i}"} for i in range(400)],
        "$defs": {str(i): {} for i in range(400)},
    },
}


@pytest.mark.parametrize("name", COSTLY)
def test_the_cost_of_a_schema_grows_with_its_text(name: str, target: Target) -> None:
    """Tests that the cost of a schema grows with its length. The cost is the time and the size of the
    grammar. In former versions, many of these schemas took minutes or gigabytes, or ended the process.
    """
    start = time.process_time()
    sampler = make_sampler(target, grammar=resolve_grammar(json_schema=COSTLY[name]) or "")
    for _ in range(3):
        allowed = sampler.allowed()
        sampler.accept(next(token for token in range(EOS + 1, len(allowed)) if allowed[token]))
    assert time.process_time() - start < 5
