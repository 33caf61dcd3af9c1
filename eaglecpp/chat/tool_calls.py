# SPDX-License-Identifier: MIT
"""Finds the tool calls in a model's answer while it streams.

Models write calls in the form their chat template taught them; `call_marks` reads the form off the template.
`ToolReader` takes text and returns text and `ToolCall`s in order. Text that may still become a call is held
back; what looked like a call but is not one comes out as text. Needs no model and no engine.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from eaglecpp.chat.call_forms import Tools, is_inside_value, parse_calls
from eaglecpp.chat.message import ToolCall
from eaglecpp.chat.thinking import first_mark


@dataclass(frozen=True)
class CallMarks:
    """`open` begins a call or a list of calls, `close` ends it; "" = the end of the answer does.

    inside: other control tokens of a call
    is_end: not a call, but the end of one whose beginning a model forgot
    """

    open: str
    close: str = ""
    inside: str = ""
    is_end: bool = False


_FUNCTION = "<function="
HERMES = CallMarks("<tool_call>", "</tool_call>")
"""Of many families, and of tools that are described to a model whose template has none."""
_BARE = ("{", "[{", "```json", "```\n{")
_KNOWN = (
    CallMarks("[TOOL_CALLS]"),  # Mistral
    CallMarks("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),  # DeepSeek
    CallMarks("<|tool_call|>"),  # Granite
    CallMarks("<|tool_call>", "<tool_call|>", inside='<|"|>'),  # Gemma 4
    CallMarks("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2
    CallMarks(  # Kimi K2
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", inside="<|tool_call_argument_begin|>"
    ),
    CallMarks("to=functions.", "<|call|>"),  # gpt-oss
    HERMES,  # Hermes, Qwen, GLM
    CallMarks("<seed:tool_call>", "</seed:tool_call>"),
    CallMarks(_FUNCTION, "</function>"),
    CallMarks("<function name=", "</function>"),  # MiniCPM5
    CallMarks("<|python_tag|>"),  # Llama 3
)
_FORGOTTEN = (CallMarks(_FUNCTION, "</function>"), CallMarks(HERMES.close, is_end=True))
"""What calls are between where Qwen Coder forgets the beginning."""


_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
_ENDS = (("<", "</"), ("START", "END"), ("begin", "end"), ("prefix", "suffix"))


def call_marks(template: str, called: str = "", said: str = "") -> tuple[CallMarks, ...]:
    """The marks that a chat template puts around calls; () where it has none. called: what it prints, with
    "\\0" for a call's name and argument, which says more than what it mentions; said: what has no marks.
    """
    before, between, behind = (called.split("\0") if called.count("\0") > 1 else [""] * 3)[:3]
    found = [marks for marks in _KNOWN if marks.open in before][:1]
    if not found:  # learned
        opens = [tag for tag in _TAG.findall(before) if tag not in said][:1]
        ends = {tag.replace(*pair, 1) for tag in opens for pair in _ENDS} - {*opens}
        close = next((tag for tag in _TAG.findall(behind) if tag in ends), "")
        found = [CallMarks(tag, close, inside=before + between) for tag in opens]
    found = found or [marks for marks in _KNOWN if marks.open in template][:1]
    return (*found, *_FORGOTTEN) if found == [HERMES] and _FUNCTION in template else tuple(found)


class ToolReader:
    """One answer of a model that was given tools.

    marks: of its template, none for a model that only writes bare JSON; tools: with the schemas of their
    parameters; may_be_bare: an answer that is only JSON is a call, too
    """

    def __init__(self, marks: Sequence[CallMarks], tools: Tools, may_be_bare: bool = True) -> None:
        self._marks = {one.open: one for one in marks}
        self._tools = tools
        self._may_be_bare = may_be_bare
        self._held = ""
        self._inside: CallMarks | None = None  # of the block that has begun
        self._looked = 0  # the block does not end before that
        self._said = False  # something that is not white space
        self._n_calls = 0

    def feed(self, text: str) -> list[str | ToolCall]:
        """Takes the next text; returns what became certain."""
        self._held += text
        return list(self._advance(final=False))

    def finish(self) -> list[str | ToolCall]:
        """Returns what was held back; no more text will come."""
        return list(self._advance(final=True))

    def _advance(self, final: bool) -> Iterator[str | ToolCall]:
        while self._held:
            if self._inside is not None:
                end = self._end_of_block(self._inside, final)
                if end == 0:
                    return
                yield from self._take_block(self._inside, end)
            elif not self._said and self._is_bare():
                if not final:
                    return
                text, self._held = self._held, ""
                yield from self._calls(text, text, self._tools, is_cut=False)
            else:
                yield from self._take_text(final)
                if self._inside is None:
                    return

    def _is_bare(self) -> bool:
        text, may_be = self._held.lstrip(), bool(self._tools) and self._may_be_bare
        begins = (*_BARE, *(f"[{name}(" for name in self._tools))
        return may_be and any(text.startswith(begin) or begin.startswith(text) for begin in begins)

    def _take_text(self, final: bool) -> Iterator[str]:
        found = [one for one, marks in self._marks.items() if self._n_calls or not marks.is_end]
        at, mark = first_mark(self._held, found, final)
        # white space before a call is not text
        n_text = at if final and not mark else len(self._held[:at].rstrip())
        text, self._held = self._held[:n_text], self._held[at if mark else n_text :]
        self._inside, self._looked = self._marks.get(mark), 0
        if text.strip() or (text and not self._n_calls):
            self._said |= bool(text.strip())
            yield text

    def _end_of_block(self, marks: CallMarks, final: bool) -> int:
        """How many characters the block has, its end included; 0 = more may come. What looks like its end
        within a value is none.
        """
        close, first = marks.close, len(marks.open)
        if marks.is_end:
            return first
        at = self._held.find(close, max(first, self._looked)) if close else -1
        while at >= 0:
            if not is_inside_value(self._held[:at]):
                return at + len(close)
            self._looked = at + 1
            at = self._held.find(close, self._looked)
        if not final:
            return 0
        is_whole = not is_inside_value(self._held)  # its end is the answer's
        at = self._held.find(close, first) if close and not is_whole else -1
        return len(self._held) if at < 0 else at + len(close)

    def _take_block(self, marks: CallMarks, n_all: int) -> Iterator[str | ToolCall]:
        whole, self._held = self._held[:n_all], self._held[n_all:]
        is_cut = bool(marks.close) and not whole.endswith(marks.close)
        is_part = marks.open.startswith("<function")  # of the call
        inner = whole if is_part else whole.removeprefix(marks.open).removesuffix(marks.close)
        self._inside = None
        if inner.strip() or is_cut:
            yield from self._calls(whole, inner, (), is_cut)

    def _calls(
        self, whole: str, inner: str, names: Collection[str], is_cut: bool
    ) -> Iterator[str | ToolCall]:
        calls: Sequence[str | ToolCall] = parse_calls(inner, names, self._tools, is_cut)
        self._n_calls += len(calls)
        self._said |= not calls
        yield from calls or [whole]
