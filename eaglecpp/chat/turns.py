# SPDX-License-Identifier: MIT
"""`accepted`: converts a conversation to a form that a template accepts, without losing text.

A part that a template would drop moves to another part: a system message into the next question, tools into
the system prompt, calls and their results into texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eaglecpp.chat.formats import HERMES, CallFormat
from eaglecpp.chat.message import Message, Role, ToolCall
from eaglecpp.chat.probe import Takes
from eaglecpp.errors import UnsupportedError

_GAP = "\n\n"


@dataclass(frozen=True)
class Accepted:
    """Messages and tools in the form that a template accepts.

    describes: the system prompt describes the tools and the format of calls
    notices:   notices for the user about parts that were moved
    """

    messages: list[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    describes: bool = False
    notices: tuple[str, ...] = ()


def accepted(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    takes: Takes,
    forms: Sequence[CallFormat] = (HERMES,),
) -> Accepted:
    """Converts messages and tools to a form that the template accepts. forms: formats of the model's calls.

    Raises UnsupportedError for a template that prints no question.
    """
    if not takes.text:
        raise UnsupportedError("the chat template does not print the user's messages; use another template")
    notices: list[str] = []
    turns, tools = _paired(messages), [_complete(tool) for tool in tools]
    has_calls = any(turn.tool_calls or turn.role == Role.TOOL for turn in turns)
    describes = bool(tools) and not takes.tools
    if describes:
        turns, tools = _with_described([_as_text(turn, HERMES) for turn in turns], tools), ()
        notices.append("the chat template does not support tools, so the system prompt describes the tools")
    elif has_calls and takes.calls is None:
        turns = [_as_text(turn, [*forms, HERMES][0]) for turn in turns]
        notices.append("the chat template does not print tool calls, so they are written as text")
    elif has_calls:
        turns = _called(turns, takes, notices)
    turns = lead_system(turns)
    if not takes.late_system and any(turn.role == Role.SYSTEM for turn in turns[1:]):
        turns = fold_system(turns, first=1)
        notices.append(
            "the chat template prints no later system messages; each is put before the next message"
        )
    if not takes.system and turns and turns[0].role == Role.SYSTEM:
        turns = fold_system(turns)
        notices.append("the chat template prints no system prompt, so it is put before the first question")
    if not takes.same_roles:
        turns = merged(turns)
    return Accepted(turns, tools, describes, tuple(dict.fromkeys(notices)))


def joined(first: Message, second: Message) -> Message:
    """Joins two messages with the same role."""
    return replace(
        first,
        content=_GAP.join(filter(None, (first.content, second.content))),
        thinking=_GAP.join(filter(None, (first.thinking, second.thinking))),
        tool_calls=(*first.tool_calls, *second.tool_calls),
        images=(*first.images, *second.images),
    )


def merged(messages: Sequence[Message], roles: Sequence[str] = (Role.USER, Role.ASSISTANT)) -> list[Message]:
    """Joins consecutive messages with the same role."""
    turns: list[Message] = []
    for message in messages:
        if turns and message.role in roles and turns[-1].role == message.role:
            message = joined(turns.pop(), message)
        turns.append(message)
    return turns


def lead_system(messages: Sequence[Message]) -> list[Message]:
    """Joins the system messages at the beginning of a conversation."""
    n = next((i for i, one in enumerate(messages) if one.role != Role.SYSTEM), len(messages))
    return [*merged(messages[:n], (Role.SYSTEM,)), *messages[n:]]


def fold_system(messages: Sequence[Message], first: int = 0) -> list[Message]:
    """Moves the texts of system messages to the front of the next question, for a template without a system
    role. first: system messages before this index stay.
    """
    turns: list[Message] = []
    for index, message in enumerate(messages):
        turn = message
        if index >= first and message.role == Role.SYSTEM:
            turn = replace(message, role=str(Role.USER))
        if index > first and messages[index - 1].role == Role.SYSTEM and turn.role == Role.USER:
            turn = joined(turns.pop(), turn)
        turns.append(turn)
    return turns


# Tool calls and their results


def _paired(messages: Sequence[Message]) -> list[Message]:
    """Adds the ids and names of calls to the results of calls, because clients may omit them. A result is
    matched to an earlier call by id, else by name, else by order.
    """
    turns: list[Message] = []
    open_calls: list[ToolCall] = []
    n_calls = 0
    for message in messages:
        if message.tool_calls:
            calls = []
            for call in message.tool_calls:
                # The id contains the tool's name, because Kimi K2's template prints the id without the name.
                calls.append(call if call.id else replace(call, id=f"functions.{call.name}:{n_calls}"))
                n_calls += 1
            message, open_calls = replace(message, tool_calls=tuple(calls)), calls
        elif message.role == Role.TOOL:
            found = _call_of(message, open_calls)
            if found is not None:
                open_calls = [one for one in open_calls if one is not found]
                name = message.tool_name or found.name
                message = replace(message, tool_call_id=found.id, tool_name=name)
        turns.append(message)
    return turns


def _call_of(result: Message, calls: Sequence[ToolCall]) -> ToolCall | None:
    if result.tool_call_id:
        return next((call for call in calls if call.id == result.tool_call_id), None)
    named = (call for call in calls if call.name == result.tool_name)
    return next(named, calls[0] if calls else None)


def _called(messages: Sequence[Message], takes: Takes, notices: list[str]) -> list[Message]:
    """Converts messages with calls to a form that the template accepts."""
    can = takes.calls
    assert can is not None
    turns: list[Message] = []
    for message in _with_short_ids(messages) if can.short_ids else messages:
        if message.tool_calls and message.content:
            if not can.content and takes.same_roles:
                turns.append(Message(message.role, message.content))
                message = replace(message, content="")
            elif not can.content:
                notices.append("the chat template drops the text of a message with a tool call")
            elif message.thinking and not can.thinking:
                message = replace(message, content="", thinking=f"{message.thinking}{_GAP}{message.content}")
        turns.append(message)
    return turns if can.several else _one_by_one(turns)


def _with_short_ids(messages: Sequence[Message]) -> list[Message]:
    """Shortens the ids of calls and results to nine letters and digits. Equal ids stay equal."""
    return [
        replace(
            message,
            tool_calls=tuple(replace(call, id=_short_id(call.id)) for call in message.tool_calls),
            tool_call_id=_short_id(message.tool_call_id),
        )
        for message in messages
    ]


def _short_id(id: str) -> str:
    """Returns an id of nine letters and digits."""
    is_one = not id or (len(id) == 9 and id.isascii() and id.isalnum())
    return id if is_one else hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()[:9]


def _one_by_one(messages: Sequence[Message]) -> list[Message]:
    """Splits a message with several calls into messages with one call, and puts each result after its
    call.
    """
    groups: list[list[Message]] = [[]]
    of_call: dict[str, list[Message]] = {}
    for message in messages:
        if message.role == Role.TOOL:
            of_call.get(message.tool_call_id, groups[-1]).append(message)
            continue
        calls = message.tool_calls
        made = [[replace(message, tool_calls=calls[:1])]]
        made += [[Message(message.role, tool_calls=(call,))] for call in calls[1:]]
        of_call = {call.id: group for call, group in zip(calls, made, strict=False)}
        groups += [*made, []]
    return [message for group in groups for message in group]


def _complete(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Adds an empty description and parameters to a tool that lacks them. APIs allow clients to omit both
    fields, but templates read both.
    """
    function = tool.get("function", tool)
    if not isinstance(function, Mapping):
        return tool
    parameters = function.get("parameters") or {}
    if isinstance(parameters, Mapping):
        parameters = {"type": "object", "properties": {}, **parameters}
    text = function.get("description") or ""
    function = {**function, "description": text, "parameters": parameters}
    return {"type": "function", **(tool if "function" in tool else {}), "function": function}


def _with_described(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Adds a description of the tools after the system prompt. The description has the format of Hermes,
    because many models were trained on this format.
    """
    listed = "\n".join(json.dumps(dict(tool), ensure_ascii=False) for tool in tools)
    text = (
        "# Tools\n\nYou may call functions to answer. These are there, as JSON between <tools> and "
        f"</tools>:\n<tools>\n{listed}\n</tools>\n\nTo call one, answer with its name and arguments as JSON "
        f'between {HERMES.open} and {HERMES.close}:\n{HERMES.open}\n{{"name": "the function\'s name", '
        f'"arguments": {{"a parameter": "its value"}}}}\n{HERMES.close}'
    )
    turns = lead_system(messages)
    turns.insert(1 if turns and turns[0].role == Role.SYSTEM else 0, Message(Role.SYSTEM, text))
    return lead_system(turns)


def _as_text(message: Message, form: CallFormat) -> Message:
    """Writes the calls of a message, or the result of a call, as text."""
    if message.role == Role.TOOL:
        name = {"name": message.tool_name} if message.tool_name else {}
        payload = json.dumps({**name, "content": message.content}, ensure_ascii=False)
        return Message(Role.USER, f"<tool_response>\n{payload}\n</tool_response>", images=message.images)
    if not message.tool_calls:
        return message
    text = form.write(message.tool_calls)
    return replace(message, content="\n".join(filter(None, (message.content, text))), tool_calls=())
