# SPDX-License-Identifier: MIT
"""Finds the tool calls in a model's answer while it streams.

`ToolReader` takes text and returns text and `ToolCall`s in order. It holds back text that may become a call,
and returns a broken call as text.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from eaglecpp.chat.call_forms import CallForm, Tools, read_json, read_python
from eaglecpp.chat.message import ToolCall
from eaglecpp.chat.thinking import CALL, first_mark

_KEYS = ("function", "type", "id", "tool_call_id", "arguments", "parameters")
_LONGEST_HEAD = 512  # characters of a call up to the end of its name


class ToolReader:
    """Reader of one answer.

    forms:       forms of the model's calls
    tools:       schemas of the parameters by tool name
    may_be_bare: an answer that consists of JSON, or of a list of calls as in Python, is also read as calls
    """

    def __init__(self, forms: Sequence[CallForm], tools: Tools, may_be_bare: bool = True) -> None:
        self._forms = {CALL * one.is_message + one.open: one for one in forms if one.open}
        self._closes = {forms[0].close for one in forms[1:2] if one.is_part}
        self._has_messages = any(one.is_message for one in forms)
        self._tools = tools
        # beginnings of calls without marks, with the white space removed
        names = [f'{{"{key}":"{name}"' for key in ("name", "tool_name") for name in tools]
        heads = [*(f'{{"{key}":' for key in _KEYS), *names, *(f"[{name}(" for name in tools)]
        self._heads = ["".join(head.split()) for head in heads if may_be_bare and tools]
        self._held = ""
        self._inside: CallForm | None = None  # of the block that has begun
        self._looked = 0  # the block does not end before that
        self._has_text = False  # other than white space
        self._is_broken = False  # a call could not be read, so nothing after it is one
        self._n_calls = 0

    def feed(self, text: str) -> list[str | ToolCall]:
        """Takes the next text; returns the text and the calls that are certain."""
        self._held += text
        return self._parts(final=False)

    def finish(self) -> list[str | ToolCall]:
        """Returns the text and the calls that were held back."""
        return self._parts(final=True)

    def _parts(self, final: bool) -> list[str | ToolCall]:
        if not self._has_messages:
            return list(self._advance(final))
        return [one.replace(CALL, "") if isinstance(one, str) else one for one in self._advance(final)]

    def _advance(self, final: bool) -> Iterator[str | ToolCall]:
        while self._held:
            if self._inside is not None:
                n_held = len(self._held)
                yield from self._take_block(self._inside, final)
                if len(self._held) == n_held and self._inside is not None:
                    return
            elif not self._has_text and not self._n_calls and self._is_bare():
                if not final:
                    return
                yield from self._take_bare()
            else:
                took_close = yield from self._take_text(final)
                if self._inside is None and not took_close:
                    return

    def _is_bare(self) -> bool:
        """Returns whether all of the answer may be calls without marks."""
        text = "".join(self._held[:_LONGEST_HEAD].split())
        inner = text.removeprefix("```").removeprefix("json")
        return any(
            "```json".startswith(text) or one.startswith(head) or head.startswith(one)
            for one in (inner, inner.removeprefix("["))
            for head in self._heads
        )

    def _take_bare(self) -> Iterator[str | ToolCall]:
        text, self._held = self._held, ""
        for read in (read_json, read_python):
            calls = CallForm("", "", read).calls(text, self._tools)
            if calls and all(call.name in self._tools for call in calls):
                self._n_calls += len(calls)
                yield from calls
                return
        self._has_text = True
        yield text

    def _take_text(self, final: bool) -> Generator[str, None, bool]:
        """Takes text up to the next mark. Returns whether the mark ends a call without a beginning."""
        opens = () if self._is_broken else tuple(self._forms)
        closes = self._closes if self._n_calls and not self._is_broken else ()
        at, mark = first_mark(self._held, (*opens, *closes), final)
        # white space before a call is not text
        n_text = at if final and not mark else len(self._held[:at].rstrip())
        text, self._held = self._held[:n_text], self._held[at if mark else n_text :]
        if mark in closes:
            self._held = self._held.removeprefix(mark)
        self._inside, self._looked = self._forms.get(mark), 0
        if self._inside is not None:
            self._held = self._held.removeprefix(CALL)
        if text.strip() or (text and not self._n_calls):
            self._has_text |= bool(text.strip())
            yield text
        return mark in closes

    def _take_block(self, form: CallForm, final: bool) -> Iterator[str | ToolCall]:
        """Takes the block if it is complete: its closing mark is there, and only calls are before it."""
        opened = len(form.open)
        at = self._held.find(form.close, max(opened, self._looked)) if form.close else -1
        while at >= 0:
            end = at + len(form.close)
            # otherwise, the mark is inside the value that was open at the last mark
            if not self._looked or form.ends_value(self._held, self._looked, end):
                calls = form.calls(self._held[form.first : end if form.is_part else at], self._tools)
                if calls is not None or not (self._looked or self._held[opened:at].strip()):
                    self._held, self._inside = self._held[end:], None
                    self._n_calls += len(calls or ())
                    yield from calls or ()
                    return
            self._looked = at + 1
            at = self._held.find(form.close, self._looked)
        if not final:
            return
        self._inside = None
        try:
            found, n_read = form.read(self._held[form.first :], self._tools)
        except (ValueError, RecursionError):
            found, n_read = [], 0
        rest = self._held[form.first + n_read :]
        if not found or form.needs_close or (form.close and rest.strip()):
            self._is_broken = self._has_text = True
            rest, self._held = self._held, ""
            yield rest
            return
        self._n_calls += len(found)
        yield from found
        self._held, self._is_broken = rest, bool(rest.strip())


def is_call(forms: Sequence[CallForm], tools: Tools, text: str) -> bool:
    """Returns whether a text consists of complete calls."""
    reader = ToolReader(forms, tools, may_be_bare=False)
    parts = reader.feed(text) + reader.finish()
    return bool(parts) and not any(isinstance(part, str) and part.strip() for part in parts)
