# SPDX-License-Identifier: MIT
"""Tests that rendering any text as a template stays within the limits, or raises TemplateError."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eaglecpp.chat import bounds
from eaglecpp.chat.go_template import Template
from eaglecpp.chat.jinja import JinjaTemplate
from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.errors import TemplateError

TOOL = {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}
CONVERSATION: dict[str, Any] = {
    "messages": (
        Message("system", "Be é."),
        Message("user", "Hi <there>\n"),
        Message("assistant", "x", "t", (ToolCall("f", {"a": [1, 2.5, None, {"b": True}]}),)),
        Message("tool", "r"),
    ),
    "tools": ({"type": "function", "function": TOOL},),
    "think": "high",
}
VARIABLES: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi <there>"}, {"role": "assistant", "content": "é\n"}],
    "tools": [{"type": "function", "function": TOOL}],
    "bos_token": "<s>",
    "add_generation_prompt": True,
}
GO = [
    "{{ if .System }}<s>{{ .System }}{{ end }}{{- .Prompt -}} {{ .Response }}",
    "{{ range $i, $m := .Messages }}{{ if eq $m.Role `user` }}{{ printf `%q %5.2f` .Content 1 }}{{ break }}",
    "{{ define `t` }}{{ . }}{{ end }}{{ template `t` (index .Messages 0).Content }}",
    "{{ with $x := .Tools }}{{ json $x }}{{ end }}{{ $s := slice .System 0 1 }}",
    "{{ and (not $s) (or 1 `a`) }}{{/* c */}}{{ range .Messages }}{{ continue }}{{ else }}{{ nil }}",
    "{{", "}}", "{{- ", " -}}", "(", ")", ":=", "$x", ".Messages", ".Content", "if ", "else", "end", "with ",
    "define ", "block ", "break", "`%s`", "len ", "index ", "slice ", "eq ",
    "and ", "json ", "printf ", " 99999 ",
]  # fmt: skip
JINJA = [
    "{% for m in messages %}<{{ m.role }}>{{ m['content']|trim }}{{ loop.index0 }}{% endfor %}",
    "{% set s = namespace(x='a') %}{% for i in range(40) %}{% set s.x = s.x ~ s.x %}{{ s.x }}{% endfor %}",
    "{% macro f(n) %}{{ n|tojson(indent=2) }}{{ f(n - 1) if n }}{% endmacro %}{{ f(3) }}",
    "{{ '{:>4}{}'.format(1, [2, (3,)])|replace('3', 'abc')|indent(9) }}{{ 'a,b'.split(',')|join('-') }}",
    "{{ messages|map(attribute='role')|list|unique|join(' ') }}{{ raise_exception('no') if false }}",
    "{% for i in range(99999) %}", "{{ 'a' * 99999", "}}", "{{", "{%", "%}", "{% endfor %}", "{% endif %}",
    " * ", " ~ ", " + ", " % ", "'%0999d'", "'{:999}'", ".format(", "|tojson", "|join(", "|replace(", ")",
    "|indent(", ".split(", "range(", "messages", "99999", "loop", " recursive", "strftime_now(",
]  # fmt: skip


def sources(parts: list[str]) -> st.SearchStrategy[str]:
    """Returns a Hypothesis strategy for templates. A template consists of any text, or of one or several of
    the given parts, which may be cut.
    """
    cut = st.builds(lambda part, n: part[:n], st.sampled_from(parts), st.integers(0, 90))
    many = st.lists(st.sampled_from(parts) | cut | st.text(max_size=8), max_size=8).map("".join)
    return st.sampled_from(parts) | many


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets limits so low that a template of a few words can reach them."""
    for name, bound in (("MAX_SECONDS", 1.0), ("MAX_CHARS", 1 << 18), ("MAX_BYTES", 4 << 20)):
        monkeypatch.setattr(bounds, name, bound)


@pytest.mark.parametrize(("template", "parts"), [("go", GO), ("jinja", JINJA)])
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_template_is_rendered_within_its_bounds_or_refused(
    template: str, parts: list[str], data: st.DataObject, tight: None
) -> None:
    source = data.draw(sources(parts))
    started = time.monotonic()
    try:
        if template == "go":
            text = Template.parse(source).render(**CONVERSATION)
        else:
            text = JinjaTemplate(source).render(VARIABLES)
    except TemplateError as error:
        assert str(error).startswith("template: ")
    else:
        assert len(text) <= bounds.MAX_CHARS
        text.encode("utf-8")
    assert time.monotonic() - started < 15
