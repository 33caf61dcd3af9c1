# SPDX-License-Identifier: MIT
"""Tests that eaglecpp renders templates as Ollama and Hugging Face do, and reads Modelfiles as Ollama does.
Their own programs produced every expected text.

`templates.jsonl`, from Ollama's template package, one case per line: `tmpl`, `msgs` as [role, content], and
`out` or the line of the `error`. `go_language.jsonl` tests the language itself, from Go 1.27's text/template:
`data` in the first line, then `tmpl` and `out`, or the line of the `error` (an error of Go, or a feature that
eaglecpp leaves out because no template uses it). `jinja_language.jsonl` is from Jinja 3.1.6 with the settings
of transformers' `apply_chat_template`.

Ollama's own parser produced every case of `modelfile.jsonl`: `src` (or `src_hex`) is the file, `cmds` are its
commands, and `err` is the reason if the file is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.chat.bounds import budgeted
from eaglecpp.chat.go_template import Template, go_value
from eaglecpp.chat.jinja import JinjaTemplate
from eaglecpp.chat.message import Message
from eaglecpp.errors import TemplateError
from eaglecpp.modelfile import ModelfileError, parse


def cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(__file__).with_name(name).read_text("utf-8").splitlines()]


DATA, *LANGUAGE = cases("go_language.jsonl")
VARIABLES, *JINJA = cases("jinja_language.jsonl")


@pytest.mark.parametrize("case", JINJA, ids=lambda case: case["tmpl"])
def test_jinja(case: dict[str, Any]) -> None:
    assert JinjaTemplate(case["tmpl"]).render(VARIABLES["data"]) == case["out"]


@pytest.mark.parametrize("case", cases("templates.jsonl"), ids=lambda case: case["id"])
def test_rendering_or_refusal(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(TemplateError) as caught:
            Template.parse(case["tmpl"])
        assert caught.value.line == case["error"]
        return
    messages = [Message(role, content) for role, content in case.get("msgs", ())]
    assert Template.parse(case["tmpl"]).render(messages) == case["out"]


@pytest.mark.parametrize("case", LANGUAGE, ids=lambda case: case["tmpl"])
def test_language(case: dict[str, Any]) -> None:
    def text() -> str:
        with budgeted():
            found = Template.parse(case["tmpl"]).run(go_value(DATA["data"]) | {"Response": ""})
        return found.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    if "error" in case:
        with pytest.raises(TemplateError) as caught:
            text()
        assert caught.value.line == case["error"]
    else:
        assert text() == case["out"]


# Modelfiles

CASES = [
    json.loads(line) for line in Path(__file__).with_name("modelfile.jsonl").read_text("utf-8").splitlines()
]
REFUSALS = {
    "NOFROM": "no FROM line",
    "COMMAND": "command must be",
    "ROLE": "message role must be",
    "EOF": "unexpected EOF",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_commands_or_refusal(case: dict[str, Any]) -> None:
    source = bytes.fromhex(case["src_hex"]) if "src_hex" in case else case["src"]
    if "err" in case:
        with pytest.raises(ModelfileError, match=REFUSALS[case["err"]]):
            parse(source)
    else:
        commands = parse(source)
        assert [[command.name, command.args] for command in commands] == case["cmds"]
