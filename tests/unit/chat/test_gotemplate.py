# SPDX-License-Identifier: MIT
"""Go templates beyond Ollama's cases: tools, thinking, the cut of older templates, and every bound."""

from __future__ import annotations

import time
from datetime import date, timedelta
from typing import Any

import pytest

from eaglecpp.chat.gotemplate.evaluate import Limits
from eaglecpp.chat.gotemplate.ollama import Template, TemplateInput
from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.errors import TemplateError

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
    return Template.parse(template).render(TemplateInput(messages, **conversation))


def test_tools_print_as_json_in_ollamas_order() -> None:
    template = (
        "{{ range .Messages }}{{ end }}"
        "{{ range .Tools }}{{ . }}|{{ .Function }}|{{ json . }}{{ end }}{{ .Tools }}"
    )
    inner = TOOL_JSON.removeprefix('{"type":"function","function":').removesuffix("}")
    assert render(template, tools=(TOOL,)) == f"{TOOL_JSON}|{inner}|{TOOL_JSON}[{TOOL_JSON}]"


def test_the_parts_of_a_tool() -> None:
    template = (
        "{{ range .Messages }}{{ end }}"
        "{{ range .Tools }}{{ with .Function }}{{ .Name }}: {{ .Parameters.Required }} "
        "{{ range $name, $p := .Parameters.Properties }}{{ $name }}={{ $p.Type }}/{{ toTypeScriptType $p }} "
        "{{ end }}{{ end }}{{ end }}"
    )
    assert render(template, tools=(TOOL,)) == (
        "weather: [place] days=[integer null]/number | null place=string/string unit=/string | any[] "
    )


def test_tool_calls_and_results() -> None:
    template = (
        "{{ range .Messages }}{{ .Role }}"
        "{{ range .ToolCalls }}({{ .ID }} {{ with .Function }}{{ .Index }} {{ .Name }} "
        "{{ .Arguments }}{{ range $k, $v := .Arguments }}{{ $k }}={{ $v }}{{ end }}{{ end }}){{ end }}"
        "{{ if eq .Role `tool` }}[{{ .ToolName }} {{ .ToolCallID }} {{ .Content }}]{{ end }}{{ end }}"
    )
    calls = (ToolCall("f", {"b": "x", "a": 5}, "c1"), ToolCall("g"))
    result = render(
        template,
        Message("assistant", tool_calls=calls),
        Message("tool", "r", tool_name="f", tool_call_id="c1"),
    )
    assert result == 'assistant(c1 0 f {"a":5,"b":"x"}a=5b=x)( 1 g {})tool[f c1 r]'


def test_only_the_fields_of_a_message_exist() -> None:
    with pytest.raises(TemplateError, match=r"can't evaluate field Name in type \*template.templateMessage"):
        render("{{ range .Messages }}{{ .Name }}{{ end }}", Message("user", "x"))


@pytest.mark.parametrize(
    ("think", "shown"),
    [(None, "false  false"), (False, "false  true"), (True, "true  true"), ("high", "true high true")],
)
def test_thinking(think: bool | str | None, shown: str) -> None:
    template = "{{ range .Messages }}{{ end }}{{ .Think }} {{ .ThinkLevel }} {{ .IsThinkSet }}"
    assert render(template, Message("user", "x"), think=think) == shown


def test_the_older_form_keeps_functions_and_definitions_in_the_last_exchange() -> None:
    template = (
        '{{ define "u" }}<{{ . }}>{{ end }}{{ template "u" .Prompt }}{{ json .System }}{{ .Response }}</s>'
    )
    conversation = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    assert render(template, *conversation) == '<a>""b</s><c>""'


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{{ if .Prompt }}[{{ .Response }}|{{ .Prompt }}]{{ else }}no{{ end }}tail", "["),
        ('{{ printf "%s%s" .Prompt .Response }}tail', "q"),
        ("{{ range .Prompt | len }}{{ end }}{{ .Prompt }}{{ $.Response }}tail", "qtail"),
        ("{{ if .Response }}yes{{ end }}{{ .Prompt }}{{ .Response }}tail", "q"),
    ],
)
def test_where_the_older_form_is_cut(template: str, prompt: str) -> None:
    assert render(template, Message("user", "q")) == prompt


def test_an_else_behind_the_response_is_cut_with_the_rest() -> None:
    assert render("{{ if .Prompt }}{{ .Response }}{{ else }}x{{ end }}y", Message("system", "s")) == ""


def test_dates() -> None:
    today = date.today()
    text = render("{{ currentDate }} {{ yesterdayDate `%Y` }}{{ range .Messages }}{{ end }}")
    assert text in (f"{d} {d - timedelta(days=1)}" for d in (today, today + timedelta(days=1)))


def test_the_fields_that_a_template_uses() -> None:
    assert Template.parse("{{ range $.Messages }}{{ end }}{{ .Tools }}").uses == {"$", "messages", "tools"}
    assert "suffix" in Template.parse("{{ .Prompt }}{{ .Suffix }}").uses


def test_bytes_that_are_no_text_are_replaced_in_the_prompt() -> None:
    assert render(
        '{{ slice .Prompt 0 1 }}|{{ printf "%s%s" (slice .Prompt 0 1) (slice .Prompt 1) }}',
        Message("user", "é"),
    ) == ("\ufffd|é")


EXPLOSIONS = {
    "a loop in a loop": "{{ range 100000 }}{{ range 100000 }}{{ end }}{{ end }}",
    "one long loop": "{{ range 9000000000000000000 }}{{ end }}",
    "doubling text": "{{ $s := `xxxxxxxxxxxxxxxx` }}{{ range 64 }}{{ $s = printf `%s%s` $s $s }}{{ end }}",
    "doubling text by print": "{{ $s := `xxxxxxxxxxxxxxxx` }}{{ range 64 }}{{ $s = print $s $s }}{{ end }}",
    "long output": "{{ range 900000 }}{{ $.Prompt }}{{ $.Prompt }}{{ $.Prompt }}{{ $.Prompt }}{{ end }}",
    "wide numbers": "{{ range 900000 }}{{ printf `%1000d%1000d%1000d` 1 1 1 }}{{ end }}",
    "a template that calls itself": '{{ define "t" }}{{ template "t" . }}{{ end }}{{ template "t" . }}',
    "templates that call themselves twice": (
        '{{ define "t" }}{{ template "u" . }}{{ template "u" . }}{{ end }}'
        '{{ define "u" }}{{ template "t" . }}{{ template "t" . }}{{ end }}{{ template "t" . }}'
    ),
    "a wide range over long text": "{{ range 900000 }}{{ $x := len $.Prompt }}{{ end }}",
}


@pytest.mark.parametrize("template", EXPLOSIONS.values(), ids=EXPLOSIONS.keys())
def test_a_template_that_would_explode_is_stopped(template: str) -> None:
    start = time.thread_time()
    with pytest.raises(TemplateError, match=r"stopped after|exceeded maximum template depth"):
        render(template, Message("user", "x" * 2000))
    assert time.thread_time() - start < 20


@pytest.mark.parametrize(
    "template",
    [
        "{{ if true }}" * 5000 + "{{ end }}" * 5000,
        "{{ if true }}" + "{{ else if true }}" * 5000 + "{{ end }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        '{{ define "a" }}' + "{{ range 1 }}" * 5000,
        "{{ printf `%9999d` 1 }}",
        "{{ printf `%[1]d` 1 }}",
        "{{ printf `%x` 1 }}",
        "{{ printf `%d` `a` }}",
        "{{ printf `%s` 1 }}",
        "{{ printf `%d %d` 1 }}",
        "{{ printf `%d` 1 2 }}",
        "{{ printf `%` }}",
        "{{ html `a` }}",
        "{{ 1i }}",
    ],
)
def test_what_is_refused_outright(template: str) -> None:
    with pytest.raises(TemplateError):
        Template.parse(template).render(TemplateInput())


def test_deep_but_legal_nesting_works_below_a_deep_stack() -> None:
    template = "{{ if true }}" * 40 + "{{ (((1))) }}" + "{{ end }}" * 40

    def below(depth: int) -> str:
        return render(template) if depth == 0 else below(depth - 1)

    assert below(300) == "1"


def test_limits_can_be_set() -> None:
    template = Template.parse("{{ range .Messages }}{{ .Content }}{{ end }}")
    conversation = TemplateInput((Message("user", "abc"),))
    assert template.render(conversation, Limits(n_chars=3)) == "abc"
    with pytest.raises(TemplateError, match="stopped after 2 characters"):
        template.render(conversation, Limits(n_chars=2))


@pytest.mark.parametrize("action", ["{{ len .Prompt }}", "{{ $x := json .Prompt }}", "{{ eq .Prompt `a` }}"])
def test_reading_and_making_text_counts_as_work(action: str) -> None:
    conversation = TemplateInput((Message("user", "x" * 100_000),))
    with pytest.raises(TemplateError, match="stopped after 1000 steps"):
        Template.parse(action).render(conversation, Limits(n_steps=1000))


def test_errors_name_line_and_remedy() -> None:
    with pytest.raises(TemplateError) as caught:
        Template.parse("a\n{{ if .X }}\n{{ Prompt }}{{ end }}")
    assert str(caught.value).startswith('template: :3: function "Prompt" not defined (known: and, call, ')
    assert str(caught.value).endswith("a field needs a dot before its name)")


def test_a_long_conversation_renders_in_time() -> None:
    template = (
        "{{ range $i, $m := .Messages }}"
        "{{ if eq .Role `user` }}<u>{{ else if eq .Role `assistant` }}<a>{{ else }}<s>{{ end }}"
        "{{ .Content }}{{ if .ToolCalls }}{{ json .ToolCalls }}{{ end }}{{ end }}"
    )
    turns = tuple(Message("user" if i % 2 else "assistant", "word " * 50) for i in range(4000))
    start = time.thread_time()
    assert len(render(template, *turns)) == 4000 * (3 + 250)
    assert time.thread_time() - start < 10
