# SPDX-License-Identifier: MIT
"""Go templates as Ollama renders them: every case was produced by Ollama's own template package.

`templates.jsonl`, one case per line: `tmpl`, `msgs` as [role, content] or `prompt` and `suffix`, and `out` or
the end of the `parse_error` that refuses the template.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.chat.gotemplate.evaluate import execute
from eaglecpp.chat.gotemplate.functions import FUNCTION_NAMES
from eaglecpp.chat.gotemplate.ollama import Template, TemplateInput
from eaglecpp.chat.gotemplate.parse import parse
from eaglecpp.chat.message import Message
from eaglecpp.errors import TemplateError

CASES = [
    json.loads(line) for line in Path(__file__).with_name("templates.jsonl").read_text("utf-8").splitlines()
]


def test_all_cases_are_there() -> None:
    assert len(CASES) == 11


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_rendering_or_refusal(case: dict[str, Any]) -> None:
    if "parse_error" in case:
        with pytest.raises(TemplateError) as caught:
            Template.parse(case["tmpl"])
        assert f":{caught.value.line}: {caught.value.message}" == case["parse_error"]
        return
    messages = tuple(Message(role, content) for role, content in case.get("msgs", ()))
    conversation = TemplateInput(messages, prompt=case.get("prompt", ""), suffix=case.get("suffix", ""))
    assert Template.parse(case["tmpl"]).render(conversation) == case["out"]


LANGUAGE = Path(__file__).with_name("go_language.jsonl").read_text("utf-8").splitlines()
"""The language itself, from Go 1.27's text/template: `data` in the first line, then `tmpl` with `out`, with
`parse_error`, or with `error`, the end of the message at run time ("" where the wording differs)."""


def as_go_has_it(value: Any) -> Any:
    """JSON as Go decodes it: every number is a float64."""
    if isinstance(value, dict):
        return {key: as_go_has_it(element) for key, element in value.items()}
    if isinstance(value, list):
        return [as_go_has_it(element) for element in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


DATA = as_go_has_it(json.loads(LANGUAGE[0])["data"])


@pytest.mark.parametrize("line", LANGUAGE[1:])
def test_language(line: str) -> None:
    case = json.loads(line)
    if "parse_error" in case:
        with pytest.raises(TemplateError) as caught:
            parse(case["tmpl"], FUNCTION_NAMES)
        assert f":{caught.value.line}: {caught.value.message}" == case["parse_error"]
        return
    templates = parse(case["tmpl"], FUNCTION_NAMES)
    if "error" in case:
        with pytest.raises(TemplateError) as caught:
            execute(templates, DATA)
        assert caught.value.message.endswith(case["error"])
    else:
        assert execute(templates, DATA) == case["out"]
