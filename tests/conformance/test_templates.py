# SPDX-License-Identifier: MIT
"""Go templates as Ollama renders them: every text was produced by Ollama's own template package.

`templates.jsonl`, one case per line: `tmpl`, `msgs` as [role, content], and `out` or
the line of the `error`. `go_language.jsonl` has the language itself, from Go 1.27's text/template: `data` in
the first line, then `tmpl` and `out`, or the line of the `error`, of Go's or because nobody uses it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.chat.bounds import Budget, budget
from eaglecpp.chat.go_template import Program, Template, lex
from eaglecpp.chat.message import Message
from eaglecpp.errors import TemplateError


def cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(__file__).with_name(name).read_text("utf-8").splitlines()]


def as_go_has_it(value: Any) -> Any:
    """JSON as Go decodes it: every number is a float64."""
    if isinstance(value, dict):
        return {key: as_go_has_it(element) for key, element in value.items()}
    if isinstance(value, list):
        return [as_go_has_it(element) for element in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


DATA, *LANGUAGE = cases("go_language.jsonl")


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
    budget.set(Budget())

    def text() -> str:
        parts = Program(list(lex(case["tmpl"]))).run(as_go_has_it(DATA["data"]))
        return "".join(parts).encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    if "error" in case:
        with pytest.raises(TemplateError) as caught:
            text()
        assert caught.value.line == case["error"]
    else:
        assert text() == case["out"]
