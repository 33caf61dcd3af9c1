# SPDX-License-Identifier: MIT
"""Every way to ask for a grammar ends in one GBNF text, or in a clear error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from llama_cpp import LlamaGrammar

from eaglecpp import Engine
from eaglecpp._extension import core
from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.errors import GrammarError
from helpers.models import Models

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.mark.parametrize(
    "arguments",
    [
        {"json_schema": SCHEMA},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    ],
)
def test_a_schema_gives_the_same_grammar_wherever_it_stands(arguments: dict[str, Any]) -> None:
    assert resolve_grammar(**arguments) == resolve_grammar(json_schema='{"type": "object", "properties": '
        '{"name": {"type": "string"}}, "required": ["name"]}')  # fmt: skip
    assert "name" in (resolve_grammar(**arguments) or "")
    assert resolve_grammar(LlamaGrammar.from_string('root ::= "b"')) == 'root ::= "b"'


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"grammar": "root ::= x", "json_schema": SCHEMA}, ValueError, "not grammar and json_schema"),
        ({"grammar": 5}, TypeError, "got int"),
        ({"json_schema": "{"}, GrammarError, "the JSON schema cannot be read"),
        ({"json_schema": {"$ref": "#/definitions/none"}}, GrammarError, "the reference leads nowhere"),
        ({"json_schema": {"const": {1}}}, GrammarError, "the schema is not JSON"),
        ({"grammar": 'root ::= "\ud800"'}, GrammarError, "half a surrogate pair"),
        ({"response_format": {"type": "xml"}}, ValueError, "got 'xml'"),
        ({"response_format": {"type": "json_schema"}}, ValueError, "has no schema"),
        ({"response_format": "json"}, TypeError, "must be a dict"),
    ],
)
def test_what_cannot_be_a_grammar_is_refused(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        resolve_grammar(**arguments)
    assert text in str(caught.value)


def test_the_limits_are_the_documented_ones() -> None:
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    section = text.partition("## Limits of grammars")[2].partition("\n## ")[0]
    table = {int(number) for row in section.splitlines() if row.startswith("|")
             for number in re.findall(r"\b[0-9]+\b", row)}  # fmt: skip
    assert set(core.grammar_limits().values()) <= table


def test_what_a_grammar_forbids_is_not_drafted(models: Models) -> None:
    """This drafter thinks of words."""
    with Engine.open(models.target, models.draft, n_ctx=256, n_threads=1, strategy="chain:1") as engine:
        digits = engine.generate("ab cd", grammar="root ::= [0-9]+", max_tokens=30, temperature=0.0)
        anything = engine.generate("ab cd", max_tokens=30, temperature=0.0)
    assert digits.timings.rounds > 20 and digits.timings.draft_n < 0.2 * digits.timings.rounds
    assert anything.timings.draft_n > 0.8 * anything.timings.rounds
