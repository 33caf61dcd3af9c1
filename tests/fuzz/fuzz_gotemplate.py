# SPDX-License-Identifier: MIT
"""Fuzzes the Go templates: any text is rendered or refused with a TemplateError, in bounded time."""

from __future__ import annotations

from typing import Any

from atheris_target import fuzz, instrumented

with instrumented():
    from eaglecpp.chat import bounds
    from eaglecpp.chat.go_template import Template
    from eaglecpp.chat.message import Message, ToolCall
    from eaglecpp.errors import TemplateError

SEEDS = [
    "{{ printf `%5d` 42 }}{{ printf `%.2f|%v` 1.5 `x` }}",
    "{{ if .System }}<s>{{ .System }}{{ end }}{{- .Prompt -}} {{ .Response }}",
    "{{ range $i, $m := .Messages }}{{ if eq $m.Role `user` }}{{ printf `%q %5.2f` .Content 1.5 }}{{ break }}"
    "{{ end }}{{ end }}",
    "{{ define `t` }}{{ . }}{{ end }}{{ template `t` (index .Messages 0).Content }}"
    "{{ with $x := .Tools }}{{ json $x }}{{ end }}",
    "{{ $s := slice .System 0 1 }}{{ $s = print $s | json | len }}"
    "{{ and (not $s) (or 1 0x1F 'a' 1e3) }}{{/* c */}}",
    "{{ block `b` . }}{{ range 3 }}{{ . }}{{ continue }}{{ else }}{{ nil }}{{ end }}{{ end }}",
]
bounds.MAX_SECONDS = 2.0
bounds.MAX_CHARS = 1 << 20
bounds.MAX_BYTES = 4 << 20

CONVERSATION: dict[str, Any] = {
    "messages": (
        Message("system", "Be é."),
        Message("user", "Hi <there>\n"),
        Message("assistant", "x", "t", (ToolCall("f", {"a": [1, 2.5, None, {"b": True}]}),)),
        Message("tool", "r"),
    ),
    "tools": (
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}},
        },
    ),
    "think": "high",
}
WORDS = [
    "{{", "}}", "{{- ", " -}}", "/*", "*/", ":=", "$x", ".Messages", ".Content", ".Tools", ".ToolCalls",
    "range ", "if ", "else", "end", "with ", "define ", "template ", "block ", "break", "continue", "nil",
    "printf ", "`%d`", "`%*.*f`", "`%-08q`", "`%+v`", "`%T`", "`%x`", "len ", "index ", "slice ", "eq ",
    "and ", "or ", "not ", "json ", "print ", "call ", "(", ")", "|",
]  # fmt: skip


def test_one(data: bytes) -> None:
    try:
        text = Template.parse(data.decode("utf-8", "replace")).render(**CONVERSATION)
    except TemplateError as error:
        assert error.line >= 0 and str(error).startswith("template: ")
        return
    assert len(text) <= bounds.MAX_CHARS
    text.encode("utf-8")


if __name__ == "__main__":
    fuzz(test_one, SEEDS, WORDS)
