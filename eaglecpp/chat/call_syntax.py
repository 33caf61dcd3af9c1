# SPDX-License-Identifier: MIT
"""Readers and writers of tool calls, one for each kind of syntax.

Only the marks of the syntax itself end an argument's value, so text inside a value is never another call. If
the syntax has no quotes around values, the tool's schema determines the types of the values.
"""

from __future__ import annotations

import ast
import json
import math
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from eaglecpp.chat.message import ToolCall

Tools = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the parameters by tool name."""
Read = Callable[[str, Tools], "tuple[list[ToolCall], int]"]
"""Function that reads calls at the beginning of a text. It returns the calls and the number of characters
read, and raises ValueError.
"""

KEY = "probe_key"
"""Name of the only argument in the call that a template prints for detecting the format of calls."""
_GEMMA_QUOTE = '<|"|>'
_SPACE = r"(?:\]<\]\w+\[>\[)"  # text that MiniMax M3 writes before each tag
TAG = re.compile(
    rf"<\|(?:open|close)\|>[^<>|]*<\|sep\|>|{_SPACE}?<(?!\])[^<>\s]+>|\[[A-Z_]+\]|<(?!\])[^<>]+>"
)
"""Matches a tag, or another mark with the role of a tag."""
_LAST_TAG = re.compile(rf"{_SPACE}?<[^<]*\Z")
_LONGEST_HEAD = 512  # maximum characters from the beginning of a call to its arguments


# Calls that are JSON objects


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def write_json(value: Any) -> str:
    """Writes a value as JSON."""
    return json.dumps(value, ensure_ascii=False)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


# Not strict, because small models write line breaks in texts without an escape.
_JSON = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, strict=False)
_BETWEEN = re.compile(r"(?:[\s;,\[\]]|```(?:json)?)*+")


def read_json(text: str, tools: Tools) -> tuple[list[ToolCall], int]:
    """Reads calls from a sequence or list of JSON objects. Ollama's templates teach lists without commas."""
    calls: list[ToolCall] = []
    at = end = 0
    while (at := _end(_BETWEEN, text, end)) < len(text) and text[at] == "{":
        value, end = _JSON.raw_decode(text, at)
        calls.append(_from_json(value))
    return calls, max(at, end) if end else 0


def _from_json(value: Mapping[str, Any]) -> ToolCall:
    function = value.get("function", value.get("tool_name", value))  # Command R calls this key "tool_name"
    if isinstance(function, str):
        function = {**value, "name": function}
    for name, arguments in value.items() if len(value) == 1 and function is value else ():
        if isinstance(arguments, Mapping):  # Apertus writes {name: arguments}
            function = {"name": name, "arguments": arguments}
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError("a call without a name")
    keys = (key for key in ("arguments", "parameters") if key in function)
    arguments = next((function[key] for key in keys), {} if len(function) == 1 else None)
    if isinstance(arguments, str):
        arguments = _JSON.decode(arguments)
    if not isinstance(arguments, Mapping):
        raise ValueError("arguments are not an object")
    return ToolCall(function["name"], dict(arguments), str(value.get("id") or ""))


def _object_at(text: str, at: int) -> tuple[dict[str, Any], int]:
    value, end = _JSON.raw_decode(text, at)
    if not isinstance(value, dict):
        raise ValueError("arguments are not an object")
    return value, end


# Calls of the form name, marks, JSON object: Mistral, DeepSeek, Kimi, gpt-oss, Functionary 3.1

_NAMED = re.compile(
    r"(?<![\w.-])(?:functions\.|call:)?([A-Za-z_][\w.-]*+)(?::(\d++))?"
    r"(?:\s*+(?:<\|(?:channel|constrain)\|>\w++|<[^<>{}\n]{1,40}+>|>|\[CALL_ID\][\w-]++|\[ARGS\]|(?:```)?json)){0,4}+"
    r"\s*+\Z"
)
_MARKS_ONLY = re.compile(r"(?:\s|```|<[^<>{}\n]{1,40}+>)*+")


def read_named(text: str, tools: Tools) -> tuple[list[ToolCall], int]:
    """Reads calls that are a name followed by a JSON object. If the text has another form, reads calls in
    JSON.
    """
    if text.lstrip().startswith(("[", "{")):
        return read_json(text, tools)
    calls: list[ToolCall] = []
    end = 0
    while (brace := text.find("{", end, end + _LONGEST_HEAD)) >= 0:
        match = _NAMED.search(text[end:brace])
        if match is None:
            break
        arguments, end = _object_at(text, brace)
        # Kimi K2's template prints an id of this form before the result of a call.
        id = "" if match[2] is None else f"functions.{match[1]}:{match[2]}"
        calls.append(ToolCall(match[1], arguments, id))
    return calls, _end(_MARKS_ONLY, text, end) if calls else 0


def _reader_of_message(header: str) -> Read:
    """Returns a reader of messages that call a tool. header: pattern of the message's header, with the tool's
    name; the rest of the message is a JSON object.
    """
    pattern = re.compile(header)

    def read(text: str, tools: Tools) -> tuple[list[ToolCall], int]:
        match = pattern.match(text)
        if match is None:
            raise ValueError("not a message to a tool")
        arguments, end = _object_at(text, match.end())
        return [ToolCall(match[1], arguments)], end

    return read


_GEMMA_PART = re.compile(
    r'call:[\w.-]+(?=\{)|<\|"\|>(.*?)<\|"\|>|([^,{}\[\]:<>]++)(?=:)|([^,{}\[\]:]++)', re.DOTALL
)
_BARE_JSON = re.compile(r"\s*(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)?\s*")


def read_gemma(text: str, tools: Tools) -> tuple[list[ToolCall], int]:
    """Reads Gemma 4's calls `call:name{key:<|"|>text<|"|>,other:1}`: JSON with other quotes and with keys
    without quotes.
    """
    if text.count(_GEMMA_QUOTE) % 2:
        raise ValueError("ends within a text")
    plain = _GEMMA_PART.sub(_gemma_json, text)
    calls, end = read_named(plain, tools)
    return calls, len(text) if not plain[end:].strip() else 0


def _gemma_json(match: re.Match[str]) -> str:
    quoted, key, bare = match.groups()
    if quoted is not None or key is not None:
        return json.dumps(key.strip() if quoted is None else quoted)
    is_json = bare is None or _BARE_JSON.fullmatch(bare) is not None
    # The template prints null as None.
    return match[0] if is_json else "null" if bare.strip() == "None" else json.dumps(bare.strip())


def _write_gemma(value: Any) -> str:
    if isinstance(value, str):
        return f"{_GEMMA_QUOTE}{value}{_GEMMA_QUOTE}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_gemma_key(key)}:{_write_gemma(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_write_gemma, value)) + "]"
    return write_json(value)


def _gemma_key(key: str) -> str:
    return key if re.fullmatch(r"[\w.-]+", key) else _write_gemma(key)


# Python syntax of LFM2 and Llama 3.2: `[name(key=value, ...), ...]`

_CALL = re.compile(r"\s*([A-Za-z_][\w.-]*+)\(\s*")
_ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*+)\s*=\s*")
_PYTHON_TOKEN = re.compile(
    r"""'(?:\\.|[^'\\])*+'|"(?:\\.|[^"\\])*+"|[\[({]|[\])}]|,|[^\[\](){},'"]++""", re.DOTALL
)


def read_python(text: str, tools: Tools) -> tuple[list[ToolCall], int]:
    """Reads calls in Python's syntax, with literals of JSON or Python. No other expression is evaluated."""
    calls: list[ToolCall] = []
    at = _end(re.compile(r"\s*\["), text, 0)
    while at and (match := _CALL.match(text, at)):
        arguments: dict[str, Any] = {}
        at = match.end()
        while key := _ARGUMENT.match(text, at):
            arguments[key[1]], at = _python_value(text, key.end())
            at = _end(re.compile(r"\s*,?"), text, at)
        at = _after(re.compile(r"\s*\)\s*"), text, at)
        calls.append(ToolCall(match[1], arguments))
        if text[at : at + 1] == "]":
            return calls, at + 1
        at = _after(re.compile(","), text, at)
    raise ValueError("not a list of calls")


def _python_value(text: str, at: int) -> tuple[Any, int]:
    end, depth = at, 0
    while (token := _PYTHON_TOKEN.match(text, end)) and (depth or token[0] not in (",", ")")):
        depth += (token[0] in "[({") - (token[0] in "])}")
        end = token.end()
    value = text[at:end].strip()
    try:
        return _JSON.decode(value), end
    except ValueError:
        return _python_literal(value), end


def _python_literal(text: str) -> Any:
    """Returns the value of a Python literal, whose texts may contain line breaks. Raises ValueError."""

    def escaped(one: re.Match[str]) -> str:
        return one[0].replace("\n", "\\n").replace("\r", "\\r") if one[0][0] in "'\"" else one[0]

    text = _PYTHON_TOKEN.sub(escaped, text)
    try:
        return _JSON.decode(json.dumps(ast.literal_eval(text)))
    except (TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("not a literal") from error


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    if match is None:
        raise ValueError("not a list of calls")
    return match.end()


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _write_python(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={write_json(value)}" for key, value in arguments.items())


# The supported kinds of syntax


@dataclass(eq=False)
class Syntax:
    """Syntax of the tool calls in a block.

    read: reads the calls of a block
    write: writes the arguments of a call
    value_end: pattern that ends a text value
    argument:  pattern of the arguments in a printed call, which has "\\0" as the value of `KEY`
    """

    read: Read
    write: Callable[[Mapping[str, Any]], str] = write_json
    value_end: re.Pattern[str] = re.compile('"')
    argument: re.Pattern[str] = re.compile(rf'\{{\s*"{KEY}"\s*:\s*"\0"\s*\}}')


JSON = Syntax(read_json)
NAMED = Syntax(read_named)
GEMMA = Syntax(
    read_gemma,
    _write_gemma,
    value_end=re.compile(re.escape(_GEMMA_QUOTE)),
    argument=re.compile(re.escape(f"{{{KEY}:{_GEMMA_QUOTE}\0{_GEMMA_QUOTE}}}")),
)
PYTHON = Syntax(
    read_python,
    _write_python,
    value_end=re.compile("['\"]"),
    argument=re.compile(rf"{KEY}=['\"]\0['\"]"),
)
HARMONY = Syntax(
    _reader_of_message(
        r"to=functions\.([\w.-]++)[^{}<]*+(?:<\|(?:channel|constrain)\|>[^{}<]*+)*+<\|message\|>\s*+"
    )
)
"""Messages of gpt-oss: `to=functions.name<|channel|>commentary json<|message|>{...}`."""
FUNCTIONARY = Syntax(_reader_of_message(r"(?:>>>)?([\w.-]++)\n"))
"""Messages of Functionary 3.2: `>>>name`, a line break and an object."""


# Calls with tags around names, and with values without quotes: Qwen Coder, GLM, MiniMax, DeepSeek V3.2, Kimi
# K3, Hunyuan


class Tags(Syntax):
    """Syntax of calls in tags, learned from a printed call.

    printed:   the call
    value_end: tag after the value in this call
    call_end: tag at the end of this call, "" without a tag

    A value ends at its closing tag if another argument or the end of the call follows.
    """

    def __init__(self, printed: str, value_end: str, call_end: str) -> None:
        before_name, between, behind = printed.split("\0")
        left, _, before_value = between.partition(KEY)
        before_key = _LAST_TAG.findall(left)[-1]
        behind_name = left.removesuffix(before_key)
        value_close = behind[: behind.find(value_end) + len(value_end)]
        self._argument = before_key, before_value, value_close
        self._space = behind_name[len(behind_name.rstrip()) :]  # the white space between two arguments
        self._has_cdata = value_end == "</param>"  # True for MiniCPM5, which may write a value as CDATA
        self._is_tree = KEY in value_end  # True for MiniMax M3, whose tags have the names of the arguments
        prefix, suffix = before_name.strip(), behind_name.strip()
        self._is_named = bool(prefix or suffix)
        # Kimi K3 numbers its calls. So digits in the printed call match any number.
        suffix = re.sub(r"\d+", r"\\d+", re.escape(suffix))
        self._name = re.compile(rf'\s*+{re.escape(prefix)}\s*+([^<>"\s]++){suffix}')
        self._close = re.compile(rf"\s*+{re.escape(call_end)}\s*+")
        key, mark = re.escape(before_key), re.escape(before_value.strip())
        mark, n_kinds = re.subn('"(?:true|string)"', r'"(\\w+)"', mark)
        mark = re.sub(r"\\\s", r"\\s*", mark) + "()" * (not n_kinds)
        end = re.escape(value_end).replace(KEY, r"[^<>\s]++")
        follows = rf"(?=\s*+(?:{key}|{re.escape(call_end) or chr(92) + 'Z'}))"
        lines = rf"\n(.*?)\n{end}{follows}" if before_value.endswith("\n") else "(?!)()"
        inline = r"<!\[CDATA\[.*?\]\]>|.*?" if self._has_cdata else ".*?"
        self._value = re.compile(
            rf'\s*+{key}([^<>"\s]++){mark}(?:{lines}|({inline}){end}{follows})', re.DOTALL
        )
        argument = re.escape(f"{before_key}{KEY}{before_value}\0{value_close}")
        super().__init__(
            self._read, self._write, re.compile(end + follows if call_end else end), re.compile(argument)
        )

    def _read(self, text: str, tools: Tools) -> tuple[list[ToolCall], int]:
        calls: list[ToolCall] = []
        end = 0
        while match := self._name.match(text, end):
            name, schema = match[1], tools.get(match[1], {})
            if self._is_tree:
                elements, at = self._elements(text, match.end())
                arguments = _of_tree(elements, {"type": "object", **schema}, schema)
            else:
                arguments, at = self._read_values(text, match.end(), schema)
            closed = self._close.match(text, at)
            if closed is None or not (arguments or self._is_named or name in tools):
                raise ValueError("a call that does not end")
            calls.append(ToolCall(name, arguments))
            end = closed.end()
        return calls, end

    def _read_values(self, text: str, at: int, schema: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        arguments: dict[str, Any] = {}
        while found := self._value.match(text, at):
            key, kind, lines, inline = found.groups()
            value = inline if lines is None else lines
            if self._has_cdata and value.startswith("<![CDATA["):
                value = value.removeprefix("<![CDATA[").removesuffix("]]>")
            is_text = kind in ("true", "string")
            arguments[key] = (
                value if is_text else typed(value, _kinds(_property(schema, schema, key), schema))
            )
            at = found.end()
        return arguments, at

    def _elements(self, text: str, at: int) -> tuple[list[tuple[str, Any]], int]:
        """Reads elements of MiniMax M3 up to the closing tag of their parent. Returns the elements by name,
        each with its text or a list of inner elements, and the position after the closing tag.
        """
        before = re.escape(self._argument[0])
        elements: list[tuple[str, Any]] = []
        while tag := re.compile(rf"\s*+{before}([^<>/\s]++)>").match(text, at):
            value, end = self._elements(text, tag.end())
            close = re.compile(re.escape(self._argument[2].replace(KEY, tag[1])) + rf"(?=\s*+{before})")
            closed = close.match(text, end) if value else close.search(text, end)
            if closed is None:
                raise ValueError("a value that does not end")
            elements.append((tag[1], value or text[tag.end() : closed.start()]))
            at = closed.end()
        return elements, at

    def _write(self, arguments: Mapping[str, Any]) -> str:
        return self._space.join(self._write_value(key, value) for key, value in arguments.items())

    def _write_value(self, key: str, value: Any) -> str:
        before_key, before_value, end = self._argument
        if not isinstance(value, str):
            before_value = before_value.replace('"true"', '"false"')
            before_value = before_value.replace('"string"', f'"{max(_kind(value))}"')
        if self._is_tree and value and isinstance(value, Mapping | list | tuple):
            entries = value.items() if isinstance(value, Mapping) else (("item", one) for one in value)
            text = "".join(self._write_value(name, one) for name, one in entries)
        else:
            text = value if isinstance(value, str) else write_json(value)
        if self._has_cdata and re.search(r"[<&\n]", text) and "]]>" not in text:
            text = f"<![CDATA[{text}]]>"
        return f"{before_key}{key}{before_value}{text}{end.replace(KEY, key)}"


def _of_tree(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    """Returns the value of a MiniMax M3 element, converted to the types of the schema."""
    if isinstance(value, str):
        return typed(value, _kinds(schema, root))
    if all(name == "item" for name, _ in value) and "object" not in _kinds(schema, root):
        items: Any = next((one["items"] for one in _alternatives(schema, root) if "items" in one), {})
        return [_of_tree(one, items, root) for _, one in value]
    return {name: _of_tree(one, _property(schema, root, name), root) for name, one in value}


# Types of values without quotes


def typed(text: str, kinds: set[str]) -> Any:
    """Converts a value that has no quotes to a type that a schema allows.

    If the schema allows strings, the value stays a text. Only the text `null` becomes None if the schema
    allows null as well. If the schema has no type, valid JSON is parsed.
    """
    plain = text.strip()
    if "string" in kinds:
        return None if "null" in kinds and plain == "null" else text
    try:
        value = _JSON.decode(plain)
    except (ValueError, RecursionError):
        if not kinds & {"boolean", "null", "object", "array"}:
            return text if kinds else plain
        try:
            value = _python_literal(plain)
        except ValueError:
            return text
    return value if not kinds or _kind(value) & kinds else text


def _kind(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return {"integer", "number"}
    kinds: dict[type, str] = {float: "number", str: "string", list: "array", dict: "object"}
    return {kinds.get(type(value), "null")}


def _kinds(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """Returns the JSON types that a schema allows; an empty set if the schema names no type."""
    kinds: set[str] = set()
    for one in _alternatives(schema, root):
        kind = one.get("type")
        kinds.update(name for name in (kind, *_list(kind)) if isinstance(name, str))
        if kind is None:
            constants = [*_list(one.get("enum")), *([one["const"]] if "const" in one else [])]
            kinds.update(*map(_kind, constants))
    return kinds


def _property(schema: Any, root: Mapping[str, Any], key: str) -> Any:
    """Returns the schema of the value under a key of an object."""
    properties = (one.get("properties") for one in _alternatives(schema, root))
    return next((one[key] for one in properties if isinstance(one, Mapping) and key in one), {})


def _alternatives(schema: Any, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the schema itself. For a schema without a type, also returns the schemas that it refers to or
    combines.
    """
    found: dict[int, Mapping[str, Any]] = {}
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, Mapping) and id(one) not in found:
            found[id(one)] = one
            if "type" not in one:
                left.append(referred(root, one.get("$ref")))
                left += (other for name in ("anyOf", "oneOf", "allOf") for other in _list(one.get(name)))
    return list(found.values())


def referred(root: Any, reference: Any) -> Any:
    """Returns the part of a JSON schema that a "$ref" names; None if the schema lacks this part."""
    if not isinstance(reference, str) or not re.match("#(/|$)", reference):
        return None
    for part in urllib.parse.unquote(reference).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, Mapping) else None
    return root


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
