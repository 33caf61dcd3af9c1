# SPDX-License-Identifier: MIT
"""The forms in which models write tool calls: one table, and one reader for each kind of form.

A form is learned from a call as its chat template prints it, or taken from the table `KNOWN`. An answer is
read in that form alone, once and from left to right: a text inside a value is never another call, and only
the form's own marks end a value. Where a form has values without quotes, the tool's schema gives their type.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from eaglecpp.chat.message import ToolCall

Tools = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of the parameters, by tool name."""
Read = Callable[[str, Tools], "tuple[list[ToolCall], int]"]
"""Reads calls from the beginning of a text: the calls and the length read. Raises ValueError."""

KEY = "probe_key"
"""The name of the one argument in a printed call."""
_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]|<[^<>]+>")
_CLOSING = re.compile(r"</?[^<>]+>")
_ENDS = (("<", "</"), ("START", "END"), ("begin", "end"), ("_start", "_end"), ("prefix", "suffix"))
_LONGEST_HEAD = 512  # characters from a call's beginning to its arguments


@dataclass(frozen=True)
class CallForm:
    """How a model writes calls.

    open:   begins a block of calls; "" where a call has no mark of its own
    close:  ends the block; "" where the answer ends with it
    read:   reads the calls of a block
    inside: text with the other marks of a call; some are control tokens
    is_part: `open` and `close` belong to the call, so `read` gets them, too
    needs_close: without `close`, a call that was cut looks whole
    """

    open: str
    close: str
    read: Read = field(compare=False, repr=False)
    inside: str = field(default="", compare=False)
    is_part: bool = False
    needs_close: bool = False

    @property
    def first(self) -> int:
        """Where in a block `read` begins."""
        return 0 if self.is_part else len(self.open)

    def ends_value(self, text: str, start: int, end: int) -> bool:
        """Returns whether a value that is open at `start` may have ended before `end`."""
        pattern = self.read.value_end if isinstance(self.read, _Tags) else _QUOTES[self.read]
        return pattern.search(text, start, end) is not None

    def calls(self, text: str, tools: Tools) -> list[ToolCall] | None:
        """Returns the calls of a whole block, as `read` gets it, None where it is not one."""
        try:
            calls, end = self.read(text, tools)
        except (ValueError, RecursionError):
            return None
        return calls if calls and not text[end:].strip() else None


# JSON


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


_JSON = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_BETWEEN = re.compile(r"(?:[\s;,]|```(?:json)?)*+")


def read_json(text: str, tools: Tools) -> tuple[list[ToolCall], int]:
    """Reads JSON values, each one call or a list of calls."""
    calls: list[ToolCall] = []
    at = end = 0
    while (at := _end(_BETWEEN, text, end)) < len(text) and text[at] in "{[":
        value, end = _JSON.raw_decode(text, at)
        calls += _from_json(value)
    return calls, max(at, end) if end else 0


def _from_json(value: Any) -> Iterator[ToolCall]:
    for entry in value if isinstance(value, list) else ():
        yield from _from_json(entry)
    if isinstance(value, list):
        return
    if not isinstance(value, Mapping):
        raise ValueError("not a call")
    function = value.get("function", value.get("tool_name", value))  # the latter of Command R
    if isinstance(function, str):
        function = {**value, "name": function}
    for name, arguments in value.items() if len(value) == 1 and function is value else ():
        if isinstance(arguments, Mapping):  # of Apertus
            function = {"name": name, "arguments": arguments}
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError("a call without a name")
    keys = (key for key in ("arguments", "parameters") if key in function)
    arguments = next((function[key] for key in keys), {} if len(function) == 1 else None)
    if isinstance(arguments, str):
        arguments = _JSON.decode(arguments)
    if not isinstance(arguments, Mapping):
        raise ValueError("arguments are not an object")
    yield ToolCall(function["name"], dict(arguments), str(value.get("id") or ""))


def _object_at(text: str, at: int) -> tuple[dict[str, Any], int]:
    value, end = _JSON.raw_decode(text, at)
    if not isinstance(value, dict):
        raise ValueError("arguments are not an object")
    return value, end


# A name, marks, and an object: Mistral, DeepSeek, Kimi, gpt-oss, Functionary

_NAMED = re.compile(
    r"(?<![\w.-])(?:functions\.|call:)?([A-Za-z_][\w.-]*+)(?::(\d++))?"
    r"(?:\s*+(?:<\|(?:channel|constrain)\|>\w++|<[^<>{}\n]{1,40}+>|>|\[CALL_ID\][\w-]++|\[ARGS\]|(?:```)?json)){0,4}+"
    r"\s*+\Z"
)
_MARKS_ONLY = re.compile(r"(?:\s|```|<[^<>{}\n]{1,40}+>)*+")


def read_named(text: str, tools: Tools) -> tuple[list[ToolCall], int]:
    """Reads names, each with a JSON object after it, or JSON, as `write_calls` writes it."""
    if text.lstrip().startswith(("[", "{")):
        return read_json(text, tools)
    calls: list[ToolCall] = []
    end = 0
    while (brace := text.find("{", end, end + _LONGEST_HEAD)) >= 0:
        match = _NAMED.search(text[end:brace])
        if match is None:
            break
        arguments, end = _object_at(text, brace)
        # the id of a call of Kimi K2, which its template prints before the result
        id = "" if match[2] is None else f"functions.{match[1]}:{match[2]}"
        calls.append(ToolCall(match[1], arguments, id))
    return calls, _end(_MARKS_ONLY, text, end) if calls else 0


_GEMMA_QUOTE = '<|"|>'
_GEMMA_PART = re.compile(
    r'call:[\w.-]+(?=\{)|<\|"\|>(.*?)<\|"\|>|([^,{}\[\]:<>]++)(?=:)|([^,{}\[\]:]++)', re.DOTALL
)
_BARE_JSON = re.compile(r"\s*(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)?\s*")


def read_gemma(text: str, tools: Tools) -> tuple[list[ToolCall], int]:
    """Reads `call:name{key:<|"|>text<|"|>,other:1}`, of Gemma 4: JSON but for its keys and quotes."""
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
    return match[0] if is_json else json.dumps(bare.strip())


# Python: `[name(key=value, ...), ...]`, of LFM2 and Llama 3.2

_CALL = re.compile(r"\s*([A-Za-z_][\w.-]*+)\(\s*")
_ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*+)\s*=\s*")
_PYTHON_TOKEN = re.compile(
    r"""'(?:\\.|[^'\\])*+'|"(?:\\.|[^"\\])*+"|[\[({]|[\])}]|,|[^\[\](){},'"]++""", re.DOTALL
)


def read_python(text: str, tools: Tools) -> tuple[list[ToolCall], int]:
    """Reads calls as Python writes them, with literals of JSON or Python. Evaluates nothing else."""
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
    try:
        value, end = _JSON.raw_decode(text, at)
        if re.compile(r"\s*[,)]").match(text, end):
            return value, end
    except ValueError:
        pass
    end, depth = at, 0
    while (token := _PYTHON_TOKEN.match(text, end)) and (depth or token[0] not in (",", ")")):
        depth += (token[0] in "[({") - (token[0] in "])}")
        end = token.end()
    return _python_literal(text[at:end].strip()), end


def _python_literal(text: str) -> Any:
    """Returns the value of a literal as Python writes it. Raises ValueError."""
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


_JSON_QUOTE = re.compile('"')
_QUOTES: dict[Read, re.Pattern[str]] = {
    read_json: _JSON_QUOTE,
    read_named: _JSON_QUOTE,
    read_gemma: re.compile(re.escape(_GEMMA_QUOTE)),
    read_python: re.compile("['\"]"),
}
"""What ends a text in a value."""


# Tags around names and values without quotes: Qwen Coder, GLM, MiniMax, DeepSeek V3.2, Hunyuan, Seed-OSS


@dataclass(frozen=True)
class _Tags:
    """name: a call up to its first value; value: one argument; value_end: its end; close: the end of a call.

    A value ends at its own closing tag, where another value or the end of the call follows.
    """

    name: re.Pattern[str]
    value: re.Pattern[str]
    value_end: re.Pattern[str]
    close: re.Pattern[str]
    is_named: bool  # a tag of its own surrounds the name

    def __call__(self, text: str, tools: Tools) -> tuple[list[ToolCall], int]:
        calls: list[ToolCall] = []
        end = 0
        while match := self.name.match(text, end):
            name, schema = match[1], tools.get(match[1], {})
            arguments: dict[str, Any] = {}
            at = match.end()
            while found := self.value.match(text, at):
                key, is_text, lines, inline = found.groups()
                value = inline if lines is None else lines
                if value.startswith("<![CDATA["):
                    value = value.removeprefix("<![CDATA[").removesuffix("]]>")
                arguments[key] = value if is_text == "true" else typed(value, schema, key)
                at = found.end()
            closed = self.close.match(text, at)
            if closed is None or not (arguments or self.is_named or name in tools):
                raise ValueError("a call that does not end")
            calls.append(ToolCall(name, arguments))
            end = closed.end()
        return calls, end


def _tags(prefix: str, between: str, value_end: str, call_end: str) -> _Tags:
    """Returns the form of a printed call. prefix: directly before the name; between: from it to the value."""
    left, _, right = between.partition(KEY)
    at = left.rfind("<")
    suffix, before_key = left[:at].strip(), left[at:]
    mark = re.escape(right.strip()).replace('"true"', '"(true|false)"')
    mark = mark if "(true" in mark else mark + "()"
    mark = mark.replace(r"\ ", r"\s*").replace("\\\n", r"\s*")
    end = rf"{re.escape(value_end)}(?=\s*+(?:{re.escape(before_key)}|{re.escape(call_end) or chr(92) + 'Z'}))"
    return _Tags(
        re.compile(rf'\s*+{re.escape(prefix)}\s*+([^<>"\s]++){re.escape(suffix)}'),
        re.compile(
            rf'\s*+{re.escape(before_key)}([^<>"\s]++){mark}(?:\n(.*?)\n{end}|'
            rf"(<!\[CDATA\[.*?\]\]>(?={re.escape(value_end)})|.*?){end})",
            re.DOTALL,
        ),
        re.compile(end if call_end else re.escape(value_end)),
        re.compile(rf"\s*+{re.escape(call_end)}\s*+"),
        bool(prefix or suffix),
    )


# Types of values without quotes


def typed(text: str, schema: Mapping[str, Any], key: str) -> Any:
    """Returns a value without quotes in the type that the tool's schema gives it.

    It stays a text where a text is allowed, unless it is `null` and that is allowed, too. Without a type in
    the schema, JSON is read as JSON.
    """
    properties = schema.get("properties")
    found = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = _kinds(found if isinstance(found, Mapping) else {}, schema, 0)
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


_DEEPEST = 16  # references and combinations within each other


def _kinds(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> set[str]:
    """The types that a schema allows; empty where it gives none."""
    kind = schema.get("type")
    found = {one for one in (kind, *_list(kind)) if isinstance(one, str)}
    if found or depth > _DEEPEST:
        return found
    constants = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    for value in constants:
        found |= _kind(value)
    if isinstance(schema.get("$ref"), str):
        found |= _kinds(_referred(root, schema["$ref"]), root, depth + 1)
    for name in ("anyOf", "oneOf", "allOf"):
        for other in _list(schema.get(name))[:_DEEPEST]:
            if isinstance(other, Mapping):
                found |= _kinds(other, root, depth + 1)
    return found


def _referred(root: Mapping[str, Any], reference: str) -> Mapping[str, Any]:
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# The table


def learned(called: str, said: str = "") -> tuple[CallForm, ...]:
    """Returns the form of a call as a template prints it, () where that is not understood.

    called: with "\\0" for the call's name and the value of its one argument `KEY`
    said:   what the template prints without a call, which has none of the marks
    """
    parts = called.split("\0")
    if len(parts) < 3 or KEY not in parts[1]:
        return ()
    before, between, behind = parts[:3]
    opens = [tag for tag in _TAG.findall(before) if tag not in said and not tag.startswith("</")]
    tag = next((one for one in opens if one not in _TAG.findall(behind)), "")
    ends = {tag.replace(*pair, 1) for pair in _ENDS} | {tag.replace("<|", "<", 1).replace(">", "|>")}
    close = next((one for one in _TAG.findall(behind) if one in ends - {tag, ""}), "")
    inside = (before.rpartition(tag)[2] if tag else "") + between + behind[: max(behind.find(close), 0)]
    if before.endswith("call:") and _GEMMA_QUOTE in between:
        return (CallForm(tag, close, read_gemma, inside),)
    if re.search(rf"\(\s*{KEY}=", between):
        return (CallForm(tag, close, read_python, inside),)
    unclosed = (
        before[before.rfind("<") :] if before.rfind("<") > before.rfind(">") else ""
    )  # a tag with the name
    closing = [*_CLOSING.findall(behind.partition(close)[0] if close else behind), "", ""]
    if re.search(rf'\{{\s*"{KEY}"\s*:', between):
        if before.endswith("to=functions."):
            return (CallForm("to=functions.", "<|call|>", read_named, inside, is_part=True),)
        if unclosed:  # of Functionary
            return (CallForm(unclosed, closing[0], read_named, inside, is_part=True),)
        return (CallForm(tag, close, read_json if before.endswith('"') else read_named, inside),)
    prefix = before.rpartition(tag)[2].strip() if tag else unclosed
    if "<" not in between.partition(KEY)[0] or not closing[0] or not (tag or prefix):
        return ()
    read = _tags(prefix, between, *closing[:2])
    single = CallForm(prefix, closing[1], read, inside, is_part=True)
    if not tag or (prefix and not close):
        return (single,)
    block = CallForm(tag, close, read, inside, needs_close=not closing[1])
    # Qwen Coder forgets the block's mark
    return (block, single) if prefix and closing[1] else (block,)


_VALUE = f'{{"{KEY}": "\0"}}'
_PRINTED = (
    f"[TOOL_CALLS]\0[ARGS]{_VALUE}",  # Mistral
    f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>\0<｜tool▁sep｜>{_VALUE}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    f'<|tool_call|>[{{"name": "\0", "arguments": {_VALUE}}}]',  # Granite
    f'<|tool_call>call:\0{{{KEY}:<|"|>\0<|"|>}}<tool_call|>',  # Gemma 4
    f'<|tool_call_start|>[\0({KEY}="\0")]<|tool_call_end|>',  # LFM2
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.\0:0<|tool_call_argument_begin|>"  # Kimi K2
    f"{_VALUE}<|tool_call_end|><|tool_calls_section_end|>",
    f"to=functions.\0<|channel|>commentary json<|message|>{_VALUE}<|call|>",  # gpt-oss
    f'<tool_call>\n{{"name": "\0", "arguments": {_VALUE}}}\n</tool_call>',  # Hermes, Qwen
    f"<seed:tool_call>\n<function=\0>\n<parameter={KEY}>\0</parameter>\n</function>\n</seed:tool_call>",
    f'<function name="\0"><param name="{KEY}">\0</param></function>',  # MiniCPM5
    f'<|python_tag|>{{"name": "\0", "parameters": {_VALUE}}}',  # Llama 3
)
"""A call in each known form, as its template would print it: for templates that only mention the marks."""
KNOWN = tuple(form for printed in _PRINTED for form in learned(printed)[:1])
HERMES = next(form for form in KNOWN if form.open == "<tool_call>")
"""The form of tools that are described to a model whose template has none."""


def forms_of(template: str, called: str = "", said: str = "") -> tuple[CallForm, ...]:
    """The forms in which a model with a chat template writes calls; () where it has none. called, said: as in
    `learned`, which counts more than the marks that the template mentions.
    """
    found = learned(called, said)
    if found and found[0].open:
        return found
    mentioned = [form for form in KNOWN if form.open in template][:1]
    # Llama 3 prints no mark but may write one
    return (*mentioned, *(form for form in found if not mentioned))
