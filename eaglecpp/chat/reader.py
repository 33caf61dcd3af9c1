# SPDX-License-Identifier: MIT
"""`AnswerReader`: a stream of chunks as pieces to show, each thinking or answer, drafted or not.

A chunk's text lags behind its tokens, because incomplete characters and possible stop strings are held back.
The reader decodes the tokens a second time to know which characters each of them completed, and so which
characters came from accepted drafts. Control tokens have no text; those that belong to the model's thinking
tags get theirs back here, only for the splitter.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from eaglecpp.chat.thinking import Begins, Part, ThinkTags, splitter
from eaglecpp.results import Chunk, Piece


class AnswerReader:
    """One answer. `content` and `thinking` are the text so far; `text` is all of it as the stream gave it.

    token_bytes: the bytes of a token, empty for a control token
    tags:        the model's thinking tags, None if it does not think
    marks:       texts of the control tokens that the tags are made of
    begins:      what its prompt leaves it to begin with
    calls:       the marks that begin tool calls, which are part of the content; () without tools
    is_call:     whether a text is whole calls and nothing else
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        tags: ThinkTags | None = None,
        marks: dict[int, str] | None = None,
        begins: Begins = "any",
        calls: Sequence[str] = (),
        is_call: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.content = ""
        self.thinking = ""
        self.text = ""
        self._token_bytes = token_bytes
        self._marks = marks or {}
        self._splitter = splitter(tags, begins, calls, is_call)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # the characters of tokens whose text is not certain yet: whether they were drafted; and marks, which
        # are text that the stream does not have
        self._decoded: deque[tuple[str, bool]] = deque()
        self._accepted: deque[bool] = deque()  # of the characters that the splitter holds back

    def read(self, chunk: Chunk) -> list[Piece]:
        """The pieces that a chunk makes certain."""
        self.decode(chunk.tokens, chunk.accepted)
        return self._take(chunk.text)

    def finish(self, text: str, reason: str) -> list[Piece]:
        """Returns the last pieces, given the whole text of the finished stream and why it ended."""
        return self._take(text[len(self.text) :]) + self._labelled(self._splitter.finish(reason == "stop"))

    def decode(self, tokens: Sequence[int], accepted: Sequence[bool]) -> None:
        """Takes tokens whose text comes later."""
        for token, is_accepted in zip(tokens, accepted, strict=True):
            if token in self._marks:
                self._decoded.append((self._marks[token], is_accepted))
            self._decoded.extend(("", is_accepted) for _ in self._decoder.decode(self._token_bytes(token)))

    def _take(self, text: str) -> list[Piece]:
        """Pairs the stream's next characters with the tokens they are from."""
        self.text += text
        given, n_taken = [], 0
        while n_taken < len(text) or (self._decoded and self._decoded[0][0]):
            mark, is_accepted = self._decoded.popleft() if self._decoded else ("", False)
            given.append(mark or text[n_taken])
            n_taken += not mark
            self._accepted += [is_accepted] * len(given[-1])
        return self._labelled(self._splitter.feed("".join(given)))

    def _labelled(self, parts: Iterable[Part]) -> list[Piece]:
        pieces: list[Piece] = []
        for part in parts:
            text = part.added + part.text
            accepted = [False] * len(part.added) + [self._accepted.popleft() for _ in part.text]
            if part.kind == "tag":
                continue
            if part.kind == "thinking":
                self.thinking += text
            else:
                self.content += text
            for is_accepted, run in groupby(zip(accepted, text, strict=True), key=itemgetter(0)):
                pieces.append(Piece("".join(char for _, char in run), part.kind == "thinking", is_accepted))
        return pieces
