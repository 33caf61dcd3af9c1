# SPDX-License-Identifier: MIT
"""The forms in which models write tool calls: text of a whole block to `ToolCall`s.

Where a form has values without quotes, the tool's own schema says what they are: "3" stays a text where a
text is wanted. A call that was cut off in the middle of a value is not a call: half a command is a different
command.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from eaglecpp.chat.message import ToolCall

Tools = Mapping[str, Mapping[str, Any]]
"""The schemas of their parameters, by the names of the tools there are."""

# An answer may be long and say anything, so none of these may take more than a time in proportion to it: what
# is repeated cannot be what follows it (possessive quantifiers say so), and names are looked for where one
# begins.
_XML = re.compile(r"<function=([^>\s]+)>(.*?)(</function>|\Z)", re.DOTALL)
_XML_VALUE = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_PAIRS = re.compile(
    r"<arg_key>([^<]*+)</arg_key>\s*+<arg_value>(.*?)(?:</arg_value>|(?=<arg_key>)|\Z)", re.DOTALL
)
_NAME = re.compile(r"\s*([\w.-]+)\s*")
# an object behind its tool's name, with marks between them: Mistral, DeepSeek, Kimi, gpt-oss
_NAMED = re.compile(
    r"(?<![\w.-])(?:functions\.)?([A-Za-z_][\w.-]*+)(?::(\d++))?"
    r"(?:\s*+(?:<\|(?:channel|constrain)\|>\w++|<[^<>{}\n]{1,40}+>|\[CALL_ID\][\w-]++|\[ARGS\]|(?:```)?json)){0,4}+"
    r"\s*+(?=\{)"
)
_GEMMA = re.compile(r"\s*call:([\w.-]+)(?=\{)")
_GEMMA_QUOTE = '<|"|>'
_GEMMA_PART = re.compile(
    r'call:[\w.-]+(?=\{)|<\|"\|>(.*?)<\|"\|>|([^,{}\[\]:<>]++)(?=:)|([^,{}\[\]:]++)', re.DOTALL
)
_BARE_JSON = re.compile(r"\s*(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)?\s*")
_PYTHON = re.compile(r"(?<!\w)([A-Za-z_]\w*+)\(([^()]*+)\)")
_QUOTE = re.compile(r'(?<!\\)(?:\\\\)*"')
_VALUES = (("<parameter=", "<parameter=", "</parameter>"), ("<arg_key>", "<arg_value>", "</arg_value>"))
"""Marks of forms, and what begins and ends a value there."""
_MAX_BROKEN = 16  # objects of one answer
_LITERALS = {"True": True, "False": False, "None": None}


def parse_calls(
    text: str, names: Collection[str] = (), tools: Tools | None = None, is_cut: bool = False
) -> list[ToolCall]:
    """The calls that a piece of text consists of, in any of the known forms; [] when it is none.

    names: a bare JSON object counts only if it names one of them; tools: for the types of values without
    quotes; is_cut: the text ended before the call did
    """
    tools = tools or {}
    for form in (_xml_calls, _pair_calls, _gemma_calls):
        calls = form(text, tools, is_cut)
        if calls is not None:
            return calls
    calls = [call for value in _values(text) for call in _from_json(value)]
    if calls:
        return [] if names and any(call.name not in names for call in calls) else calls
    found = list(_objects(text))
    head = text[: found[0][0].end()] if found else ""
    if found and ("<" in head or head.strip() == found[0][0][0].strip()):
        return [ToolCall(m[1], value, _id(m)) for m, value in found if value is not None]
    return _python(text, names)


def _id(match: re.Match[str]) -> str:
    """What a call of Kimi K2 has as its name, which its template writes before the result."""
    return "" if match[2] is None else f"functions.{match[1]}:{match[2]}"


def is_inside_value(text: str) -> bool:
    """Whether a block of calls ends within a value, so that what looks like its end is a part of that."""
    for mark, begin, end in _VALUES:
        if mark in text:
            return text.rfind(begin) > text.rfind(end)
    if _GEMMA_QUOTE in text:
        return text.count(_GEMMA_QUOTE) % 2 == 1
    return len(_QUOTE.findall(text)) % 2 == 1


def _xml_calls(text: str, tools: Tools, is_cut: bool) -> list[ToolCall] | None:
    """`<function=name><parameter=key>value</parameter></function>`, of Qwen Coder."""
    found = list(_XML.finditer(text))
    if not found:
        return None
    return [ToolCall(m[1], _xml_values(m[2], tools.get(m[1], {}))) for m in found if m[3] or not is_cut]


def _xml_values(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    plain = text.strip()
    if plain.startswith("{"):
        return _object_at(plain, 0)[0] or {}
    return {m[1]: _value(m[2], _property(schema, m[1])) for m in _XML_VALUE.finditer(text)}


def _pair_calls(text: str, tools: Tools, is_cut: bool) -> list[ToolCall] | None:
    """`name<arg_key>key</arg_key><arg_value>value</arg_value>`, of GLM; of a tool that takes nothing, its
    name.
    """
    if "<arg_key>" not in text:
        match = _NAME.fullmatch(text)
        return [ToolCall(match[1])] if match and match[1] in tools and not is_cut else None
    name = text.strip().split("<", 1)[0].strip().split("\n")[0]
    if not name or is_cut:
        return []
    schema = tools.get(name, {})
    pairs = {(key := m[1].strip()): _value(m[2], _property(schema, key)) for m in _PAIRS.finditer(text)}
    return [ToolCall(name, pairs)]


def _gemma_calls(text: str, tools: Tools, is_cut: bool) -> list[ToolCall] | None:
    """`call:name{key:<|"|>text<|"|>,other:1}`, of Gemma 4: JSON but for its keys and quotes."""
    if _GEMMA.match(text) is None:
        return None
    calls, at, text = [], 0, _GEMMA_PART.sub(_gemma_json, text)
    while match := _GEMMA.match(text, at):
        value, at = _object_at(text, match.end())
        if value is None:
            break
        calls.append(ToolCall(match[1], value))
    return calls


def _gemma_json(match: re.Match[str]) -> str:
    quoted, key, bare = match.groups()
    if quoted is not None or key is not None:
        return json.dumps(key.strip() if quoted is None else quoted)
    is_json = bare is None or _BARE_JSON.fullmatch(bare) is not None
    return match[0] if is_json else json.dumps(bare.strip())


def _objects(text: str) -> Iterator[tuple[re.Match[str], dict[str, Any] | None]]:
    """Names with the JSON object behind them; what looks like one within an object is not looked at. What
    follows many that are not JSON is none either: each may take a time in proportion to the whole text.
    """
    n_broken, match = 0, _NAMED.search(text)
    while match is not None and n_broken < _MAX_BROKEN:
        value, at = _object_at(text, match.end())
        yield match, value
        n_broken += value is None
        match = _NAMED.search(text, max(at, match.end()))


def _values(text: str) -> Iterator[Any]:
    """The JSON values that a text is a row of; nothing when there is something else in it."""
    found, at, decoder = [], 0, json.JSONDecoder()
    while at < len(text):
        match = re.compile(r"[\s;,]*(?:```(?:json)?)?[\s;,]*").match(text, at)
        at = match.end() if match else at
        if at >= len(text):
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        found.append(value)
    yield from found


def _from_json(value: Any) -> Iterator[ToolCall]:
    if isinstance(value, list):
        for entry in value:
            yield from _from_json(entry)
        return
    if not isinstance(value, Mapping):
        return
    function = value.get("function", value)
    if isinstance(function, str):
        function = {**value, "name": function}
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return
    arguments = next((function[key] for key in ("arguments", "parameters") if key in function), None)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return
    if arguments is None and len(function) == 1:
        arguments = {}
    if isinstance(arguments, Mapping):
        yield ToolCall(function["name"], dict(arguments), str(value.get("id") or ""))


def _object_at(text: str, at: int) -> tuple[dict[str, Any] | None, int]:
    try:
        value, at = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        return None, at
    return (value if isinstance(value, dict) else None), at


def _property(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """A value without quotes: what its schema says, and where that says nothing JSON where it is some, else
    text.
    """
    kinds = _kinds(schema)
    if kinds == {"string"}:
        return text
    plain = text.strip()
    try:
        return json.loads(plain)
    except (ValueError, RecursionError):
        if kinds & {"boolean", "null"} and plain in _LITERALS:  # as Python writes them
            return _LITERALS[plain]
        return text if kinds else plain


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema allows; none where it does not say."""
    kind, values = schema.get("type"), _list(schema.get("enum"))
    found = {one for one in (kind, *_list(kind)) if isinstance(one, str)}
    if not found and values and all(isinstance(one, str) for one in values):
        found = {"string"}
    for other in (*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))):
        if isinstance(other, Mapping):
            found |= _kinds(other)
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _python(text: str, names: Collection[str]) -> list[ToolCall]:
    """`[name(key=value, ...), ...]`, as Llama 3.2 and LFM2 write. Literals only, nothing is evaluated."""
    body = text.strip()
    if not (body.startswith("[") and body.endswith("]") and _PYTHON.search(body)):
        return []
    try:
        nodes: Any = ast.parse(body, mode="eval").body
        calls = [
            ToolCall(node.func.id, {key.arg: ast.literal_eval(key.value) for key in node.keywords})
            for node in nodes.elts
            if not node.args and all(key.arg for key in node.keywords)
        ]
    except (AttributeError, SyntaxError, ValueError, RecursionError, MemoryError):  # other than such calls
        return []
    is_whole = len(calls) == len(nodes.elts)
    return calls if is_whole and (not names or all(call.name in names for call in calls)) else []
