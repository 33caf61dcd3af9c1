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
from dataclasses import dataclass

from eaglecpp.chat.thinking import Begins, Part, ThinkTags, splitter
from eaglecpp.results import Chunk, Piece

_GAP = "\n\n"  # between two messages that one answer has


@dataclass
class _Run:
    """Characters of one token; a mark is text that the chunk's own does not have."""

    text: str
    is_accepted: bool
    is_mark: bool = False


class AnswerReader:
    """One answer. `content` and `thinking` are the text so far; `text` is all of it as the stream gave it.

    token_bytes: the bytes of a token, empty for a control token
    tags:        the model's thinking tags, None if it does not think
    marks:       texts of the control tokens that the tags are made of
    begins:      what its prompt leaves it to begin with
    has_tools:   calls are among the content, with the marks around them
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        tags: ThinkTags | None = None,
        marks: dict[int, str] | None = None,
        begins: Begins = "any",
        has_tools: bool = False,
    ) -> None:
        self.content = ""
        self.thinking = ""
        self.text = ""
        self._token_bytes = token_bytes
        self._marks = marks or {}
        self._splitter = splitter(tags, begins, has_tools)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoded: deque[_Run] = deque()  # of tokens whose text is not certain yet
        self._split: deque[_Run] = deque()  # what the splitter holds back

    def read(self, chunk: Chunk) -> list[Piece]:
        """The pieces that a chunk makes certain."""
        self.decode(chunk.tokens, chunk.accepted)
        return self._take(chunk.text)

    def finish(self, text: str) -> list[Piece]:
        """The last pieces, given the whole text of the finished stream."""
        pieces = self._take(text[len(self.text) :])
        return pieces + self._labelled(self._splitter.finish())

    def decode(self, tokens: Sequence[int], accepted: Sequence[bool]) -> None:
        """Takes tokens whose text comes later."""
        for token, is_accepted in zip(tokens, accepted, strict=True):
            if token in self._marks:
                self._decoded.append(_Run(self._marks[token], is_accepted, is_mark=True))
            text = self._decoder.decode(self._token_bytes(token))
            if text:
                self._decoded.append(_Run(text, is_accepted))

    def _take(self, text: str) -> list[Piece]:
        """Pairs the stream's next characters with the tokens they are from."""
        self.text += text
        pieces: list[Piece] = []
        while text or (self._decoded and self._decoded[0].is_mark):
            run = self._decoded.popleft() if self._decoded else _Run(text, False)
            if not run.is_mark:
                if len(run.text) > len(text):
                    self._decoded.appendleft(_Run(run.text[len(text) :], run.is_accepted))
                run = _Run(text[: len(run.text)], run.is_accepted)
                text = text[len(run.text) :]
            self._split.append(run)
            pieces += self._labelled(self._splitter.feed(run.text))
        return pieces

    def _labelled(self, parts: Iterable[Part]) -> list[Piece]:
        pieces: list[Piece] = []
        for part in parts:
            runs = [(_GAP, False)] if part.is_next else self._next_runs(len(part.text))
            for text, is_accepted in runs:
                if part.kind == "thinking":
                    self.thinking += text
                elif part.kind == "answer":
                    self.content += text
                if part.kind != "tag":
                    pieces.append(Piece(text, part.kind == "thinking", is_accepted))
        return pieces

    def _next_runs(self, n_chars: int) -> list[tuple[str, bool]]:
        runs = []
        while n_chars:
            run = self._split.popleft()
            if len(run.text) > n_chars:
                self._split.appendleft(_Run(run.text[n_chars:], run.is_accepted))
            runs.append((run.text[:n_chars], run.is_accepted))
            n_chars -= len(runs[-1][0])
        return runs
