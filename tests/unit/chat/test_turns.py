# SPDX-License-Identifier: MIT
"""Tests that conversations are brought into the form that a template accepts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from eaglecpp.chat.formats import HERMES
from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.chat.probe import Calls, Takes
from eaglecpp.chat.reader import Reader
from eaglecpp.chat.template import ChatTemplate
from eaglecpp.chat.turns import accepted
from eaglecpp.errors import TemplateError
from helpers.chat_templates import TEMPLATES, family_template

ALL = Takes(calls=Calls())
FILLED = {"description": "", "parameters": {"type": "object", "properties": {}}}
F = {"type": "function", "function": {"name": "f", **FILLED}}


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
@pytest.mark.parametrize("given", [{}, {"description": "d"}, {"parameters": {"type": "object"}}], ids=str)
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
