# SPDX-License-Identifier: MIT
"""Tests Go templates beyond Ollama's own test cases: tools, thinking, the position at which older templates
are cut, and all limits.
"""

from __future__ import annotations

import time
import tracemalloc
from datetime import date, timedelta
from typing import Any

import pytest

from eaglecpp.chat import bounds
from eaglecpp.chat.go_template import Template
from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.errors import TemplateError

pytestmark = pytest.mark.alone  # these tests measure time

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells <the> weather",
        "parameters": {
            "type": "object",
            "required": ["place"],
            "properties": {
                "place": {"type": "string", "description": "where", "default": "here"},
                "days": {"type": ["integer", "null"], "enum": [1, 2]},
                "unit": {"anyOf": [{"type": "string"}, {"type": "array"}]},
            },
        },
    },
}
TOOL_JSON = (
    '{"type":"function","function":{"name":"weather","description":"Tells \\u003cthe\\u003e weather",'
    '"parameters":{"type":"object","required":["place"],"properties":{'
    '"days":{"type":["integer","null"],"enum":[1,2]},'
    '"place":{"type":"string","description":"where"},'
    '"unit":{"anyOf":[{"type":"string"},{"type":"array"}]}}}}}'
)


def render(template: str, *messages: Message, **conversation: Any) -> str:
    return Template.parse(template).render(messages, **conversation)


def test_tools_print_as_json_in_ollamas_order_after_the_thinking_values() -> None:
    template = (
        "{{ range .Messages }}{{ end }}{{ .Think }} {{ .ThinkLevel }} {{ .IsThinkSet }} "
        "{{ range .Tools }}{{ . }}|{{ .Function }}|{{ json . }}{{ end }}{{ .Tools }}"
    )
    inner = TOOL_JSON.removeprefix('{"type":"function","function":').removesuffix("}")
    expected = f"{TOOL_JSON}|{inner}|{TOOL_JSON}[{TOOL_JSON}]"
    for think, shown in ((None, "false  false"), (False, "false  true"), ("high", "true high true")):
        assert render(template, tools=(TOOL,), think=think) == f"{shown} {expected}"


def test_tool_calls_and_results() -> None:
    template = (
        "{{ range .Messages }}{{ .Role }}"
        "{{ range .ToolCalls }}({{ .ID }} {{ with .Function }}{{ .Index }} {{ .Name }} "
        "{{ .Arguments }}{{ range $k, $v := .Arguments }}{{ $k }}={{ $v }}{{ end }}{{ end }}){{ end }}"
        "{{ if eq .Role `tool` }}[{{ .ToolName }} {{ .ToolCallID }} {{ .Content }}]{{ end }}{{ end }}"
    )
    result = render(
        template,
        Message("assistant", tool_calls=(ToolCall("f", {"b": "x", "a": 5}, "c1"), ToolCall("g"))),
        Message("tool", "r", tool_name="f", tool_call_id="c1"),
    )
    assert result == 'assistant(c1 0 f {"a":5,"b":"x"}a=5b=x)( 1 g {})tool[f c1 r]'


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{{ if .Prompt }}[{{ .Response }}|{{ .Prompt }}]{{ else }}no{{ end }}tail", "["),
        ('{{ printf "%s%s" .Prompt .Response }}tail', "q"),
        ("{{ if not .Prompt }}{{ .Response }}{{ else }}x{{ end }}y", ""),
        (
            '{{ define "u" }}<{{ . }}>{{ end }}{{ template "u" .Prompt }}{{ json .System }}{{ .Response }}s',
            '<q>""',
        ),
    ],
)
def test_older_templates_are_cut_at_the_response(template: str, prompt: str) -> None:
    assert render(template, Message("user", "q")) == prompt


def test_dates() -> None:
    today = date.today()
    text = render("{{ currentDate }} {{ yesterdayDate `%Y` }}{{ range .Messages }}{{ end }}")
    assert text in (f"{d} {d - timedelta(days=1)}" for d in (today, today + timedelta(days=1)))


EXPLOSIONS = {
    "doubling text": "{{ $s := `xxxxxxxxxxxx` }}{{ range .Messages }}{{ $s = printf `%s%s` $s $s }}{{ end }}",
    "long output": "{{ range $.Messages }}{{ range $.Messages }}{{ .Content }}{{ end }}{{ end }}",
    "a template that calls itself": '{{ define "t" }}{{ template "t" . }}{{ end }}{{ template "t" . }}',
    "many texts of all messages": "{{ $x := printf `" + "%v" * 2000 + "`" + " $.Messages" * 2000 + " }}",
    "copies": "{{ $m := .Messages }}{{ range $m }}{{ range $m }}{{ $x := slice $m 1 }}" + "{{ end }}" * 2,
}


@pytest.mark.parametrize("template", EXPLOSIONS.values(), ids=EXPLOSIONS.keys())
def test_an_exploding_template_is_stopped(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_SECONDS", 0.3)
    for name in ("MAX_CHARS", "MAX_BYTES"):
        monkeypatch.setattr(bounds, name, getattr(bounds, name) // 16)
    messages = [Message("user", "x" * 2000), Message("assistant", "y")] * 500
    tracemalloc.start()
    start = time.thread_time()
    try:
        with pytest.raises(TemplateError, match=r"stopped|nested too deeply"):
            render(template, *(messages if ".Messages" in template else messages[:1]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20 and time.thread_time() - start < 10


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ range .Messages }}{{ .Name }}{{ end }}", "has no field Name"),
        ("{{ if true }}" * 5000 + "{{ end }}" * 5000, "more than 16384 tokens|blocks are nested"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "blocks are nested"),
        (" " * 250_000 + "{{ end }}", "unexpected end"),  # earlier versions needed minutes for this text
        ("{{ printf `%9999d` 1 }}", "not supported"),
        ("{{ ($x := 1) }}", "unexpected :="),
        ("{{ printf " + "1 " * 20_000 + "}}", "more than 16384 tokens"),
        ("x" * (300 << 10), "the maximum is 262144"),
    ],
)
def test_refusals(template: str, problem: str) -> None:
    with pytest.raises(TemplateError, match=problem):
        render(template, Message("user", "x"))


def test_errors_name_line_and_remedy() -> None:
    with pytest.raises(TemplateError) as caught:
        Template.parse("a\n{{ if .X }}\n{{ Prompt }}{{ end }}")
    assert str(caught.value).startswith('template: :3: function "Prompt" not defined (functions: and, ')
    assert str(caught.value).endswith("a field's name begins with a dot)")
