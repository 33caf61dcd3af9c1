# SPDX-License-Identifier: MIT
"""`AnswerReader` turns a stream of chunks into pieces to show: thinking or answer, drafted or not.

The text of a chunk lags behind its tokens, because incomplete characters and possible stop strings are held
back. The reader decodes the tokens again to find the characters of each token, and so the characters of
accepted drafts. Control tokens have no text; the reader adds the text of those in the model's tags, only for
the splitter.
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
    """Reader of one answer. `content` and `thinking` are the text so far, `text` is the text of the stream.

    token_bytes: returns the bytes of a token, b"" for a control token
    tags:        the model's tags, None without tags
    marks:       texts of the control tokens in the tags and calls, by token
    begins:      the beginning of the answer
    calls:       marks that begin tool calls, which are part of the content; () without tools
    is_call:     returns whether a text consists of complete calls
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
        # for each character of tokens whose text is held back: "", or a mark without text, and whether a
        # draft was accepted
        self._decoded: deque[tuple[str, bool]] = deque()
        self._accepted: deque[bool] = deque()  # for each character that the splitter holds back

    def read(self, chunk: Chunk) -> list[Piece]:
        """Returns the pieces that are certain after a chunk."""
        self.decode(chunk.tokens, chunk.accepted)
        return self._take(chunk.text)

    def finish(self, text: str, reason: str) -> list[Piece]:
        """Returns the last pieces, given the whole text of the finished stream and why it ended."""
        return self._take(text[len(self.text) :]) + self._labelled(self._splitter.finish(reason == "stop"))

    def decode(self, tokens: Sequence[int], accepted: Sequence[bool]) -> None:
        """Takes tokens; their text comes later."""
        for token, is_accepted in zip(tokens, accepted, strict=True):
            if token in self._marks:
                self._decoded.append((self._marks[token], is_accepted))
            self._decoded.extend(("", is_accepted) for _ in self._decoder.decode(self._token_bytes(token)))

    def _take(self, text: str) -> list[Piece]:
        """Assigns the next characters of the stream to their tokens."""
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
