# SPDX-License-Identifier: MIT
"""Tool calls in the forms that templates teach, however the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglecpp.chat.message import ToolCall
from eaglecpp.chat.tool_calls import CallMarks, ToolReader, call_marks, parse_calls

HERMES = CallMarks("<tool_call>", "</tool_call>")
NAMES = ("f", "g")
F1, G = ToolCall("f", {"a": 1}), ToolCall("g")


def read(text: str, marks: CallMarks | None = HERMES, size: int = 3) -> tuple[str, list[ToolCall]]:
    reader = ToolReader(marks, NAMES)
    parts = [part for at in range(0, len(text), size) for part in reader.feed(text[at : at + size])]
    parts += reader.finish()
    said = "".join(part for part in parts if isinstance(part, str))
    return said, [part for part in parts if isinstance(part, ToolCall)]


FORMS = {
    "Hermes": ("<tool_call>", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', [F1]),
    "a list": ("<tool_call>",
               '<tool_call>[{"name":"f","arguments":{"a":1}},{"name":"g"}]</tool_call>', [F1, G]),
    "several": ("<tool_call>", '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>\n'
                '<tool_call>{"name":"g","arguments":{}}</tool_call>', [F1, G]),
    "Qwen coder": ("<tool_call>", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n"
                   "</tool_call>", [F1]),
    "GLM": ("<tool_call>", "<tool_call>f\n"
            "<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", [F1]),
    "Mistral": ("[TOOL_CALLS]", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', [F1]),
    "Mistral, newer": ("[TOOL_CALLS]", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', [F1, G]),
    "Llama": ("<|python_tag|>", '{"name": "f", "parameters": {"a": 1}}', [F1]),
    "Llama, marked": ("<|python_tag|>", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', [F1]),
    "Llama 3.2": ("<|python_tag|>", "[f(a=1), g()]", [F1, G]),
    "Granite": ("<|tool_call|>", '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]', [F1]),
    "DeepSeek": ("<｜tool▁calls▁begin｜>",
                 "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
                 '```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [F1]),
    "fenced": ("", '```json\n{"name": "f", "arguments": {"a": 1}}\n```', [F1]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_calls_are_found_in_every_form(form: str, size: int) -> None:
    template, text, expected = FORMS[form]
    said, calls = read(text, call_marks(template), size)
    assert (said, calls) == ("", expected)


def test_text_before_a_call_is_text() -> None:
    said, calls = read('Let me see.\n<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>')
    assert said.strip() == "Let me see." and calls == [F1]


@pytest.mark.parametrize(
    "text",
    ["a < b, <tool is fine", '{"name": "other", "arguments": {}}', "<tool_call>no call", '{"a": 1}',
     "see [f(x)", "[1, 2]", '<tool_call>{"name": 7}</tool_call>', '{"name": "f"', "```json\n[]\n```"],
)  # fmt: skip
def test_what_is_no_call_comes_out_as_it_is(text: str) -> None:
    assert read(text) == (text, [])


@given(st.text(alphabet='<tool_cal>/{}"name:f,[]() \n'), st.integers(1, 7))
def test_nothing_is_lost_that_is_no_call(text: str, size: int) -> None:
    said, calls = read(text, size=size)
    assert calls or said == text


def test_python_is_never_run() -> None:
    assert parse_calls("[f(a=__import__('os').getcwd())]", NAMES) == []
