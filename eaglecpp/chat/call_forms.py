# SPDX-License-Identifier: MIT
"""Forms of tool calls: a table of known forms, and a reader and a writer for each kind.

A form is learned from a call that the chat template prints, or taken from `KNOWN`. An answer is read only in
that form, once and from left to right: text inside a value is never another call, and only the marks of the
form end a value. If values have no quotes, the tool's schema gives their type.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from eaglecpp.chat.message import ToolCall

Tools = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the parameters by tool name."""
Read = Callable[[str, Tools], "tuple[list[ToolCall], int]"]
"""Reads calls at the beginning of a text. Returns the calls and the length read. Raises ValueError."""

KEY = "probe_key"
"""The name of the one argument in a printed call."""
_ARGUMENTS = re.compile(rf"""\{{\s*"{KEY}"\s*:\s*"\0"\s*\}}|\{{{KEY}:<\|"\|>\0<\|"\|>\}}|{KEY}=['"]\0['"]""")
_PRINTED_END = re.compile(_ARGUMENTS.pattern.join(("(?:", r""")(?:\s*(?:[\]})]|,\s*"\w+":\s*"[^"]*"))*""")))
_SPACE = r"(?:\]<\]\w+\[>\[)"  # before each tag of MiniMax M3
_TAG = re.compile(
    rf"<\|(?:open|close)\|>[^<>|]*<\|sep\|>|{_SPACE}?<(?!\])[^<>\s]+>|\[[A-Z_]+\]|<(?!\])[^<>]+>"
)
_ENDS = (("START", "END"), ("begin", "end"), ("_start", "_end"), ("prefix", "suffix"), ("open", "close"))
_LAST_TAG = re.compile(rf"{_SPACE}?<[^<]*\Z")
_JSON_START = re.compile(r'(?:\[\s*)?\{[^{}]*"\Z')
_LONGEST_HEAD = 512  # characters from a call's beginning to its arguments


@dataclass(frozen=True)
class CallForm:
    """Syntax of a model's calls.

    open:        mark before a block of calls, "" without a mark
    close:       mark after the block, "" if the answer ends with the block
    read:        reader of a block
    printed:     a call as the template prints it, with "\\0" for its name and the value of `KEY`; some of its
                 marks are control tokens
    is_part:     `open` and `close` are part of the call, so `read` gets them
    needs_close: a truncated call without `close` looks complete
    is_message:  a call is a message of its own, which `thinking.CALL` precedes
    """

    open: str
    close: str
    read: Read = field(compare=False, repr=False)
    printed: str = field(default="", compare=False)
    is_part: bool = False
    needs_close: bool = False
    is_message: bool = False

    @property
    def first(self) -> int:
        """Returns the position in a block at which `read` begins."""
        return 0 if self.is_part else len(self.open)

    def ends_value(self, text: str, start: int, end: int) -> bool:
        """Returns whether a value that is open at `start` may have ended before `end`."""
        pattern = self.read.value_end if isinstance(self.read, _Tags) else _QUOTES.get(self.read, _QUOTE)
        return pattern.search(text, start, end) is not None

    def calls(self, text: str, tools: Tools) -> list[ToolCall] | None:
        """Returns the calls of a complete block, None if it is not one."""
        try:
            calls, end = self.read(text, tools)
        except (ValueError, RecursionError):
            return None
        return calls if calls and not text[end:].strip() else None

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Returns calls in this form."""
        written = [self._written(call, index) for index, call in enumerate(calls)]
        if not self.close and self.read is read_json:
            return self.open + "".join(written)
        around = ("", "") if self.is_part else (self.open, self.close)
        return ("\n" if self.close else "").join(around[0] + call + around[1] for call in written)

    def _written(self, call: ToolCall, index: int) -> str:
        if isinstance(self.read, _Tags):
            return self.read.write(call)
        before, _, behind = self.printed.partition("\0")
        arguments = _write_json(call.arguments)
        if self.read is read_python:
            arguments = ", ".join(f"{key}={_write_json(value)}" for key, value in call.arguments.items())
        elif self.read is read_gemma:
            arguments = _write_gemma(call.arguments)
        elif self.read is read_named:  # the ids of Kimi K2
            number = call.id.rpartition(":")[2]
            behind = re.sub(r"^:0(?=<)", f":{number if number.isdigit() else index}", behind)
        return f"{before}{call.name}{_ARGUMENTS.sub(lambda _: arguments, behind, 1)}"


# JSON


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _write_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


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
    if isinstance(value, list):
        for entry in value:
            yield from _from_json(entry)
        return
    if not isinstance(value, Mapping):
        raise ValueError("not a call")
    function = value.get("function", value.get("tool_name", value))  # the latter in Command R
    if isinstance(function, str):
        function = {**value, "name": function}
    for name, arguments in value.items() if len(value) == 1 and function is value else ():
        if isinstance(arguments, Mapping):  # Apertus
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


# A name, marks, and an object: Mistral, DeepSeek, Kimi, gpt-oss, Functionary 3.1

_NAMED = re.compile(
    r"(?<![\w.-])(?:functions\.|call:)?([A-Za-z_][\w.-]*+)(?::(\d++))?"
    r"(?:\s*+(?:<\|(?:channel|constrain)\|>\w++|<[^<>{}\n]{1,40}+>|>|\[CALL_ID\][\w-]++|\[ARGS\]|(?:```)?json)){0,4}+"
    r"\s*+\Z"
)
_MARKS_ONLY = re.compile(r"(?:\s|```|<[^<>{}\n]{1,40}+>)*+")


def read_named(text: str, tools: Tools) -> tuple[list[ToolCall], int]:
    """Reads names, each followed by a JSON object, or calls in JSON."""
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


def _read_messages(header: re.Pattern[str], text: str, tools: Tools) -> tuple[list[ToolCall], int]:
    """Reads messages to tools, each a header with the name and a JSON object."""
    calls: list[ToolCall] = []
    end = 0
    while match := header.match(text, end):
        arguments, end = _object_at(text, match.end())
        calls.append(ToolCall(match[1], arguments))
        end = _end(_MARKS_ONLY, text, end)
    return calls, end


read_harmony = partial(
    _read_messages,
    re.compile(
        r"\0?to=functions\.([\w.-]++)[^{}<]*+(?:<\|(?:channel|constrain)\|>[^{}<]*+)*+<\|message\|>\s*+"
    ),
)
"""Reads messages of gpt-oss: `to=functions.name<|channel|>commentary json<|message|>{...}`."""
read_functionary = partial(_read_messages, re.compile(r"\0?(?:>>>)?([\w.-]++)\n"))
"""Reads messages of Functionary 3.2: `name`, a line break and an object."""


_GEMMA_QUOTE = '<|"|>'
_GEMMA_PART = re.compile(
    r'call:[\w.-]+(?=\{)|<\|"\|>(.*?)<\|"\|>|([^,{}\[\]:<>]++)(?=:)|([^,{}\[\]:]++)', re.DOTALL
)
_BARE_JSON = re.compile(r"\s*(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)?\s*")


def read_gemma(text: str, tools: Tools) -> tuple[list[ToolCall], int]:
    """Reads `call:name{key:<|"|>text<|"|>,other:1}` of Gemma 4: JSON with other quotes and bare keys."""
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


def _write_gemma(value: Any) -> str:
    if isinstance(value, str):
        return f"{_GEMMA_QUOTE}{value}{_GEMMA_QUOTE}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_gemma_key(key)}:{_write_gemma(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_write_gemma, value)) + "]"
    return _write_json(value)


def _gemma_key(key: str) -> str:
    return key if re.fullmatch(r"[\w.-]+", key) else _write_gemma(key)


# Python: `[name(key=value, ...), ...]`, of LFM2 and Llama 3.2

_CALL = re.compile(r"\s*([A-Za-z_][\w.-]*+)\(\s*")
_ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*+)\s*=\s*")
_PYTHON_TOKEN = re.compile(
    r"""'(?:\\.|[^'\\])*+'|"(?:\\.|[^"\\])*+"|[\[({]|[\])}]|,|[^\[\](){},'"]++""", re.DOTALL
)


def read_python(text: str, tools: Tools) -> tuple[list[ToolCall], int]:
    """Reads calls in Python's syntax, with literals of JSON or Python. Evaluates nothing else."""
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
    """Returns the value of a Python literal. Raises ValueError."""
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


_QUOTE = re.compile('"')
_QUOTES: dict[Read, re.Pattern[str]] = {
    read_gemma: re.compile(re.escape(_GEMMA_QUOTE)),
    read_python: re.compile("['\"]"),
}
"""Ends of a text in a value, if not a double quote."""


# Tags around names and values without quotes: Qwen Coder, GLM, MiniMax, DeepSeek V3.2, Kimi K3, Hunyuan


class _Tags:
    """Reader and writer of calls in tags, learned from a printed call.

    printed:   the call
    value_end: tag after its value
    call_end:  tag at its end, "" without a tag

    A value ends at its closing tag if another argument or the end of the call follows.
    """

    def __init__(self, printed: str, value_end: str, call_end: str) -> None:
        self._before_name, between, behind = printed.split("\0")
        left, _, before_value = between.partition(KEY)
        before_key = _LAST_TAG.findall(left)[-1]
        self._behind_name = left.removesuffix(before_key)
        n_end = behind.find(value_end) + len(value_end)
        self._argument = before_key, before_value, behind[:n_end]
        self._behind = behind[n_end:]
        self._has_cdata = value_end == "</param>"  # MiniCPM5
        self._is_tree = KEY in value_end  # MiniMax M3 names tags like the arguments
        prefix, suffix = self._before_name.strip(), self._behind_name.strip()
        self._is_named = bool(prefix or suffix)
        suffix = re.sub(r"\d+", r"\\d+", re.escape(suffix))  # Kimi K3 numbers its calls
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
        self.value_end = re.compile(end + follows if call_end else end)

    def __call__(self, text: str, tools: Tools) -> tuple[list[ToolCall], int]:
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
        """Returns the elements up to the closing tag of their parent, as texts or lists of elements."""
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

    def write(self, call: ToolCall) -> str:
        """Returns a call in these tags."""
        space = self._behind_name[len(self._behind_name.rstrip()) :]
        values = space.join(self._write_value(key, value) for key, value in call.arguments.items())
        return f"{self._before_name}{call.name}{self._behind_name}{values}{self._behind}"

    def _write_value(self, key: str, value: Any) -> str:
        before_key, before_value, end = self._argument
        if not isinstance(value, str):
            before_value = before_value.replace('"true"', '"false"')
            before_value = before_value.replace('"string"', f'"{max(_kind(value))}"')
        if self._is_tree and value and isinstance(value, Mapping | list | tuple):
            entries = value.items() if isinstance(value, Mapping) else (("item", one) for one in value)
            text = "".join(self._write_value(name, one) for name, one in entries)
        else:
            text = value if isinstance(value, str) else _write_json(value)
        if self._has_cdata and re.search(r"[<&\n]", text) and "]]>" not in text:
            text = f"<![CDATA[{text}]]>"
        return f"{before_key}{key}{before_value}{text}{end.replace(KEY, key)}"


def _of_tree(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    """Returns the value of an element, with the types of the schema."""
    if isinstance(value, str):
        return typed(value, _kinds(schema, root))
    if all(name == "item" for name, _ in value) and "object" not in _kinds(schema, root):
        items: Any = next((one["items"] for one in _alternatives(schema, root) if "items" in one), {})
        return [_of_tree(one, items, root) for _, one in value]
    return {name: _of_tree(one, _property(schema, root, name), root) for name, one in value}


# Types of values without quotes


def typed(text: str, kinds: set[str]) -> Any:
    """Returns a value without quotes in a type that a schema allows.

    The value is a text if texts are allowed, except for `null` if null is allowed as well. Without a type,
    JSON is read as JSON.
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
    """Returns the types that a schema allows, empty if it does not say."""
    kinds: set[str] = set()
    for one in _alternatives(schema, root):
        kind = one.get("type")
        kinds.update(name for name in (kind, *_list(kind)) if isinstance(name, str))
        if kind is None:
            constants = [*_list(one.get("enum")), *([one["const"]] if "const" in one else [])]
            kinds.update(*map(_kind, constants))
    return kinds


def _property(schema: Any, root: Mapping[str, Any], key: str) -> Any:
    """Returns the schema of an object's value."""
    properties = (one.get("properties") for one in _alternatives(schema, root))
    return next((one[key] for one in properties if isinstance(one, Mapping) and key in one), {})


def _alternatives(schema: Any, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the schema and, if it has no type, the schemas that it refers to or combines."""
    found: dict[int, Mapping[str, Any]] = {}
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, Mapping) and id(one) not in found:
            found[id(one)] = one
            if "type" not in one:
                left.append(_referred(root, one.get("$ref")))
                left += (other for name in ("anyOf", "oneOf", "allOf") for other in _list(one.get(name)))
    return list(found.values())


def _referred(root: Any, reference: Any) -> Any:
    for part in reference.removeprefix("#").split("/")[1:] if isinstance(reference, str) else ():
        name = part.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, Mapping) else None
    return root if isinstance(reference, str) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# The table


def learned(called: str, said: str = "") -> tuple[CallForm, ...]:
    """Returns the forms of a printed call, () if its syntax is unknown.

    called: the call, with "\\0" for its name and the value of its argument `KEY`
    said:   a prompt without a call, which has none of the marks of calls
    """
    parts = called.split("\0")
    index = next((at for at, part in enumerate(parts) if KEY in part), 0)
    if not 0 < index < len(parts) - 1:
        return ()
    before, between, behind = parts[index - 1 : index + 2]
    tags, tags_behind = _TAG.findall(before), _TAG.findall(behind)
    opens = (one for one in tags if one not in said and not one.startswith("</") and one not in tags_behind)
    tag = next(opens, "")
    is_json = re.search(rf'\{{\s*"{KEY}"\s*:', between) is not None
    start = _JSON_START.search(before)
    if not tag and start:  # a text, as of Command R+, or a header, as of GigaChat 3
        head = before[: start.start()].strip()
        line = head[head.rfind(">") + 1 :].strip() or head.rpartition("\n")[2]
        tag = line if line not in said else ""
    ends = {tag.replace(*pair, 1) for pair in _ENDS} | {tag.replace("<|", "<", 1).replace(">", "|>")}
    ends.add("</".join(tag.rsplit("<", 1)))
    close = next((one for one in tags_behind if one in ends - {tag, ""}), "")
    body = behind.partition(close)[0] if close else behind
    value_end, call_end, *_ = *_TAG.findall(body), "", ""
    # a tag with the name
    unclosed = before[before.rfind("<") :] if before.rfind("<") > before.rfind(">") else ""
    lead = before.rpartition(tag)[2] if tag else start[0] if start else unclosed
    is_python = re.search(rf"\(\s*{KEY}=", between) is not None
    is_gemma = before.endswith("call:") and _GEMMA_QUOTE in between
    if is_json or is_python or is_gemma:
        is_part = is_message = False
        read: Read = read_python if is_python else read_gemma if is_gemma else read_named
        if before.endswith("to=functions."):
            tag, close, lead, read = "to=functions.", "", "to=functions.", read_harmony
            is_part = is_message = True
        elif before.endswith(">>>"):
            tag, read, is_message = ">>>", read_functionary, True
        elif unclosed and is_json:  # Functionary 3.1
            tag, close, is_part = unclosed, value_end, True
        elif start:
            read = read_json
        printed = f"{lead}\0{between}\0{body}"
        end = _PRINTED_END.search(printed)
        if end is not None and (is_part or not close):
            printed = printed[: end.end()] + close
        return (CallForm(tag, close, read, printed, is_part, is_message=is_message),)
    prefix = lead.strip()
    if "<" not in between.partition(KEY)[0] or not value_end or not (tag or prefix):
        return ()
    if not close:
        body = body[: body.find(call_end or value_end) + len(call_end or value_end)]
    printed = f"{lead}\0{between}\0{body}"
    tag_reader = _Tags(printed, value_end, call_end)
    single = CallForm(prefix, call_end, tag_reader, printed, is_part=True)
    if not tag or (prefix and not close):
        return (single,)
    # Muse also names the tool in the header of the message
    opening = before[: before.find(tag) + len(tag)] if index > 1 else tag
    is_message = index > 1 or tag.startswith("<|open|>")
    block = CallForm(opening, close, tag_reader, printed, needs_close=not call_end, is_message=is_message)
    # Qwen Coder forgets the block's mark
    return (block, single) if prefix and call_end and not is_message else (block,)


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
"""A call in each known form, for templates that mention the marks but print no calls."""
KNOWN = tuple(form for printed in _PRINTED for form in learned(printed)[:1])
HERMES = next(form for form in KNOWN if form.open == "<tool_call>")
"""The form in which tools are described to a model whose template has no tools."""


def forms_of(template: str, called: str = "", said: str = "") -> tuple[CallForm, ...]:
    """Returns the forms of calls of a model with a chat template, () if the template has no calls.

    A call that the template prints (`called` and `said`, as in `learned`) takes precedence over marks that it
    mentions.
    """
    found = learned(called, said)
    if found and found[0].open:
        return found
    mentioned = [form for form in KNOWN if form.open in template][:1]
    # Llama 3 prints no mark but may write one
    return (*mentioned, *(form for form in found if not mentioned))
