# SPDX-License-Identifier: MIT
"""Finds the tool calls in a model's answer while it streams.

Models write calls in the form their chat template taught them; `call_marks` reads the form off the template.
`ToolReader` takes text and returns text and `ToolCall`s in order. Text that may still become a call is held
back; what looked like a call but is not one comes out as text. Needs no model and no engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from eaglecpp.chat.call_forms import Tools, is_inside_value, parse_calls
from eaglecpp.chat.message import ToolCall

__all__ = ["CallMarks", "ToolReader", "call_marks"]


@dataclass(frozen=True)
class CallMarks:
    """`open` begins a call or a list of calls, `close` ends it; "" = the end of the answer does.

    inside: other control tokens of a call; forgotten: what a call begins with where a model forgets `open`
    """

    open: str
    close: str = ""
    inside: str = ""
    forgotten: str = ""


_FUNCTION = "<function="
_BARE = ("{", "[{", "```json", "```\n{")
_KNOWN = (
    ("[TOOL_CALLS]", CallMarks("[TOOL_CALLS]")),  # Mistral
    ("<｜tool▁calls▁begin｜>", CallMarks("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),  # DeepSeek
    ("<|tool_call|>", CallMarks("<|tool_call|>")),  # Granite
    ("<|tool_call>", CallMarks("<|tool_call>", "<tool_call|>", inside='<|"|>')),  # Gemma 4
    *(  # DeepSeek 3.2 and later
        (f"<｜DSML｜{word}>", CallMarks(f"<｜DSML｜{word}>", f"</｜DSML｜{word}>"))
        for word in ("function_calls", "tool_calls", " calls")
    ),
    ("<|tool_call_start|>", CallMarks("<|tool_call_start|>", "<|tool_call_end|>")),  # LFM2
    ("<tool_call>", CallMarks("<tool_call>", "</tool_call>")),  # Hermes, Qwen, SmolLM2, GLM
    ("<function_call>", CallMarks("<function_call>", "</function_call>")),
    ("<functioncall>", CallMarks("<functioncall>")),
    (_FUNCTION, CallMarks(_FUNCTION, "</function>")),
    ("<|python_tag|>", CallMarks("<|python_tag|>")),  # Llama 3
)


def call_marks(template: str) -> CallMarks | None:
    """The marks that a chat template puts around calls; None where it mentions none."""
    found = next((marks for word, marks in _KNOWN if word in template), None)
    if found is not None and found.open == "<tool_call>" and _FUNCTION in template:
        return replace(found, forgotten=_FUNCTION)
    return found


class ToolReader:
    """One answer of a model that was given tools.

    marks: of its template, None for a model that only writes bare JSON; names: the tools there are, or
    tools: with the schemas of their parameters
    """

    def __init__(
        self, marks: CallMarks | None, names: Sequence[str] = (), tools: Tools | None = None
    ) -> None:
        self._marks = marks
        self._tools: Tools = tools if tools is not None else {name: {} for name in names}
        self._names = tuple(self._tools)
        self._held = ""
        self._inside = ""  # what began the block
        self._looked = 0  # the block does not end before that
        self._stray = ""  # the end of a block that a model did not begin
        self._said = False  # something that is not white space
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
            if self._stray and not self._drop_stray(final):
                return
            if self._inside:
                end = self._end_of_block(final)
                if end == 0:
                    return
                yield from self._take_block(end)
            elif not self._said and self._is_bare():
                if not final:
                    return
                text, self._held = self._held, ""
                yield from self._calls(text, text, self._names, is_cut=False)
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
        openings = [one for one in (self._marks.open, self._marks.forgotten) if one] if self._marks else []
        starts = {self._held.find(one): one for one in reversed(openings) if one in self._held}
        if starts:
            start = min(starts)
            text, self._held = self._held[:start], self._held[start:]
            self._inside, self._looked = starts[start], 0
            if text.strip():
                yield self._told(text.rstrip())
            return
        n_sure = len(self._held)
        if not final:
            n_sure -= max((_n_begun(self._held, one) for one in openings), default=0)
            n_sure = len(self._held[:n_sure].rstrip())  # white space before a call is not text
        text, self._held = self._held[:n_sure], self._held[n_sure:]
        if text.strip() or (text and not self.n_calls):
            yield self._told(text)

    def _told(self, text: str) -> str:
        self._said = self._said or bool(text.strip())
        return text

    def _close(self) -> str:
        assert self._marks is not None
        return "</function>" if self._inside == _FUNCTION else self._marks.close

    def _end_of_block(self, final: bool) -> int:
        """How many characters the block has, its end included; 0 = more may come. What looks like its end
        within a value is none.
        """
        close, first = self._close(), len(self._inside)
        at = self._held.find(close, max(first, self._looked)) if close else -1
        while at >= 0:
            if not is_inside_value(self._held[:at]):
                return at + len(close)
            self._looked = at + 1
            at = self._held.find(close, self._looked)
        if not final:
            return 0
        at = self._held.find(close, first) if close else -1
        return len(self._held) if at < 0 else at + len(close)

    def _take_block(self, n_all: int) -> Iterator[str | ToolCall]:
        assert self._marks is not None
        whole, self._held = self._held[:n_all], self._held[n_all:]
        close = self._close()
        is_cut = bool(close) and not whole.endswith(close)
        inner = whole if self._inside == _FUNCTION else whole[len(self._inside) :]
        if close and not is_cut and self._inside != _FUNCTION:
            inner = inner[: -len(close)]
        if self._inside == self._marks.forgotten and not is_cut:
            self._stray = self._marks.close
        self._inside = ""
        yield from self._calls(whole, inner, (), is_cut)

    def _drop_stray(self, final: bool) -> bool:
        """Leaves out the end that belongs to a forgotten beginning; False while it may still come."""
        text = self._held.lstrip()
        if self._stray.startswith(text) and text != self._stray and not final:
            return False
        if text.startswith(self._stray):
            self._held = text[len(self._stray) :]
        self._stray = ""
        return True

    def _calls(self, whole: str, inner: str, names: Sequence[str], is_cut: bool) -> Iterator[str | ToolCall]:
        calls = parse_calls(inner, names, self._tools, is_cut)
        self.n_calls += len(calls)
        if calls:
            yield from calls
        else:
            yield self._told(whole)


def _n_begun(text: str, mark: str) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    return next(n for n in range(min(len(mark) - 1, len(text)), -1, -1) if text.endswith(mark[:n]))
