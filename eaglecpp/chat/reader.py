# SPDX-License-Identifier: MIT
"""`AnswerReader` turns a stream of chunks into pieces to show (thinking or answer, drafted or not) and into
events: blocks of thinking, content and tool calls. Every API takes the answer from it.

The text of a chunk lags behind its tokens, because incomplete characters and possible stop strings are held
back. The reader decodes the tokens again to find the characters of each token, and so the characters of
accepted drafts. Control tokens have no text; the reader adds the text of those in the model's tags, only for
the splitter.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter, itemgetter

from eaglecpp.chat.message import Message, Role, ToolCall
from eaglecpp.chat.thinking import Begins, Segment, ThinkTags, splitter
from eaglecpp.chat.tool_calls import ToolReader
from eaglecpp.results import Chunk, Event, Part, Piece


def message_of(parts: Iterable[Part]) -> Message:
    """Returns the assistant's message that parts of an answer add up to."""
    texts, calls = {"thinking": "", "content": ""}, []
    for part in parts:
        if part[0] == "call":
            calls.append(part[1])
        else:
            texts[part[0]] += part[1]
    return Message(Role.ASSISTANT, texts["content"], texts["thinking"], tuple(calls))


class AnswerReader:
    """Reader of one answer. blocks: thinking, content and tool calls in the order of the model; n_thought:
    tokens before the content, tags included; new_id: returns the id of a call without one.

    token_bytes: returns the bytes of a token, b"" for a control token
    tags:        the model's tags, None without tags
    marks:       texts of the control tokens in the tags and calls, by token
    begins:      the beginning of the answer
    calls:       marks that begin tool calls, which are part of the content; () without tools
    is_call:     returns whether a text consists of complete calls
    tools:       reader of the calls in the content; None without tools
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        tags: ThinkTags | None = None,
        marks: dict[int, str] | None = None,
        begins: Begins = "any",
        calls: Sequence[str] = (),
        is_call: Callable[[str], bool] = lambda _: False,
        tools: ToolReader | None = None,
    ) -> None:
        self.blocks: list[Part] = []
        self.n_thought = 0
        self.new_id: Callable[[], str] = str
        self._tools = tools
        self._token_bytes = token_bytes
        self._marks = marks or {}
        self._splitter = splitter(tags, begins, calls, is_call)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # for each character of tokens whose text is held back: "", or a mark without text, and whether a
        # draft was accepted
        self._decoded: deque[tuple[str, bool]] = deque()
        self._accepted: deque[bool] = deque()  # for each character that the splitter holds back

    @property
    def message(self) -> Message:
        """The answer so far."""
        return message_of(self.blocks)

    def read(self, chunk: Chunk) -> Chunk:
        """Returns a chunk with its pieces and events; the last one also with all that was held back."""
        self._decode(chunk.tokens, chunk.accepted)
        pieces, reason = self._take(chunk.text), chunk.finish_reason
        if reason is not None:
            pieces += self._labelled(self._splitter.finish(reason == "stop"))
        if self._is_thought:  # a piece is of one token, a tag has no piece
            thoughts = [piece.is_thinking for piece in pieces] or [True]
            self.n_thought += round(len(chunk.tokens) * sum(thoughts) / len(thoughts))
        events = list(self._events(pieces, reason is not None))
        head = (chunk.text, chunk.tokens, chunk.accepted, chunk.logprobs)  # each chunk: `replace` is slow
        return Chunk(*head, reason, chunk.timings, pieces, events)

    def _events(self, pieces: Sequence[Piece], is_last: bool) -> Iterator[Event]:
        for part in self._parts(pieces, is_last):
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

    @property
    def _is_thought(self) -> bool:
        """Whether there is nothing but thinking so far."""
        return all(kind == "thinking" for kind, _ in self.blocks)

    def _parts(self, pieces: Sequence[Piece], is_last: bool) -> Iterator[Part]:
        for is_thinking, run in groupby(pieces, key=attrgetter("is_thinking")):
            text = "".join(piece.text for piece in run)
            if is_thinking:
                yield "thinking", text
            else:
                yield from map(self._part, [text] if self._tools is None else self._tools.feed(text))
        if is_last:
            yield from map(self._part, [] if self._tools is None else self._tools.finish())
            if self._is_thought:  # clients read the last block
                yield "content", ""

    def _part(self, found: str | ToolCall) -> Part:
        if isinstance(found, ToolCall):
            return "call", found if found.id else replace(found, id=self.new_id())
        return "content", found

    def _decode(self, tokens: Sequence[int], accepted: Sequence[bool]) -> None:
        """Takes tokens; their text comes later."""
        for token, is_accepted in zip(tokens, accepted, strict=True):
            if token in self._marks:
                self._decoded.append((self._marks[token], is_accepted))
            self._decoded.extend(("", is_accepted) for _ in self._decoder.decode(self._token_bytes(token)))

    def _take(self, text: str) -> list[Piece]:
        """Assigns the next characters of the stream to their tokens."""
        given, n_taken = [], 0
        while n_taken < len(text) or (self._decoded and self._decoded[0][0]):
            mark, is_accepted = self._decoded.popleft() if self._decoded else ("", False)
            given.append(mark or text[n_taken])
            n_taken += not mark
            self._accepted += [is_accepted] * len(given[-1])
        return self._labelled(self._splitter.feed("".join(given)))

    def _labelled(self, parts: Iterable[Segment]) -> list[Piece]:
        pieces: list[Piece] = []
        for part in parts:
            text = part.added + part.text
            accepted = [False] * len(part.added) + [self._accepted.popleft() for _ in part.text]
            if part.kind == "tag":
                continue
            for is_accepted, run in groupby(zip(accepted, text, strict=True), key=itemgetter(0)):
                pieces.append(Piece("".join(char for _, char in run), part.kind == "thinking", is_accepted))
        return pieces
