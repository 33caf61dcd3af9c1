# SPDX-License-Identifier: MIT
"""Tests the choice of the chat template and its reason, and the BOS token."""

from __future__ import annotations

from typing import Any

import pytest

from eaglecpp.chat.message import Message
from eaglecpp.chat.template import ChatTemplate, is_jinja


def jinja_template(text: str, bos_text: str = "", eos_text: str = "") -> ChatTemplate:
    return ChatTemplate("jinja", text, "", bos_text=bos_text, eos_text=eos_text)


def conversation(*flat: str) -> list[Message]:
    return [Message(role, content) for role, content in zip(flat[::2], flat[1::2], strict=True)]


MODELFILE = "Go template from the Modelfile's TEMPLATE: "
GGUF = "Jinja template from the GGUF (tokenizer.chat_template): "


@pytest.mark.parametrize(
    ("arguments", "language", "described"),
    [
        ({"modelfile": "{{ .Prompt }}", "gguf": "g", "stored": "y"}, "go",
         MODELFILE + "it replaces the template in " + GGUF.partition(" from ")[2].removesuffix(": ")),
        ({"gguf": "{{ x }}", "stored": "{{ .Prompt }}"}, "jinja",
         GGUF + "it replaces the template in the store (template layer)"),
        ({}, "go", "the bare prompt: no template was found"),
        ({"modelfile": "m", "gguf": "g", "choice": "gguf"}, "jinja",
         GGUF + "chat_template gguf was requested"),
        ({"gguf": "g", "choice": "chatml"}, "jinja", "ChatML: chat_template chatml was requested"),
    ],
)  # fmt: skip
def test_the_choice_is_described(arguments: dict[str, Any], language: str, described: str) -> None:
    template = ChatTemplate.choose(**arguments)
    assert (template.language, template.describe()) == (language, described)


def test_chatml_is_recognised_by_its_tokens_and_noted() -> None:
    template = ChatTemplate.choose(has_token={"<|im_start|>", "<|im_end|>"}.__contains__)
    assert "no chat template; ChatML is used" in template.notices[0]
    assert template.render(conversation("user", "Hi")).text.endswith("Hi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        ("gguf", "the GGUF .* has no template"),
        ("wibble", "expected one of auto, asked, modelfile, gguf, stored, raw"),
    ],
)
def test_impossible_choices_are_refused(choice: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ChatTemplate.choose(choice=choice)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ .Prompt }}", False),
        ("a {{ range .Messages }}{% x %}{{ end }}", False),
        ("{{ bos_token }}", True),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", True),
        ("{% for block in m.content %}{{ block.text }}{% endfor %}", True),
        ("{% for i in a %}{{- range(3) }}{{ with + block }}{% endfor %}", True),
    ],
)
def test_languages_are_distinguished(text: str, expected: bool) -> None:
    assert is_jinja(text) is expected


def test_bos_is_detected() -> None:
    for text, has_bos in (("{{ bos_token }}x", True), ("x{{ bos_token }}", False)):
        template = ChatTemplate.choose(gguf=text, bos_text="<s>")
        assert template.render(conversation("user", "Hi")).has_bos is has_bos


def test_jinja_gets_tools_thinking_and_tokens() -> None:
    text = "{% generation %}{{ eos_token }}{% endgeneration %}"
    text += "{% for a in [1, 2] %}\n  {% break %}\n{% endfor %}"
    text += "{{ tools | tojson }}{{ enable_thinking }}{{ reasoning_effort }}"
    text += "{{ strftime_now('%%') }}"
    rendered = jinja_template(text, "<s>", "</s>").render([], tools=[{"é": 1}], think="high")
    assert rendered.text == '</s>[{"é": 1}]Truehigh%'
    bare = jinja_template("{{ tools is none }}{{ enable_thinking is defined }}").render([])
    assert bare.text == "TrueFalse"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # functionary's template concatenates texts in this way
        ("{{ c.function.name + c.function.arguments }}", 'f{"a": "é"}'),
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "a=é"),
        ("{{ c.function.arguments }}", '{"a": "é"}'),
        # R1-Distill's template concatenates texts in this way
        ("{% if m.content is none %}{{ c.function.arguments ~ '' }}{% endif %}", '{"a": "é"}'),
    ],
)
def test_a_call_reaches_a_template_in_the_form_that_it_needs(line: str, expected: str) -> None:
    text = (
        "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}["
        + line
        + "]{% endfor %}{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
    ]
    assert jinja_template(text).render(messages).text == f"q[{expected}]r"


@pytest.mark.parametrize(("think", "expected"), [(True, "on"), (False, "off"), ("low", "on"), (None, "free")])
def test_think_reaches_a_template_by_the_name_it_uses(think: bool | str | None, expected: str) -> None:
    for name, on in (
        ("enable_thinking", "true"),
        ("thinking", "true"),
        ("thinking_mode", "'enabled'"),
        ("thinking_budget", "-1"),
    ):
        text = f"{{{{ 'free' if {name} is not defined else 'on' if {name} == {on} else 'off' }}}}"
        assert jinja_template(text).render([], think=think).text == expected
