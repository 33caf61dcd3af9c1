# SPDX-License-Identifier: MIT
"""Messages from and to the JSON of the chat APIs."""

from __future__ import annotations

from typing import Any

import pytest

from eaglecpp.chat.message import Message, Role, ToolCall

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def test_an_ollama_message() -> None:
    message = Message.from_dict(
        {"role": "assistant", "content": "hi", "thinking": "hm", "tool_calls": [CALL], "tool_name": "t"}
    )
    assert message == Message(Role.ASSISTANT, "hi", "hm", (ToolCall("add", {"a": 1}, "c1"),), "t")


def test_an_openai_message() -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = Message.from_dict(
        {"role": "assistant", "content": parts, "reasoning_content": "hm", "tool_calls": [call]}
    )
    assert message == Message("assistant", "ab", "hm", (ToolCall("add", {"a": 1}, "c1"),))
    assert Message.from_dict({"role": "tool", "content": None, "tool_call_id": "c1"}).tool_call_id == "c1"


def test_dictionaries_read_back() -> None:
    message = Message("assistant", "hi", "hm", (ToolCall("add", {"a": 1}, "c1"), ToolCall("f")), "t", "c2")
    assert Message.from_dict(message.to_dict()) == message
    assert Message("user", "hi").to_dict() == {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"content": "x"}, "expected a role"),
        ({"role": "user", "content": 5}, "content must be text, found int"),
        (
            {"role": "user", "content": [{"type": "image_url"}]},
            "expected data:image",
        ),
        ({"role": "user", "content": ["x"]}, "content of type 'str' is not supported"),
        ({"role": "assistant", "tool_calls": [{}]}, "expected an object with function.name"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "are not JSON",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            "an object of arguments",
        ),
    ],
)
def test_other_forms_are_refused(message: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Message.from_dict(message)
