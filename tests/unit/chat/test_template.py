# SPDX-License-Identifier: MIT
"""Tests the choice of the chat template and its reason, the BOS token, and that conversations are brought
into the form that a template accepts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from eaglecpp.chat.formats import HERMES
from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.chat.probe import Calls, Takes
from eaglecpp.chat.reader import Reader
from eaglecpp.chat.template import ChatTemplate, is_jinja
from eaglecpp.chat.turns import accepted
from eaglecpp.errors import TemplateError
from helpers.chat_templates import TEMPLATES, family_template


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


# The form that a template accepts

ALL = Takes(calls=Calls())
FILLED = {"description": "", "parameters": {"type": "object", "properties": {}}}
F = {"type": "function", "function": {"name": "f", **FILLED}}


NUMBERS = {"properties": {"n": {"enum": [1], "default": 1}, "ms": {"type": "integer", "default": 10**12}}}


def reply(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]


def test_an_accepted_conversation_is_not_changed() -> None:
    messages = [
        Message("system", "s"),
        Message("user", "a"),
        Message("user", "b"),
        Message("assistant", "c", "t", (ToolCall("f", {"x": 1}, "id"), ToolCall("g", {}, "other"))),
        Message("tool", "r", tool_name="f", tool_call_id="id"),
        Message("system", "late"),
    ]
    taken = accepted(messages, [F], ALL)
    assert (taken.messages, taken.tools, taken.notices) == (messages, [F], ())


@pytest.mark.parametrize("name", sorted(file.stem for file in TEMPLATES.glob("*.jinja")))
@pytest.mark.parametrize(
    "given", [{}, {"description": "d"}, {"parameters": {"type": "object"}}, {"parameters": NUMBERS}], ids=str
)
def test_a_tool_needs_no_description_and_no_parameters(name: str, given: dict[str, Any]) -> None:
    template = family_template(name)
    function = {"name": "get_time", **given}
    for tool in (function, {"type": "function", "function": function}):
        taken = accepted([Message("user", "q")], [tool], template.takes)
        text = template.render(taken.messages, tools=taken.tools).text
        assert not template.takes.tools or "get_time" in text


def test_results_belong_to_calls_by_id_by_name_and_in_order() -> None:
    calls = (ToolCall("f", {}, "1"), ToolCall("g"), ToolCall("g"))
    results = (
        Message("tool", "a", tool_name="g"),
        Message("tool", "b", tool_call_id="1"),
        Message("tool", "c"),
    )
    taken = accepted([Message("assistant", tool_calls=calls), *results], (), ALL).messages
    ids = [call.id for call in taken[0].tool_calls]
    assert [(one.content, one.tool_call_id, one.tool_name) for one in taken[1:]] == [
        ("a", ids[1], "g"), ("b", "1", "f"), ("c", ids[2], "g"),
    ]  # fmt: skip
    assert len(set(ids)) == 3 and all(ids)


def test_single_calls_keep_their_results_and_text() -> None:
    takes = Takes(calls=Calls(several=False, thinking=False))
    calls = (ToolCall("f", {}, "1"), ToolCall("g", {}, "2"))
    results = [Message("tool", text, tool_call_id=id) for text, id in (("b", "2"), ("a", "1"), ("x", "9"))]
    taken = accepted([Message("assistant", "said", "thought", calls), *results], (), takes).messages
    assert [(one.role, one.content, [call.name for call in one.tool_calls]) for one in taken] == [
        ("assistant", "", ["f"]), ("tool", "a", []), ("assistant", "", ["g"]), ("tool", "b", []),
        ("tool", "x", []),
    ]  # fmt: skip
    assert taken[0].thinking == "thought\n\nsaid", "thought and text before a call must be kept"


def test_ids_are_short_where_required_and_the_same_everywhere() -> None:
    calls = (ToolCall("f", {}, "call_0123abcd"), ToolCall("f", {}, "abc123def"))
    messages = [Message("assistant", tool_calls=calls), Message("tool", "r", tool_call_id="call_0123abcd")]
    taken = accepted(messages, (), Takes(calls=Calls(short_ids=True))).messages
    first, second = (call.id for call in taken[0].tool_calls)
    assert second == "abc123def" and len(first) == 9 and first.isalnum() and taken[1].tool_call_id == first


def test_a_described_call_is_read_like_it_is_written() -> None:
    call = ToolCall("f", {"x": "é"}, "1")
    messages = [Message("user", "q"), Message("assistant", "said", tool_calls=(call,)), Message("tool", "r")]
    taken = accepted(messages, [F], replace(ALL, tools=False))
    assert taken.describes and not taken.tools
    assert [one.role for one in taken.messages] == ["system", "user", "assistant", "user"]
    assert json.dumps(F) in taken.messages[0].content
    reader = Reader(formats=(HERMES,), tools={"f": {}})
    parts = reader.feed(taken.messages[2].content) + reader.finish()
    assert [part.text for part in parts if part.kind == "answer"] == ["said"]
    assert parts[-1].calls == (replace(call, id=""),)
    assert taken.messages[3].content == '<tool_response>\n{"name": "f", "content": "r"}\n</tool_response>'


def test_calls_are_written_as_text_for_a_template_without_calls() -> None:
    messages = [Message("user", "q"), Message("assistant", tool_calls=(ToolCall("f", {}, "1"),))]
    taken = accepted(messages, (), replace(ALL, calls=None), ())
    assert taken.messages[1].content == HERMES.write(messages[1].tool_calls)


def template(text: str) -> ChatTemplate:
    return ChatTemplate("jinja", text, "a test")


def test_a_template_that_refuses_the_simplest_message_gets_everything_unchanged() -> None:
    """A template that refuses the simplest message gets all messages unchanged, because its own error says
    more than an error of eaglecpp would.
    """
    takes = template("{{ raise_exception('only for documents') if not documents }}").takes
    messages = [Message("system", "s"), Message("user", "q"), Message("user", "r")]
    assert accepted(messages, [F], takes).messages == messages


def test_a_hostile_template_takes_the_time_of_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglecpp.chat.bounds.MAX_SECONDS", 0.2)
    slow = template("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    with pytest.raises(TemplateError, match="runs longer"):
        _ = slow.takes
    assert "takes" not in vars(slow), "a timeout must not be cached"
