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
from contextlib import suppress
from typing import Any

from eaglecpp.chat.message import ToolCall

Tools = Mapping[str, Mapping[str, Any]]
"""The schemas of their parameters, by the names of the tools there are."""

# An answer may be long and say anything, so none of these may take more than a time in proportion to it: what
# is repeated cannot be what follows it (possessive quantifiers say so), and names are looked for where one
# begins.
_SPACE = r"(?:\w++:|｜\w++｜)?"  # of names: MiniMax, DeepSeek
_CALL, _GIVEN = f"{_SPACE}(?:function|invoke)", f"{_SPACE}(?:parameter|param)"
_XML = re.compile(rf'<{_CALL}(?:=| name=")([^">\s]+)[^<>]*+>(.*?)(</{_CALL}>|\Z)', re.DOTALL)
_XML_VALUE = re.compile(
    rf'<{_GIVEN}(=| name=")([^">\s]++)(?:" string="(\w++))?"?>'
    rf"(<!\[CDATA\[.*?(?:\]\]>|\Z)|.*?)(?:</{_GIVEN}>|(?=<parameter[= ])|\Z)",
    re.DOTALL,
)
_AS_XML = (
    (r"<arg_key[^<>]*+>\s*+([^<\s]++)\s*+</arg_key[^<>]*+>\s*+<arg_value[^<>]*+>", r'<parameter name="\1">'),
    (r"</arg_value[^<>]*+>", "</parameter>"),
    (r"<tool_call:\w++>\s*+([\w.-]++)\s*+<tool_sep:\w++>", r"<function=\1>"),  # Hunyuan 3
    (r"</tool_call:\w++>", "</function>"),
    (r"\A\s*+([\w.-]++)\s*+(?=<parameter )", r"<function=\1>"),
)
"""How others write what Qwen Coder does."""
_NAME = re.compile(r"\s*([\w.-]+)\s*")
# an object behind its tool's name, with marks between them: Mistral, DeepSeek, Kimi, gpt-oss, Gemma 4
_NAMED = re.compile(
    r"(?<![\w.-])(?:functions\.|call:)?([A-Za-z_][\w.-]*+)(?::(\d++))?"
    r"(?:\s*+(?:<\|(?:channel|constrain)\|>\w++|<[^<>{}\n]{1,40}+>|\[CALL_ID\][\w-]++|\[ARGS\]|(?:```)?json)){0,4}+"
    r"\s*+(?=\{)"
)
_GEMMA_QUOTE = '<|"|>'
_GEMMA_PART = re.compile(
    r'call:[\w.-]+(?=\{)|<\|"\|>(.*?)<\|"\|>|([^,{}\[\]:<>]++)(?=:)|([^,{}\[\]:]++)', re.DOTALL
)
_BARE_JSON = re.compile(r"\s*(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)?\s*")
_PYTHON = re.compile(r"(?<!\w)([A-Za-z_]\w*+)\(([^()]*+)\)")
_QUOTE = re.compile(r'(?<!\\)(?:\\\\)*"')
_VALUE_BEGINS = "<parameter=", 'parameter name="', '<param name="', "<arg_value"  # no text of JSON has quotes
_VALUE_ENDS = "parameter>", "param>", "</arg_value"
_MAX_BROKEN = 16  # objects of one answer


def parse_calls(
    text: str, names: Collection[str] = (), tools: Tools | None = None, is_cut: bool = False
) -> list[ToolCall]:
    """The calls that a piece of text consists of, in any of the known forms; [] when it is none.

    names: a bare JSON object counts only if it names one of them; tools: for the types of values without
    quotes; is_cut: the text ended before the call did
    """
    tools = tools or {}
    calls = _xml_calls(text, tools, is_cut)
    if calls is not None:
        return calls
    if text.lstrip().startswith("call:"):
        text = _GEMMA_PART.sub(_gemma_json, text)
    calls = [call for value in _values(text) for call in _from_json(value, names)] or _python(text)
    if calls:
        return [] if names and any(call.name not in names for call in calls) else calls
    found = list(_objects(text))
    head = text[: found[0][0].end()] if found else ""
    if found and ("<" in head or head.strip() == found[0][0][0].strip()):
        return [ToolCall(m[1], value, _id(m)) for m, value in found if value is not None]
    return []


def _id(match: re.Match[str]) -> str:
    """What a call of Kimi K2 has as its name, which its template writes before the result."""
    return "" if match[2] is None else f"functions.{match[1]}:{match[2]}"


def is_inside_value(text: str) -> bool:
    """Whether a block of calls ends within a value, so that what looks like its end is a part of that."""
    begin = max(map(text.rfind, _VALUE_BEGINS))
    if begin >= 0:
        return begin > max(map(text.rfind, _VALUE_ENDS))
    n_quotes = text.count(_GEMMA_QUOTE) or len(_QUOTE.findall(text))
    return n_quotes % 2 == 1


def _xml_calls(text: str, tools: Tools, is_cut: bool) -> list[ToolCall] | None:
    """`<function=name><parameter=key>value</parameter></function>`, of Qwen Coder, and as others write that;
    of a tool that takes nothing, its name.
    """
    match = _NAME.fullmatch(text)
    if match and match[1] in tools:
        return [] if is_cut else [ToolCall(match[1])]
    for pattern, meant in _AS_XML:
        text = re.sub(pattern, meant, text)
    found = list(_XML.finditer(text))
    if not found:
        return None
    read = [(m[1], _xml_values(m[2], tools.get(m[1], {}))) for m in found if m[3] or not is_cut]
    return [ToolCall(name, values) for name, values in read if values is not None]


def _xml_values(text: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments; None for a text that has others than are understood."""
    plain = text.strip()
    if not _XML_VALUE.search(plain):
        return _object_at(plain, 0)[0] if plain else {}
    values = {}
    for sign, key, kind, value in _XML_VALUE.findall(text):
        if sign == "=":  # on lines of its own
            value = value.removeprefix("\n").removesuffix("\n")
        meant = {"type": "string"} if kind == "true" else _property(schema, key)
        values[key] = _value(value.removeprefix("<![CDATA[").removesuffix("]]>"), meant)
    return values


def _gemma_json(match: re.Match[str]) -> str:
    """A part of `call:name{key:<|"|>text<|"|>,other:1}`, of Gemma 4: JSON but for its keys and quotes."""
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


def _from_json(value: Any, names: Collection[str]) -> Iterator[ToolCall]:
    for entry in value if isinstance(value, list) else ():
        yield from _from_json(entry, names)
    if not isinstance(value, Mapping):
        return
    function = value.get("function", value.get("tool_name", value))  # the latter of Command R
    if isinstance(function, str):
        function = {**value, "name": function}
    for name, given in value.items() if not names and len(value) == 1 and function is value else ():
        if isinstance(given, Mapping):  # of Apertus
            function = {"name": name, "arguments": given}
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return
    given = (function[key] for key in ("arguments", "parameters") if key in function)
    arguments: Any = next(given, {} if len(function) == 1 else None)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return
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
        if kinds & {"boolean", "null", "object", "array"}:
            with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                return json.loads(json.dumps(ast.literal_eval(plain)))  # as Python writes them
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


def _python(text: str) -> list[ToolCall]:
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
    return calls if len(calls) == len(nodes.elts) else []
