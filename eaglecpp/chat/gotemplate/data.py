# SPDX-License-Identifier: MIT
"""Messages and tools as the Go values that Ollama hands to a template.

Which fields exist, what they are called and in which order they print as JSON is part of the prompt, so it
follows Ollama's types (ollama/ollama: api/types.go, template/template.go). What those types do not know, such
as the `default` of a tool's parameter, is not there for the template either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eaglecpp.chat.message import Message
from eaglecpp.errors import InvalidValueError

from .values import JsonDict, JsonList, Struct, TypeNames

__all__ = ["collated", "message_value", "tool_values"]

_TOOL_JSON = {"Type": "type", "Items": "items?", "Function": "function"}
_FUNCTION_JSON = {"Name": "name", "Description": "description", "Parameters": "parameters"}
_PARAMETERS_JSON = {
    "Type": "type",
    "Defs": "$defs?",
    "Items": "items?",
    "Required": "required?",
    "Properties": "properties",
}
_PROPERTY_JSON = {
    "AnyOf": "anyOf?",
    "Type": "type?",
    "Items": "items?",
    "Description": "description?",
    "Enum": "enum?",
    "Properties": "properties?",
    "Required": "required?",
}


def collated(messages: Sequence[Message]) -> list[Message]:
    """Consecutive messages of one role joined by a blank line; those of tools stay apart."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].role == message.role != "tool":
            last = joined.pop()
            message = Message(
                role=last.role,
                content=f"{last.content}\n\n{message.content}",
                thinking=last.thinking,
                tool_calls=last.tool_calls,
                tool_name=last.tool_name,
                tool_call_id=last.tool_call_id,
            )
        joined.append(message)
    return joined


def message_value(message: Message) -> Struct:
    """One element of `.Messages`."""
    calls = [
        Struct(
            "template.templateToolCall",
            {"ID": call.id, "Function": _call_value(index, call.name, call.arguments)},
        )
        for index, call in enumerate(message.tool_calls)
    ]
    return Struct(
        "*template.templateMessage",
        {
            "Role": str(message.role),
            "Content": message.content,
            "Thinking": message.thinking,
            "Images": (),
            "ToolCalls": tuple(calls),
            "ToolName": message.tool_name,
            "ToolCallID": message.tool_call_id,
        },
    )


def _call_value(index: int, name: str, arguments: Mapping[str, Any]) -> Struct:
    fields = {"Index": index, "Name": name, "Arguments": JsonDict(arguments)}
    return Struct("template.templateToolCallFunction", fields)


def tool_values(tools: Sequence[Mapping[str, Any]]) -> JsonList:
    """`.Tools` from tool definitions in the JSON form of both chat APIs. Raises ValueError for another."""
    return JsonList(_tool_value(tool) for tool in tools)


def _tool_value(tool: Mapping[str, Any]) -> Struct:
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidValueError("tool: expected {'type': 'function', 'function': {'name': ...}}")
    given = function.get("parameters") or {}
    if not isinstance(given, Mapping):
        raise InvalidValueError(f"tool: parameters: expected a JSON schema, found {given!r:.80}")
    parameters = {
        "Type": _text(given, "type"),
        "Defs": given.get("$defs"),
        "Items": given.get("items"),
        "Required": _list(given, "required"),
        "Properties": _properties(given),
    }
    fields = {
        "Name": function["name"],
        "Description": _text(function, "description"),
        "Parameters": Struct(
            "template.templateToolFunctionParameters", parameters, _PARAMETERS_JSON, prints_json=True
        ),
    }
    value = Struct("template.templateToolFunction", fields, _FUNCTION_JSON, prints_json=True)
    outer = {"Type": _text(tool, "type"), "Items": tool.get("items"), "Function": value}
    return Struct("template.templateTool", outer, _TOOL_JSON, prints_json=True)


def _properties(schema: Mapping[str, Any]) -> JsonDict:
    properties = schema.get("properties") or {}
    if not isinstance(properties, Mapping):
        raise InvalidValueError(f"tool: expected an object of properties, found {properties!r:.80}")
    return JsonDict({name: _property(value) for name, value in properties.items()})


def _property(schema: Any) -> Struct:
    if not isinstance(schema, Mapping):
        raise InvalidValueError(f"tool: expected a JSON schema for a property, found {schema!r:.80}")
    types = schema.get("type")
    fields = {
        "AnyOf": tuple(_property(option) for option in _list(schema, "anyOf")),
        "Type": TypeNames([types] if isinstance(types, str) else map(str, _list(schema, "type"))),
        "Items": schema.get("items"),
        "Description": _text(schema, "description"),
        "Enum": _list(schema, "enum"),
        "Properties": _properties(schema),
        "Required": _list(schema, "required"),
    }
    return Struct("api.ToolProperty", fields, _PROPERTY_JSON, prints_json=True)


def _list(schema: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    value = schema.get(key) or ()
    if not isinstance(value, list | tuple):
        raise InvalidValueError(f"tool: {key}: expected a list, found {value!r:.80}")
    return tuple(value)


def _text(mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key)
    return value if isinstance(value, str) else ""
