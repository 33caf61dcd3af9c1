# SPDX-License-Identifier: MIT
"""Detects which parts of a conversation a chat template prints, by rendering marked texts once per template.

Templates differ in undocumented ways. Some templates print only content that is a text, others print only
typed parts. Some raise an error for a second system message, others silently drop it. A text whose mark is
missing in the prompt would never reach the model. The result depends only on the template, never on a
request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eaglecpp.chat.bounds import check_time_left, rendered_together
from eaglecpp.chat.call_syntax import KEY
from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.errors import TemplateError

Render = Callable[[Sequence[Message], "Form", Sequence[Mapping[str, Any]]], str]
"""Function that renders messages in a form, with tools. Raises TemplateError."""


@dataclass(frozen=True)
class Form:
    """Types of values that a Jinja template expects.

    parts:   the content of a message is a list of typed parts instead of a text
    as_text: the arguments of calls are JSON text instead of an object
    without: the content of a message with only calls is None instead of ""
    """

    parts: bool = False
    as_text: bool = False
    without: bool = False

    def applied(self, message: Message) -> dict[str, Any]:
        """Converts a message to the form that the template expects."""
        values = message.to_dict()
        if self.parts:
            values["content"] = [{"type": "text", "text": message.content}]
        if message.tool_calls:
            if self.without and not message.content:
                values["content"] = None
            if self.as_text:
                for call in values["tool_calls"]:
                    function = call["function"]
                    function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        return values


@dataclass(frozen=True)
class Calls:
    """Describes the tool calls that a template can print.

    short_ids: ids of calls must have nine letters and digits
    several:   a message may have several calls
    content:   the content of a message with calls is printed too
    thinking:  calls are printed even if the message has content and thinking
    """

    short_ids: bool = False
    several: bool = True
    content: bool = True
    thinking: bool = True


@dataclass(frozen=True)
class Takes:
    """Describes the parts of a conversation that a template prints.

    text:        the user's text
    system:      a system message at the beginning
    late_system: later system messages
    same_roles:  two messages in a row with the same role
    tools:       descriptions of tools
    calls:       how calls are printed; None if calls or their results are not printed
    said:        a rendered prompt with an answer, whose thought is "\\0"
    called:      the text that the template prints after a question, with a call, whose tool name and argument
        are "\\0"
    """

    form: Form = field(default_factory=Form)
    text: bool = True
    system: bool = True
    late_system: bool = True
    same_roles: bool = True
    tools: bool = True
    calls: Calls | None = None
    said: str = ""
    called: str = ""


_USER, _OTHER, _SYSTEM, _LATE, _SAID, _THOUGHT, _RESULT = (
    f"probe{letter}9x" for letter in ("u", "o", "s", "l", "a", "t", "r")
)
_NAME = "probe_tool"
_KEYS = {KEY: {"type": "string", "description": "probe"}}
_SCHEMA = {"type": "object", "properties": _KEYS, "required": [*_KEYS]}
_FUNCTION = {"name": _NAME, "description": f"{_NAME} described", "parameters": _SCHEMA}
_TOOL = {"type": "function", "function": _FUNCTION}
_LONG_ID, _SHORT_ID = "call_0123abcd", "call00001"


def probe(render: Render) -> Takes:
    """Renders a dozen short conversations, and returns which parts the template prints.

    If the template refuses even the simplest conversation, later conversations reach it unchanged. Raises
    TemplateError if the renderings exceed the time limit.
    """
    with rendered_together():
        takes = _Probe(render).takes()
        check_time_left()
        return takes


class _Probe:
    def __init__(self, render: Render) -> None:
        self._render = render
        self._form = Form()
        # The tools are only set for templates that print calls only if the prompt has tools.
        self._tools: Sequence[Mapping[str, Any]] = ()
        self._renders = False

    def takes(self) -> Takes:
        question = [Message("user", _USER)]
        for tools in ((), (_TOOL,)):
            for form in (Form(), Form(parts=True)):
                self._form, self._tools = form, tools
                if self._prints(question):
                    return self._taken(question)
        return Takes(text=not self._renders, calls=Calls())

    def _taken(self, question: list[Message]) -> Takes:
        calls = self._calls(question)
        called = self._text([*question, *_called(_SHORT_ID, 1)])
        answered = [*question, Message("assistant", _SAID), Message("user", _OTHER)]
        system, late = Message("system", _SYSTEM), Message("system", _LATE)
        return Takes(
            form=self._form,
            system=self._prints([system, *question]),
            late_system=self._prints([system, *answered[:2], late, answered[2]]),
            same_roles=self._prints([*question, Message("user", _OTHER)])
            and self._prints([*answered[:2], Message("assistant", _THOUGHT), answered[2]]),
            tools=_NAME in self._text(question, tools=(_TOOL,)),
            calls=calls,
            said=self._text([*question, Message("assistant", _SAID, _THOUGHT)]).replace(_THOUGHT, "\0"),
            called=called.rpartition(_USER)[2].replace(_NAME, "\0").replace("probe_b0", "\0"),
        )

    def _find_form(self, question: list[Message]) -> tuple[str, str]:
        """Sets a form in which the template prints calls. Returns the id of the printed call and the prompt;
        ("", "") if the template prints calls in no form.
        """
        plain = self._form
        for id in (_LONG_ID, _SHORT_ID):
            for as_text, without in ((False, False), (True, False), (False, True), (True, True)):
                self._form = Form(plain.parts, as_text, without)
                text = self._text([*question, *_called(id, 1)])
                # Only arguments printed as JSON count. Python's text of an object does not count, and neither
                # does JSON within a JSON string.
                if "probe_b0" in text and f"'{KEY}'" not in text and f'\\"{KEY}' not in text:
                    return id, text
        self._form = plain
        return "", ""

    def _calls(self, question: list[Message]) -> Calls | None:
        id, text = self._find_form(question)
        if f"{_RESULT}0" not in text:
            return None
        thought = _called(id, 1, content=_SAID, thinking=_THOUGHT)
        return Calls(
            short_ids=id == _SHORT_ID,
            several=self._prints([*question, *_called(id, 2)], "probe_b0", "probe_b1"),
            content=self._prints([*question, *_called(id, 1, content=_SAID)], "probe_b0"),
            thinking="probe_b0" in self._text([*question, *thought]),
        )

    def _prints(self, messages: list[Message], *others: str) -> bool:
        """Returns True if the prompt contains the contents of all messages and all other given texts."""
        text = self._text(messages)
        return all(one in text for one in (*(message.content for message in messages), *others))

    def _text(self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Renders a conversation. Returns the prompt, or "" if the template refuses the conversation."""
        try:
            text = self._render(messages, self._form, tools or self._tools)
        except TemplateError:
            return ""
        self._renders = True
        return text


def _called(id: str, n: int, content: str = "", thinking: str = "") -> list[Message]:
    ids = [f"{id[:-1]}{index}" for index in range(n)]
    calls = tuple(ToolCall(_NAME, {KEY: f"probe_b{i}"}, one) for i, one in enumerate(ids))
    return [
        Message("assistant", content, thinking, calls),
        *(Message("tool", f"{_RESULT}{i}", tool_name=_NAME, tool_call_id=one) for i, one in enumerate(ids)),
    ]
