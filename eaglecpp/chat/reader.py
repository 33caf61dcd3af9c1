# SPDX-License-Identifier: MIT
"""Reads a streaming answer once, from left to right: thinking, text and tool calls.

`Reader` reads text. `AnswerReader` reads the chunks of a stream, finds the characters of accepted drafts, and
yields the events from which every API builds its response.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Literal

from eaglecpp.chat.call_syntax import JSON, PYTHON, Tools
from eaglecpp.chat.formats import Begins, CallFormat, Channels, Layout
from eaglecpp.chat.message import Message, Role, ToolCall
from eaglecpp.results import Chunk, Event, Part, Piece

Kind = Literal["thinking", "answer", "tag"]
_GAP = "\n\n"  # text between two messages of one answer
_KEYS = ("function", "type", "id", "tool_call_id", "arguments", "parameters")
_LONGEST_HEAD = 512  # maximum characters of a message's header, and of a call before the tool's name


@dataclass(frozen=True)
class Segment:
    """A part of an answer.

    kind:  "tag" for tags, calls and the white space around them, which are not shown
    added: text that is shown before the part, but that the model did not write
    """

    kind: Kind
    text: str
    added: str = ""
    calls: tuple[ToolCall, ...] = ()


class Reader:
    """Reader of one answer. The reader returns each character once and in order. It splits the answer into
    parts of one kind (thinking, answer or tag).

    Text that may be a tag or a call is held back. An invalid call counts as text.

    formats:     formats of the model's calls
    tools:       schemas of the tools' parameters by tool name, {} without tools
    may_be_bare: an answer of only JSON, or of a list of calls in Python's syntax, is also read as calls
    """

    def __init__(
        self,
        layout: Layout | None = None,
        begins: Begins = "any",
        formats: Sequence[CallFormat] = (),
        tools: Tools | None = None,
        may_be_bare: bool = True,
    ) -> None:
        self._layout = layout
        self._channels = None if layout is None else layout.channels
        self._formats = formats
        self._tools = tools or {}
        self._opens = {one.open: one for one in formats if one.open and not one.is_message}
        self._message = next((one for one in formats if one.is_message), None)
        self._strays = {formats[0].close for one in formats[1:2] if one.is_part}
        # Beginnings of calls without marks. White space is removed from these beginnings.
        names = [f'{{"{key}":"{name}"' for key in ("name", "tool_name") for name in self._tools]
        heads = [*(f'{{"{key}":' for key in _KEYS), *names, *(f"[{name}(" for name in self._tools)]
        self._heads = ["".join(head.split()) for head in heads if may_be_bare and self._tools]
        kinds: dict[str, Kind | None] = {"any": None, "thought": "thinking", "answer": "answer"}
        # None means that a header or a tag comes next
        self._kind = "answer" if layout is None else kinds[begins]
        self._is_behind_tag = begins == "thought"
        self._held = ""
        self._block: CallFormat | None = None  # format of the block of calls that is being read
        self._looked = 0  # the block does not end before this position
        self._shown: set[Kind] = set()  # kinds of text that the answer has contained so far
        self._last: Kind = "tag"  # kind of the most recent text
        self._has_calls = False
        self._is_broken = False  # True after an invalid call. The following text is not read as calls.
        self._segments: list[Segment] = []

    @property
    def is_thinking(self) -> bool:
        """True inside a thought."""
        return self._kind == "thinking"

    def feed(self, text: str) -> list[Segment]:
        """Reads the next piece of the answer. Returns the parts whose kind is certain now."""
        self._held += text
        return self._advance(final=False)

    def finish(self, is_whole: bool = True) -> list[Segment]:
        """Ends the answer, and returns the parts that were held back. is_whole: True if the model ended the
        answer itself.
        """
        return self._advance(final=True, is_whole=is_whole)

    def _advance(self, final: bool, is_whole: bool = True) -> list[Segment]:
        self._segments = []
        before: object = None
        while self._held and before != (now := (len(self._held), self._kind, self._block)):
            before = now
            if self._block is not None:
                self._read_block(self._block, final)
            elif self._kind is not None:
                self._read_body(final, is_whole)
            elif self._channels is not None:
                self._read_header(self._channels, final)
            else:
                self._read_tag(final)
        return [part for part in self._segments if part.text or part.added]

    def _take(self, kind: Kind, n_chars: int, calls: Sequence[ToolCall] = ()) -> None:
        self._segments.append(Segment(kind, self._held[:n_chars], calls=tuple(calls)))
        self._held = self._held[n_chars:]
        self._has_calls |= bool(calls)
        if n_chars:
            self._last = kind
            self._shown.add(kind)

    def _read_tag(self, final: bool) -> None:
        """Reads the tag at the beginning of an answer."""
        assert self._layout is not None
        text, tags = self._held.lstrip(), (self._layout.open, self._layout.close)
        if not final and any(tag != text and tag.startswith(text) for tag in tags):
            return
        self._kind = "thinking" if text.startswith(self._layout.open) else "answer"
        for tag in filter(text.startswith, tags):  # an end tag without a beginning tag ends an empty thought
            self._take("tag", len(self._held) - len(text) + len(tag))
            self._is_behind_tag = True

    def _read_header(self, channels: Channels, final: bool) -> None:
        """Reads the header of a message."""
        message = None if self._is_broken else self._message
        head, mark, _ = self._held.partition(channels.mark)
        name = head.lstrip()
        if not mark:
            name = name[: len(name) - _n_begun(name, (channels.mark,))]
        is_header = len(name) <= _LONGEST_HEAD and any(
            (not mark and begin.startswith(name))
            or (name.startswith(begin) and re.fullmatch(channels.rest, name[len(begin) :], re.DOTALL))
            for begin in channels.beginnings
        )
        if not is_header or (final and not mark and "" in channels.beginnings):
            self._kind = "answer"  # the model omitted the header
            self._take("answer", int(self._held.startswith(channels.nexts)))
        elif mark and message is not None and (call := re.search(channels.call, head)):
            self._take("tag", call.end())
            self._kind, self._block, self._looked = "answer", message, 0
        elif mark:
            self._kind = "thinking" if re.search(channels.thought, head, re.DOTALL) else "answer"
            self._segments.append(Segment(self._kind, "", _GAP if self._kind in self._shown else ""))
            self._take("tag", len(head) + len(mark))
        elif final:
            self._take("tag", len(self._held))

    def _read_body(self, final: bool, is_whole: bool) -> None:
        """Reads a thought or a text up to its end or up to a call."""
        if self._is_behind_tag:
            self._take("tag", len(self._held) - len(self._held.lstrip()))
            self._is_behind_tag = not self._held
        at, mark = self._end(final)
        n_behind = len(self._held) - at
        if self.is_thinking:
            self._read_thought(at, bool(mark), final, is_whole)
        else:
            self._read_answer(at, final or bool(mark))
        if mark and len(self._held) == n_behind:
            self._take("tag", self._n_end(mark))
            self._kind = "answer" if self._channels is None else None
            self._is_behind_tag = self._channels is None

    def _end(self, final: bool) -> tuple[int, str]:
        """Returns the position at which the body ends, and the mark at this position. If the mark is not
        certain yet, returns the first position where it may begin, and "".
        """
        channels, text = self._channels, self._held
        if channels is None:
            closes = (self._layout.close,) if self._layout is not None and self.is_thinking else ()
            return first_mark(text, closes, final)
        at, mark = first_mark(text, (*channels.ends, *channels.nexts), final)
        if not mark:
            last = next(filter(text.endswith, channels.lasts), "")
            n_last = max(len(last), 0 if final else _n_begun(text, channels.lasts))
            at, mark = min(at, len(text) - n_last), last if final else ""
        return at, mark

    def _n_end(self, mark: str) -> int:
        """Returns how many characters of a mark belong to the end of the message or block. A mark that begins
        the next message does not belong to the end.
        """
        return 0 if self._channels is not None and mark in self._channels.nexts else len(mark)

    def _read_thought(self, at: int, has_end: bool, final: bool, is_whole: bool) -> None:
        calls: list[Segment] = []
        if not has_end:
            # Some models call a tool inside a thought and end the answer after the call. But if text follows
            # the call, or the answer was cut, the thought only quotes a call.
            at = min(at, first_mark(self._held, self._opens, final)[0])
            calls = self._only_calls(self._held[at:]) if final and is_whole else []
            if final and not calls:
                self._take("thinking", len(self._held))
                return
        # White space is held back, because a tag may follow.
        n_text = len(self._held[:at].rstrip())
        self._take("thinking", n_text)
        if has_end or calls:
            self._take("tag", at - n_text)
        if calls:
            self._segments += calls
            self._held = ""

    def _only_calls(self, text: str) -> list[Segment]:
        """Returns the parts of a text that consists only of complete calls; [] for any other text."""
        reader = Reader(formats=self._formats, tools=self._tools, may_be_bare=False)
        parts = reader.feed(text) + reader.finish()
        is_text = any(part.kind == "answer" and part.text.strip() for part in parts)
        return [] if is_text or not reader._has_calls else parts

    def _read_answer(self, at: int, is_end: bool) -> None:
        body = self._held[:at]
        if "answer" not in self._shown and not self._has_calls and self._is_bare(body):
            if is_end:
                syntaxes = (CallFormat("", "", syntax) for syntax in (JSON, PYTHON))
                calls = next(filter(None, (one.calls(body, self._tools) for one in syntaxes)), [])
                is_call = bool(calls) and all(call.name in self._tools for call in calls)
                self._take("tag" if is_call else "answer", at, calls if is_call else ())
            return
        strays = self._strays if self._has_calls else ()
        n_all, mark = first_mark(body, () if self._is_broken else (*self._opens, *strays), is_end)
        # White space before a call is not text. White space that is the only text after a call is not text
        # either.
        is_text = not self._tools or (is_end and not mark)
        n_text = n_all if is_text else len(body[:n_all].rstrip())
        is_shown = bool(body[:n_text].strip()) or not self._has_calls or self._last == "answer"
        self._take("answer" if is_shown else "tag", n_text)
        if mark:
            self._take("tag", n_all - n_text + len(mark) * (mark in strays))
            self._block, self._looked = self._opens.get(mark), 0

    def _is_bare(self, body: str) -> bool:
        """Returns True if the whole answer may consist of calls without marks."""
        text = "".join(body[:_LONGEST_HEAD].split())
        inner = text.removeprefix("```json").removeprefix("```")
        return any(
            "```json".startswith(text) or one.startswith(head) or head.startswith(one)
            for one in (inner, inner.removeprefix("["))
            for head in self._heads
        )

    def _read_block(self, block: CallFormat, final: bool) -> None:
        """Reads a block of calls once the end of the block is found. A mark counts as the end only if
        everything before the mark is a call.
        """
        n_open = len(block.open)
        if not block.is_part and self._held[:n_open] != block.open[: len(self._held)]:
            self._block = None  # the text is an ordinary message, not a call
            return
        first = 0 if block.is_part else n_open
        closes: tuple[str, ...] = (block.close,) if block.close else ()
        if not block.close and block.is_message and self._channels is not None:
            closes = (*self._channels.ends, *self._channels.nexts, *self._channels.lasts)
        at, mark = first_mark(self._held, closes, True, max(n_open, self._looked))
        while mark:
            end = at + self._n_end(mark)
            # The mark may lie inside a value. It does if the previous mark was inside a value that has not
            # ended since.
            if not self._looked or block.syntax.value_end.search(self._held, self._looked, at + len(mark)):
                calls = block.calls(
                    self._held[first : end if block.is_part and block.close else at], self._tools
                )
                if calls or not (self._looked or self._held[n_open:at].strip()):
                    self._take("tag", end, calls or ())
                    self._block, self._kind = None, None if block.is_message else "answer"
                    return
            self._looked = at + 1
            at, mark = first_mark(self._held, closes, True, self._looked)
        if not final:
            return
        self._block = None
        try:
            found, n_read = block.syntax.read(self._held[first:], self._tools)
        except (ValueError, RecursionError):
            found, n_read = [], 0
        rest = self._held[first + n_read :].strip()
        if not found or block.needs_close or (block.close and rest):
            self._is_broken = True
            self._take("answer", n_open)  # after an invalid call, the text of the block is ordinary text
        else:
            self._take("tag", first + n_read, found)
            self._is_broken = bool(rest)


def first_mark(text: str, marks: Iterable[str], final: bool, start: int = 0) -> tuple[int, str]:
    """Returns the position of the first of these marks in a text, and the mark.

    If the text has no mark, returns "" and the position before which no mark can have begun. final: True if
    no text follows.
    """
    found = [(at, mark) for mark in marks if (at := text.find(mark, start)) >= 0]
    if found or final:
        return min(found, default=(len(text), ""))
    return len(text) - _n_begun(text, marks), ""


def _n_begun(text: str, marks: Iterable[str]) -> int:
    """Returns the number of characters at the end of a text that may start a mark."""
    return max(
        (n for mark in marks for n in range(min(len(mark), len(text) + 1)) if text.endswith(mark[:n])),
        default=0,
    )


def message_of(parts: Iterable[Part]) -> Message:
    """Joins the parts of an answer into the assistant's message."""
    texts, calls = {"thinking": "", "content": ""}, []
    for part in parts:
        if part[0] == "call":
            calls.append(part[1])
        else:
            texts[part[0]] += part[1]
    return Message(Role.ASSISTANT, texts["content"], texts["thinking"], tuple(calls))


class AnswerReader:
    """Reader of the chunks of one answer.

    The text of a chunk lags behind the chunk's tokens, because incomplete characters and possible stop
    strings are held back. This reader decodes the tokens again to map characters to tokens, and so to
    accepted drafts. A control token has no text in a chunk. If the control token is part of the model's tags,
    its text is added for `Reader` only.

    token_bytes: function that returns the bytes of a token, b"" for a control token
    reader:      reader of the text
    marks:       texts of the control tokens in the tags and calls, by token id

    blocks: the answer's thinking, content and tool calls, in the order in which the model wrote them
    new_id: function that returns an id for a call without an id
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        reader: Reader | None = None,
        marks: Mapping[int, str] | None = None,
    ) -> None:
        self.blocks: list[Part] = []
        self.new_id: Callable[[], str] = str
        self._token_bytes = token_bytes
        self._reader = reader or Reader()
        self._marks = marks or {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_tokens = 0
        self._n_before: int | None = None  # number of tokens before the first content or the first call
        # Characters whose text is not yet in a chunk. An entry consists of "" (or the text of a control
        # token), whether the character's token is an accepted draft, and the token's index.
        self._decoded: deque[tuple[str, bool, int]] = deque()
        # Characters that `Reader` holds back. An entry consists of whether the character's token is an
        # accepted draft, and the token's index.
        self._origins: deque[tuple[bool, int]] = deque()

    @property
    def n_thought(self) -> int:
        """Number of tokens before the content, including the tags around the thinking."""
        return self._n_tokens if self._n_before is None else self._n_before

    @property
    def message(self) -> Message:
        """The assistant's message so far."""
        return message_of(self.blocks)

    def read(self, chunk: Chunk) -> Chunk:
        """Returns a chunk with its pieces and events. The last chunk also has the pieces and events of all
        text that was held back.
        """
        self._decode(chunk.tokens, chunk.accepted)
        found, reason = self._take(chunk.text), chunk.finish_reason
        if reason is not None:
            found += self._found(self._reader.finish(reason == "stop"))
        pieces = [one for one in found if isinstance(one, Piece)]
        events = list(self._events(found, reason is not None))
        # The fields are copied one by one, because dataclasses.replace is too slow to run for each chunk.
        head = (chunk.text, chunk.tokens, chunk.accepted, chunk.logprobs)
        return Chunk(*head, reason, chunk.timings, pieces, events)

    def _events(self, found: Sequence[Piece | ToolCall], is_last: bool) -> Iterator[Event]:
        for part in self._parts(found, is_last):
            n, last = len(self.blocks), self.blocks[-1] if self.blocks else None
            if last is not None and last[0] != "call" and part[0] == last[0]:
                self.blocks[-1] = last[0], last[1] + part[1]
            else:
                if last is not None:
                    yield Event("end", n - 1, last)
                self.blocks.append(part)
                yield Event("begin", n, part)
            if part[1]:
                yield Event("add", len(self.blocks) - 1, part)
        if is_last:
            yield Event("end", len(self.blocks) - 1, self.blocks[-1], is_last=True)

    def _parts(self, found: Sequence[Piece | ToolCall], is_last: bool) -> Iterator[Part]:
        for is_thinking, run in groupby(found, key=lambda one: getattr(one, "is_thinking", None)):
            for call in (one for one in run if isinstance(one, ToolCall)) if is_thinking is None else ():
                yield "call", call if call.id else replace(call, id=self.new_id())
            text = "".join(one.text for one in run if isinstance(one, Piece))
            if is_thinking is not None:
                yield "thinking" if is_thinking else "content", text
        # An answer that is only a thought gets an empty content block, because some clients read no other
        # block.
        if is_last and all(kind == "thinking" for kind, _ in self.blocks):
            yield "content", ""

    def _decode(self, tokens: Sequence[int], accepted: Sequence[bool]) -> None:
        """Decodes tokens, and records each character for the text of this or a later chunk."""
        for token, is_accepted in zip(tokens, accepted, strict=True):
            text, n = self._decoder.decode(self._token_bytes(token)), self._n_tokens
            if token in self._marks:
                self._decoded.append((self._marks[token], is_accepted, n))
            self._decoded.extend(("", is_accepted, n) for _ in text)
            self._n_tokens += 1

    def _take(self, text: str) -> list[Piece | ToolCall]:
        """Reads the next characters of the stream's text, and maps them to their tokens. Returns the pieces
        and tool calls in these characters.
        """
        texts, n_taken = [], 0
        while n_taken < len(text) or (self._decoded and self._decoded[0][0]):
            mark, is_accepted, n = self._decoded.popleft() if self._decoded else ("", False, self._n_tokens)
            texts.append(mark or text[n_taken])
            n_taken += not mark
            self._origins += [(is_accepted, n)] * len(texts[-1])
        return self._found(self._reader.feed("".join(texts)))

    def _found(self, segments: Iterable[Segment]) -> list[Piece | ToolCall]:
        found: list[Piece | ToolCall] = []
        for one in segments:
            text = one.added + one.text
            origins = [self._origins.popleft() for _ in one.text]
            accepted = [False] * len(one.added) + [is_accepted for is_accepted, _ in origins]
            if self._n_before is None and origins and (one.calls or one.kind == "answer"):
                self._n_before = origins[0][1]
            found += one.calls
            for is_accepted, run in groupby(zip(accepted, text, strict=True), key=itemgetter(0)):
                if one.kind != "tag":
                    piece = Piece("".join(char for _, char in run), one.kind == "thinking", is_accepted)
                    found.append(piece)
        return found
