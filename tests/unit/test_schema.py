# SPDX-License-Identifier: MIT
"""The grammar of a JSON schema matches exactly the values of the schema, or the schema is refused. The cost
of a grammar grows with the schema's text.
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

pytestmark = pytest.mark.alone  # measures time


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
TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["v"],
}
LIST = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {"type": "object", "properties": {"v": {"type": "null"}, "next": {"$ref": "#/$defs/node"}}}
    },
}
TWO = {"type": "array", "items": {"type": "null"}}
WHOLE = {"type": "integer"}
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
            PERSON | {"required": []},
            ["{}", '{"a":1}', '{"c":true}', '{"a":1,"c":true}'],
            ['{"c":true,"a":1}'],
        ),
        (
            {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
            ['{"a":[1,{"x":null}],"z":3}', '{"z":3,"y":4}', "{}"],
            ['{"z":"3"}'],
        ),
        ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a":1}']),
        (TREE, ['{"v":1}', '{"v":1,"kids":[{"v":2,"kids":[{"v":3}]},{"v":4}]}'], ['{"v":1,"kids":[1]}']),
        (LIST, ["{}", '{"v":null,"next":{"next":{}}}'], ['{"next":1}']),
        (TWO | {"minItems": 2, "maxItems": 3}, ["[null,null]", "[null,null,null]"], ["[null]"]),
        (TWO | {"maxItems": 2}, ["[]", "[null]", "[null,null]"], ["[null,null,null]"]),
        ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
        ({"type": "array", "minItems": 1}, ["[1]", '["x",{}]'], ["[]"]),
        ({"prefixItems": [{"const": 1}, {"type": "string"}]}, ['[1,"a"]', "[1]"], ['["a",1]']),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', r'"a\né"'], ['"a"', '"abcd"']),
        ({"type": "string"}, ['""', r'"\""'], ['"\n"', '"a']),
        ({"type": "string", "format": "date"}, ['"2026-01-31"'], ['"2026-13-01"']),
        (nested(64), ["[" * 64 + "null" + "]" * 64], ["null"]),
        ({"title": "anything"}, ["1", "[true]", '"x"', "{}"], ["x"]),
        ({"enum": ["a\nb", 'q"', 1.5, None]}, [r'"a\nb"', r'"q\""', "1.5", "null"], ['"a\nb"', "1"]),
        ({"const": {"é": [1]}}, ['{"é":[1]}'], ['{"é":[2]}']),
        (
            {"allOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}}]},
            ['{"a":1,"b":2}', "{}"],
            ['{"a":2}'],
        ),
        ({"type": "string", "allOf": [{"enum": ["x", 1]}]}, ['"x"'], ["1", '"y"']),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "additionalProperties": {"type": "string"},
            },
            ['{"a":1,"b":"x"}'],
            ['{"a":1,"a":"x"}'],
        ),
        ({"type": "string", "pattern": r"^\p{L}$"}, ['"é"'], ['"1"']),
        ({"type": "string", "pattern": r"^(?<year>\d{2})$"}, ['"26"'], ['"2"']),
        ({"type": "string", "pattern": "^(?=a)$"}, ['"b"'], ["1"]),
        ({"pattern": r"^a($|/)+$"}, ['"b"'], ["1"]),  # an automaton has no look-around assertions
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
        ({"type": "string", "pattern": "^(ab?){2,3}[x-z]+$"}, ['"aaz"', '"abaaxx"'], ['"abx"', '"aa"']),
        ({"pattern": r"^\d{3}-\w*?[^b]$"}, ['"123-a_"', r'"123-\n"'], ['"12-a"', '"123-b"']),
        ({"pattern": r"^\.[\d\-é]\\$"}, [r'".5\\"', r'".é\\"'], [r'"x5\\"', r'".5\"']),
        ({"pattern": '^["a]"?$'}, ['"a"', r'"\"\""'], ['"""', '""']),
        ({"pattern": "^.$"}, ['"a"', r'"\\"', '"é"'], ['"\\"', r'"\n"', '"""']),
        ({"pattern": "^$"}, ['""'], ['"a"']),
        ({"pattern": r"\S"}, ['"a"', '" b "'], ['"  "', '""']),
        ({"pattern": "^ab"}, ['"ab"', '"abc"'], ['"xab"']),
        ({"pattern": r"(?<y>\d{2})$"}, ['"12"', '"x12"'], ['"12x"']),
        ({"pattern": r"^a\$"}, ['"a$"', '"a$b"'], ['"a"']),
        (
            {"properties": {"a": {}, "abc": {}, "é\n": {}}, "additionalProperties": {"type": "integer"}},
            ['{"a":"x","b":2}', '{"ab":1,"abcd":2}', '{"":1}', r'{"a":1,"ab\n":2}'],
            ['{"b":2,"a":3}', '{"a":1,"a":1}', r'{"é\n":1,"é\n":1}'],
        ),
        ({"pattern": r"^(?:\D|[^\w])[\[a]$"}, ['"x["', '" a"'], ['"1a"', '"xx"']),
        (WHOLE | {"exclusiveMinimum": 3, "exclusiveMaximum": 6}, ["4", "5"], ["3", "6"]),
        (
            WHOLE | {"minimum": 3, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": True},
            ["4"],
            ["3", "5"],
        ),
        (WHOLE | {"minimum": 2.5, "maximum": 4.5}, ["3", "4"], ["2", "5"]),
        (
            {"properties": {"age": {"type": ["integer", "null"], "minimum": 18, "maximum": 19}}},
            ['{"age":18}', '{"age":null}'],
            ['{"age":20}'],
        ),
        ({"type": ["string", "null"], "enum": ["a", None]}, ['"a"', "null"], ['"b"']),
        (  # references inside a part with an id refer to that part
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


@pytest.mark.parametrize(("low", "high"), [(-12, 105), (7, 7), (-1203, -98), (98, 10**6 + 5)])
def test_a_range_has_exactly_its_integers(low: int, high: int, target: Target) -> None:
    schema = WHOLE | {"minimum": low, "maximum": high}
    for n in [n for edge in (low, high, -100, -10, 0, 10, 100, 1000) for n in range(edge - 12, edge + 13)]:
        assert fits(target, schema, str(n)) == (low <= n <= high), n
    for text in ("007", "+1", "", "-"):
        assert not fits(target, schema, text), text


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("[" * 100_000, "cannot be read"),
        ({"type": "strin"}, "Invalid type: strin"),
        ({"enum": []}, "anyOf is empty"),
        ({"properties": []}, "properties must be an object"),
        ("3", "expected an object or true, found 3"),
        ({"$ref": "https://example.com"}, "not present in a registry"),
        ({"$ref": "#/$defs/none"}, "Pointer '/$defs/none' does not exist"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength (3) is greater than maxLength (2)"),
        ({"type": "array", "minItems": "3"}, "minItems"),
        ({"type": "string", "maxLength": 10**10}, "at most 1000000000 in maxLength, found 10000000000"),
        ({"type": "string", "pattern": "^a{5,2}$"}, "invalid repetition count range"),
        ({"type": "string", "pattern": "^a{1,4294967296}$"}, "decimal literal invalid"),
        ({"type": "string", "pattern": "^(a$"}, "unclosed group"),
        ({"type": "string", "pattern": "^" + "(" * 3000 + ")" * 3000 + "$"}, "regex parse error"),
        ({"enum": ["x" * (1 << 20)]}, "at most 1048576 bytes, found"),
        ({"anyOf": [HALF, HALF, HALF]}, f"at most {PATTERN_CHARS} characters in all patterns"),
        (WHOLE | {"minimum": 5, "maximum": 4}, "minimum (5) is greater than maximum (4)"),
        (nested(65), "at most 64 schemas within each other, found 65"),
        (
            {"properties": {f"p{i}": {"type": "null"} for i in range(3000)}},
            "at most 3000 schemas, found 3001",
        ),
        (
            # this schema once took more than 40 s
            {"patternProperties": {f"^x{i}[a-z]*$": {} for i in range(1000)}},
            "at most 80 patterns of properties, found 1000",
        ),
        ({"type": "integer", "multipleOf": 99.9983}, "multiple of all multipleOf, found 999983"),  # took 30 s
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": -991}]}, "found 988027"),
    ],
)
def test_an_unsupported_schema_is_refused_with_a_reason(schema: Any, text: str, target: Target) -> None:
    with pytest.raises(GrammarError) as caught:
        fits(target, schema, "")
    assert text in str(caught.value)


def chained(n: int, one: Any) -> dict[str, Any]:
    """Returns nested schemas; `one` wraps a reference."""
    parts = {str(i): one({"$ref": f"#/$defs/{i + 1}"}) for i in range(n)}
    return {"$defs": parts | {str(n): {"type": "string"}}, "$ref": "#/$defs/0"}


ALTERNATIVES = {"anyOf": [{"type": "string"}, {"pattern": "a"}, {"type": "object", "properties": {"a": {}}}]}


@pytest.mark.parametrize(
    "schema",
    [
        chained(900, lambda ref: ref),
        chained(400, lambda ref: {"properties": {"a": ref}}),
        chained(300, lambda ref: {"allOf": [ref], "minLength": 1}),
        chained(60, lambda ref: {"allOf": [ref, ref]}),
        chained(60, lambda ref: {"anyOf": [ref, ref]}),
        chained(60, lambda ref: {"type": "array", "prefixItems": [ref, ref]}),
        {"allOf": [ALTERNATIVES] * 25},
        {"allOf": [{"patternProperties": {f"^x{i}[a-z]*$": {}}} for i in range(80)]},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
    ],
    ids=[
        "refs",
        "properties",
        "all-of",
        "twice-all",
        "twice-any",
        "items",
        "product",
        "names",
        "self",
        "self-all",
    ],
)
def test_joined_and_chained_schemas_cost_little_or_are_refused(schema: Any, target: Target) -> None:
    """Joined and chained schemas need little stack and time, or are refused."""

    def make() -> None:
        with contextlib.suppress(GrammarError):
            fits(target, schema, "")

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


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^a{1,300000}$"},
        {"type": "string", "pattern": "^((a{1,1000000000}){1,1000000000}b)*$"},
        {"type": "string", "minLength": 10**9},
        {"type": "string", "maxLength": 10**9},
        {"type": "array", "items": {"type": "string"}, "minItems": 10**9},
        {"type": "array", "items": {"type": "string"}, "minItems": 1000, "maxItems": 10**9},
        {"enum": [f"word {i}" for i in range(20_000)]},
        {"type": "object", "properties": {chr(0x4E00 + i): {"type": "string"} for i in range(2000)}},
        {"type": "object", "properties": {f"p{i}": {"pattern": rf"^a{i}$|\b$"} for i in range(2000)}},
        {
            "anyOf": [{"$ref": f"#/$defs/{i}"} for i in range(400)],
            "$defs": {str(i): {} for i in range(400)},
        },
    ],
    ids=[
        "pattern",
        "patterns",
        "min-length",
        "max-length",
        "min-items",
        "items",
        "enum",
        "object",
        "look-around",
        "refs",
    ],
)
def test_the_cost_of_a_schema_grows_with_its_text(schema: Any, target: Target) -> None:
    """The cost is time (many of these once took minutes, gigabytes or the process) and the size of the
    grammar.
    """
    start = time.process_time()
    text = resolve_grammar(json_schema=schema) or ""
    sampler = make_sampler(target, grammar=text)
    for _ in range(3):
        allowed = sampler.allowed()
        sampler.accept(next(token for token in range(EOS + 1, len(allowed)) if allowed[token]))
    assert time.process_time() - start < 5
