# SPDX-License-Identifier: MIT
"""Tests that every form of a grammar either becomes a grammar for llguidance or raises a clear error. Hostile
grammars must cost little time and memory. Either the grammar of a JSON schema matches exactly the schema's
values, or the schema is refused. The cost of the grammar grows with the length of the schema.
"""

from __future__ import annotations

import random
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from llama_cpp import LlamaGrammar

from eaglecpp import Engine, limits
from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.errors import GrammarError
from eaglecpp.limits import PATTERN_CHARS
from eaglecpp.lowlevel import Target
from helpers.models import Models
from helpers.native import make_sampler, open_target
from helpers.tiny_tokenizer import CONTROL, EOS

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.mark.parametrize(
    "arguments",
    [
        {"json_schema": SCHEMA},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    ],
)
def test_a_schema_gives_the_same_grammar_in_every_option(arguments: dict[str, Any]) -> None:
    assert resolve_grammar(**arguments) == resolve_grammar(json_schema='{"type": "object", "properties": '
        '{"name": {"type": "string"}}, "required": ["name"]}')  # fmt: skip
    assert "name" in (resolve_grammar(**arguments) or "")
    assert resolve_grammar(LlamaGrammar.from_string('root ::= "b"')) == resolve_grammar('root ::= "b"')


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"grammar": "root ::= x", "json_schema": SCHEMA}, ValueError, "not grammar and json_schema"),
        ({"grammar": 5}, TypeError, "found int"),
        ({"json_schema": "{"}, GrammarError, "the JSON schema cannot be read"),
        ({"json_schema": {"const": {1}}}, GrammarError, "the JSON schema cannot be read"),
        ({"grammar": 'root ::= ("a"\n'}, GrammarError, "Expected ')'"),
        ({"grammar": 'root ::= "a" )'}, GrammarError, "does not parse"),
        ({"grammar": 'root ::= "a\nb'}, GrammarError, "line 1, column 10: expected an element"),
        ({"grammar": 'root ::= "\\q"'}, GrammarError, "expected a character or its escape, found '\\\\q\"'"),
        ({"grammar": "root ::= *"}, GrammarError, "does not parse"),
        ({"grammar": "root ::= [z-a]"}, GrammarError, "a range in ascending order"),
        ({"grammar": 'root = "a"'}, GrammarError, "column 6: expected an element"),
        ({"grammar": 'x ::= "a"'}, GrammarError, "no rule 'root'"),
        ({"grammar": "root ::= none"}, GrammarError, "no rule 'none'"),
        (
            {"grammar": f'root ::= "a"{{{10**20}}}'},
            GrammarError,
            "at most 1000000000 repetitions, found 1000",
        ),
        ({"grammar": "root ::= <[3]>"}, GrammarError, "write a token as quoted text"),
        ({"grammar": 'root ::= "a" !<t>'}, GrammarError, "write a token as quoted text"),
        ({"grammar": f'root ::= "{"a" * (1 << 17)}"'}, GrammarError, "at most 131072 bytes, found"),
        ({"grammar": "root ::= " + "(" * 100_000}, GrammarError, "at most 64 levels of nested groups"),
        ({"grammar": 'root ::= "\ud800"'}, GrammarError, "half of a surrogate pair"),
        ({"response_format": {"type": "xml"}}, ValueError, "found 'xml'"),
        ({"response_format": {"type": "json_schema"}}, ValueError, "expected a schema"),
        ({"response_format": "json"}, TypeError, "expected a dict"),
    ],
)
def test_an_invalid_grammar_is_refused(
    arguments: dict[str, Any], error: type[Exception], text: str, target: Target
) -> None:
    with pytest.raises(error) as caught:
        make_sampler(target, grammar=resolve_grammar(**arguments) or "")
    assert text in str(caught.value)


def test_the_limits_match_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    section = text.partition("## Limits of grammars")[2].partition("\n## ")[0]
    table = {int(number) for row in section.splitlines() if row.startswith("|")
             for number in re.findall(r"\b[0-9]+\b", row)}  # fmt: skip
    prefixes = ("SCHEMA_", "GBNF_", "GRAMMAR_", "PATTERN_")
    assert {value for name, value in vars(limits).items() if name.startswith(prefixes)} <= table


@pytest.fixture(scope="module")
def target(models: Models) -> Target:
    return open_target(models.target)


def chain(n: int) -> str:
    return "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(n)) + f'r{n} ::= "a"'


def endure(grammar: Any, target: Target, n: int) -> str:
    """Follows n random tokens that a grammar or JSON schema allows. Returns "", or the reason if the text
    ended early.
    """
    rng, form = random.Random(5), "grammar" if isinstance(grammar, str) else "json_schema"
    try:
        sampler = make_sampler(target, grammar=resolve_grammar(**{form: grammar}) or "")
        for _ in range(n):
            choices = [token for token, may in enumerate(sampler.allowed()) if may and token >= len(CONTROL)]
            if not choices:
                return "over"
            sampler.accept(rng.choice(choices))
    except GrammarError as error:
        return str(error)
    return ""


AMBIGUOUS = 'root ::= s\ns ::= "a" | "a" s | "a" s s | "a" s s s'
HOSTILE: dict[str, Any] = {
    "groups": ("root ::= " + "(" * 60 + '"a"' + ")" * 60, 1),
    "chain": (chain(900), 1),
    "long-chain": (chain(50_000), 1),
    "optional-groups": ("root ::= " + "(" * 60 + '"a"' + ")?" * 60, 1),
    "repeated": ('root ::= "a"{1000000000}', 300),
    "nested-repeats": ('root ::= ((("a"{1000000}){1000000}){1000000}){1000000}', 300),
    "stars": ('root ::= "a"' + "*" * 20_000, 300),
    "alternatives": (
        "root ::= (" + " | ".join(f"x{i}" for i in range(200)) + ")*\n"
        + "\n".join(f'x{i} ::= "a" "a"*' for i in range(200)), 300,
    ),
    "exponential": ('root ::= s\ns ::= "a" s "b" | "a" s "c" | "a"', 300),
    "optionals": ("root ::= " + '"a"? ' * 1000, 100),
    "doubling": (
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)) + '\nr60 ::= "a"?', 300,
    ),
    "ambiguous": (AMBIGUOUS, 100),
    "counting": ('root ::= (("a" | "aa"){1,100000} | "a"){1,100000}', 300),
    "many-counters": ("root ::= " + " | ".join(['("a" | "aa"){200,999}'] * 4000), 300),
    "endless": ('root ::= x\nx ::= "a" x', 300),
    "left-recursive": ('root ::= root "a" | "b"', 300),
    "hidden-left-recursion": ('root ::= b\nb ::= c* root\nc ::= "c"', 300),
    "empty-loop": ('root ::= ("a"? root)* "b"', 300),
    "deep": ('root ::= s\ns ::= "a" s "b" | "a" s "c" | "a" s "d"', 300),
    "impossible": ('root ::= "a" x\nx ::= "b" x', 50),
}  # fmt: skip


def test_damaged_grammars_are_read_or_refused(target: Target) -> None:
    seeds = [
        'root ::= ("a" | x{2,3} [^b-d\\u00e9]*)+ # note\nx ::= . "\\x41"?\n',
        'root ::= s\ns ::= "(" s ")" s | ""\nz ::= [\\]\\-a] ( s ( s )? ){0,}\r\n',
        'root ::= "日本"{1,4} | ([ぁ-ゟ] | "é")*\n',
    ]
    rng, n_read = random.Random(11), 0
    for _ in range(300):
        text = list(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text))
            text[at : at + rng.randint(0, 3)] = rng.choices(
                '()[]{}|*+?."\\^-<>!#:=\n ,019axrsuUt', k=rng.randint(0, 2)
            )
        n_read += not endure("".join(text), target, 8)
    assert 10 < n_read < 280


def test_a_rule_may_have_any_name_and_any_character(target: Target) -> None:
    """Tests names of rules and escapes of characters that GBNF allows. llguidance's own converter supports
    only some of them.
    """
    text = (
        'root ::= start Start-A startA\nstart ::= "/\\x41\\"\\\\"\n'
        "Start-A ::= [\\-/&~^-]{2}\nstartA ::= [^\\U0001F600a-z]"
    )
    sampler = make_sampler(target, grammar=resolve_grammar(text) or "")
    for byte in b'/A"\\-/Q':
        assert not sampler.allowed()[EOS]
        sampler.accept(len(CONTROL) + byte)
    assert next(token for token, may in enumerate(sampler.allowed()) if may) == EOS


def test_text_that_a_grammar_forces_is_drafted_without_a_drafter(models: Models) -> None:
    schema = {"type": "object", "properties": {"name_of_the_customer": {"enum": ["a", "b"]}}}
    form = {"json_schema": schema | {"required": ["name_of_the_customer"]}, "max_tokens": 60}
    with Engine.open(models.target, n_ctx=256, n_threads=1) as engine:
        assert engine.exactness.rows == "1", "before the first grammar, nothing is measured"
        for temperature in (0.0, 0.8):
            options = {**form, "temperature": temperature, "seed": 1}
            plain = engine.generate("ab cd", strategy="off", **options)
            usual = engine.generate("ab cd", **options)
            assert usual.timings.plan["strategy"] == "auto" and usual.timings.exact
            forced = engine.generate("ab cd", strategy="chain:8", **options)
            assert forced.tokens == usual.tokens == plain.tokens
            assert forced.timings.text_draft_n_accepted == forced.timings.draft_n_accepted > 0
            assert forced.timings.rounds < plain.timings.rounds
        assert engine.generate("ab cd", max_tokens=5).timings.plan["strategy"] == "off"
    with Engine.open(models.target, n_ctx=256, n_threads=1, text_drafts="off") as engine:
        assert engine.generate("ab cd", **form).timings.draft_n == 0


def test_forced_drafts_wait_until_no_other_answer_runs(models: Models) -> None:
    """Tests that forced drafts wait until no other answer runs. The first forced drafts measure batch sizes,
    which would delay other answers.
    """
    form: dict[str, Any] = {"json_schema": {"const": "a long constant text"}, "strategy": "chain:8"}
    options = {"n_ctx": 256, "n_threads": 1, "n_sequences": 2}
    with Engine.open(models.target, **options) as engine, engine.session() as other:
        with other.stream("ab cd", max_tokens=100, ignore_eos=True) as stream:
            next(stream)
            assert engine.generate("ab cd", **form).timings.draft_n == 0
            n_before = len(stream.completion().tokens)
            assert len(next(stream).tokens) > 0 and n_before > 0
        assert engine.generate("ab cd", **form).timings.draft_n > 0


# JSON schemas


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
PARTS = {"x": {"properties": {"a": {"const": 1}}}, "y": {"properties": {"b": {"const": 2}}}}
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
            {"allOf": [*PARTS.values()]},
            ['{"a":1,"b":2}', "{}"],
            ['{"a":2}'],
        ),
        # the automaton in llguidance has no look-around assertions
        ({"pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}, ['"-1.50"'], ['"b"', "1"]),  # pydantic's Decimal
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
        ({"pattern": r"^{[^[\]&&x]\<\p{L}{2}$"}, ['"{a<bc"'], ['"{[<bc"', '"{&<bc"']),
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
        (
            {"items": {"$id": "t", "allOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}], "$defs": PARTS}},
            ['[{"a":1,"b":2}]'],
            ['[{"a":2}]'],
        ),
        # models may repeat a digit without end
        ({"type": "integer"}, ["-" + "9" * 18], ["9" * 20]),
        ({"format": "time"}, ['"23:59:60.123456789+01:00"'], ['"23:59:60.' + "1" * 20 + 'Z"']),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["0", "-" + "9" * 18], ["9" * 20]),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1.7e308}, ["0.5"], ["-1"]),
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
    "many-refs": {
        "anyOf": [{"$ref": f"#/$defs/{i}"} for i in range(400)],
        "$defs": {str(i): {} for i in range(400)},
    },
}


ENDURED = HOSTILE | {name: (schema, 3) for name, schema in (JOINED | COSTLY).items()}


@pytest.mark.alone  # this test measures time
@pytest.mark.parametrize("name", ENDURED)
def test_hostile_grammars_and_schemas_cost_little_or_are_refused(name: str, target: Target) -> None:
    """Tests that hostile grammars and schemas need little time and stack, or are refused. With llama.cpp's
    parser and sampler, and in former versions, many of them killed the process or blocked it for minutes.
    """
    grammar, n = ENDURED[name]
    start, usual = time.process_time(), threading.stack_size(1 << 19)
    try:
        thread = threading.Thread(target=endure, args=(grammar, target, n))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(usual)
    assert time.process_time() - start < 5
