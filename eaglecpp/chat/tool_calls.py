# SPDX-License-Identifier: MIT
"""Finds the tool calls in a model's answer while it streams.

Models write calls in the form their chat template taught them; `call_marks` reads the form off the template.
`ToolReader` takes text and gives text and `ToolCall`s in order. Text that may still become a call is held
back; what looked like a call and is none comes out as text. Knows no model and no engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eaglecpp.chat.message import ToolCall

__all__ = ["CallMarks", "ToolReader", "call_marks", "parse_calls"]


@dataclass(frozen=True)
class CallMarks:
    """`open` begins a call or a list of calls, `close` ends it; "" = the end of the answer does."""

    open: str
    close: str = ""


_KNOWN = (
    ("[TOOL_CALLS]", CallMarks("[TOOL_CALLS]")),  # Mistral
    ("<｜tool▁calls▁begin｜>", CallMarks("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),  # DeepSeek
    ("<|tool_call|>", CallMarks("<|tool_call|>")),  # Granite
    ("<|tool_call>", CallMarks("<|tool_call>", "<tool_call|>")),
    ("<|tool_call_start|>", CallMarks("<|tool_call_start|>", "<|tool_call_end|>")),  # LFM2
    ("<tool_call>", CallMarks("<tool_call>", "</tool_call>")),  # Hermes, Qwen, SmolLM2, GLM
    ("<function_call>", CallMarks("<function_call>", "</function_call>")),
    ("<functioncall>", CallMarks("<functioncall>")),
    ("<function=", CallMarks("<function=", "</function>")),
    ("<|python_tag|>", CallMarks("<|python_tag|>")),  # Llama 3
)
_XML = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_XML_VALUE = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_PAIRS = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_DEEPSEEK = re.compile(r"<｜tool▁sep｜>([^\n`{<]+)\s*(?:```json)?\s*(?=\{)")
_NAMED = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(?:\[CALL_ID\][\w-]+)?(?:\[ARGS\])?\s*(?=\{)")
_PYTHON = re.compile(r"([A-Za-z_]\w*)\(([^()]*)\)")
_FENCE = re.compile(r"\s*```(?:json|tool_call|tool_code)?\s*")
_BARE = ("{", "[{", "```json", "```\n{")


def call_marks(template: str) -> CallMarks | None:
    """The marks that a chat template puts around calls; None where it mentions none."""
    return next((marks for word, marks in _KNOWN if word in template), None)


def parse_calls(text: str, names: Collection[str] = ()) -> list[ToolCall]:
    """The calls that a piece of text consists of, in any of the known forms; [] when it is none.

    names: the tools there are; a bare JSON object counts only if it names one of them
    """
    calls = [ToolCall(m[1], _xml_values(m[2])) for m in _XML.finditer(text)]
    if calls:
        return calls
    if "<arg_key>" in text:
        name = text.strip().split("<", 1)[0].strip().split("\n")[0]
        pairs = {m[1].strip(): _value(m[2].strip()) for m in _PAIRS.finditer(text)}
        return [ToolCall(name, pairs)] if name else []
    for pattern in (_DEEPSEEK, _NAMED):
        found = [(m[1].strip(), _object_at(text, m.end())) for m in pattern.finditer(text)]
        if found and (pattern is _DEEPSEEK or text.strip().startswith(found[0][0])):
            return [ToolCall(name, value) for name, value in found if value is not None]
    calls = [call for value in _values(text) for call in _from_json(value)]
    if names and any(call.name not in names for call in calls):
        return []
    return calls or _python(text, names)


class ToolReader:
    """One answer of a model that was given tools.

    marks: of its template, None for a model that only writes bare JSON; names: the tools there are
    """

    def __init__(self, marks: CallMarks | None, names: Sequence[str] = ()) -> None:
        self._marks = marks
        self._names = tuple(names)
        self._held = ""
        self._inside = False
        self._said = False  # something that is no white space
        self.n_calls = 0

    def feed(self, text: str) -> list[str | ToolCall]:
        """Takes the next text; returns what became certain."""
        self._held += text
        return list(self._advance(final=False))

    def finish(self) -> list[str | ToolCall]:
        """Returns what was held back; no more text will come."""
        return list(self._advance(final=True))

    def _advance(self, final: bool) -> Iterator[str | ToolCall]:
        while self._held:
            if self._inside:
                if not self._has_block(final):
                    return
                yield from self._take_block()
            elif not self._said and self._is_bare():
                if not final:
                    return
                text, self._held = self._held, ""
                yield from self._calls(text, text, self._names)
            else:
                yield from self._take_text(final)
                if not self._inside:
                    return

    def _is_bare(self) -> bool:
        text = self._held.lstrip()
        if not self._names:
            return False
        begins = (*_BARE, *(f"[{name}(" for name in self._names))
        return any(text.startswith(begin) or begin.startswith(text) for begin in begins)

    def _take_text(self, final: bool) -> Iterator[str]:
        opening = self._marks.open if self._marks else ""
        start = self._held.find(opening) if opening else -1
        if start >= 0:
            text, self._held = self._held[:start], self._held[start:]
            self._inside = True
            if text.strip():
                yield self._told(text.rstrip())
            return
        n_sure = len(self._held)
        if opening and not final:
            n_sure -= next(
                n for n in range(min(len(opening) - 1, n_sure), -1, -1) if self._held.endswith(opening[:n])
            )
        text, self._held = self._held[:n_sure], self._held[n_sure:]
        if text.strip() or (text and not self.n_calls):
            yield self._told(text)

    def _told(self, text: str) -> str:
        self._said = self._said or bool(text.strip())
        return text

    def _has_block(self, final: bool) -> bool:
        assert self._marks is not None
        return final or bool(self._marks.close and self._marks.close in self._held[len(self._marks.open) :])

    def _take_block(self) -> Iterator[str | ToolCall]:
        assert self._marks is not None
        first = len(self._marks.open)
        end = self._held.find(self._marks.close, first) if self._marks.close else -1
        n_all = len(self._held) if end < 0 else end + len(self._marks.close)
        whole, self._held = self._held[:n_all], self._held[n_all:]
        inner = whole if self._marks.open == "<function=" else whole[first : len(whole) if end < 0 else end]
        self._inside = False
        yield from self._calls(whole, inner, ())

    def _calls(self, whole: str, inner: str, names: Sequence[str]) -> Iterator[str | ToolCall]:
        calls = parse_calls(inner, names)
        self.n_calls += len(calls)
        if calls:
            yield from calls
        else:
            yield self._told(whole)


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


def _object_at(text: str, at: int) -> dict[str, Any] | None:
    try:
        value, _ = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _xml_values(text: str) -> dict[str, Any]:
    plain = text.strip()
    if plain.startswith("{"):
        return _object_at(plain, 0) or {}
    return {m[1]: _value(m[2].strip()) for m in _XML_VALUE.finditer(text)}


def _value(text: str) -> Any:
    """A value without quotes: JSON where it is some, else text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _python(text: str, names: Collection[str]) -> list[ToolCall]:
    """`[name(key=value, ...), ...]`, as Llama 3.2 and LFM2 write. Literals only, nothing is evaluated."""
    import ast

    body = text.strip()
    if not (body.startswith("[") and body.endswith("]") and _PYTHON.search(body)):
        return []
    try:
        tree = ast.parse(body, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    calls: list[ToolCall] = []
    for node in tree.elts if isinstance(tree, ast.List) else []:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
            return []
        try:
            arguments = {key.arg: ast.literal_eval(key.value) for key in node.keywords if key.arg}
        except ValueError:
            return []
        calls.append(ToolCall(node.func.id, arguments))
    return calls if not names or all(call.name in names for call in calls) else []
