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
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from eaglecpp.results import Chunk

__all__ = ["AnswerReader", "Part", "Piece", "ThinkSplitter", "ThinkTags", "tags_of"]


Kind = Literal["thinking", "answer", "tag"]


@dataclass(frozen=True)
class ThinkTags:
    """`open` and `close` surround the thinking; `plain` begins an answer without any."""

    open: str
    close: str
    plain: str = ""


_KNOWN = (
    ThinkTags("<think>", "</think>"),
    ThinkTags("<thinking>", "</thinking>"),
    ThinkTags("<reasoning>", "</reasoning>"),
    ThinkTags("<seed:think>", "</seed:think>"),
    ThinkTags("[THINK]", "[/THINK]"),
    ThinkTags("<|channel>thought", "<channel|>"),
    ThinkTags(
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>final<|message|>",
    ),
)


def tags_of(template: str) -> ThinkTags | None:
    """The tags that a chat template mentions; None for a model that does not think."""
    return next((tags for tags in _KNOWN if tags.open in template or tags.close in template), None)


@dataclass(frozen=True)
class Part:
    """A piece of the text. "tag": the tags and the white space around them, not for showing."""

    kind: Kind
    text: str


class ThinkSplitter:
    """Feed text, take parts. `prompt_end`: the end of the prompt, where the template may have opened the
    thinking.
    """

    def __init__(self, tags: ThinkTags | None, prompt_end: str = "") -> None:
        self._tags = tags
        self._held = ""
        self._state: Literal["begin", "think begins", "think", "answer begins", "answer"] = "answer"
        if tags is not None:
            opened = prompt_end.rstrip().endswith(tags.open)
            self._state = "think begins" if opened else "begin"

    def feed(self, text: str) -> list[Part]:
        """Takes the next text; returns what became certain."""
        self._held += text
        return self._advance(final=False)

    def finish(self) -> list[Part]:
        """Returns what was held back; no more text will come."""
        return self._advance(final=True)

    def _advance(self, final: bool) -> list[Part]:
        parts: list[Part] = []
        while self._held:
            before = self._state
            self._step(parts, final)
            if self._state == before:
                break
        return [part for part in parts if part.text]

    def _step(self, parts: list[Part], final: bool) -> None:
        """Takes from the held text what the state allows; a change of state means: look again."""
        if self._state == "begin":
            self._begin(parts, final)
        elif self._state == "think":
            self._think(parts, final)
        elif self._state == "answer":
            parts.append(self._take("answer", len(self._held)))
        else:  # white space behind a tag
            n_blank = len(self._held) - len(self._held.lstrip())
            parts.append(self._take("tag", n_blank))
            if self._held:
                self._state = "think" if self._state == "think begins" else "answer"

    def _begin(self, parts: list[Part], final: bool) -> None:
        assert self._tags is not None
        text = self._held.lstrip()
        n_blank = len(self._held) - len(text)
        for tag in (self._tags.open, self._tags.plain):
            if tag and text.startswith(tag):
                parts.append(self._take("tag", n_blank + len(tag)))
                self._state = "think begins" if tag == self._tags.open else "answer begins"
                return
            if tag and tag.startswith(text) and not final:
                return
        self._state = "answer"

    def _think(self, parts: list[Part], final: bool) -> None:
        assert self._tags is not None
        close = self._tags.close
        end = self._held.find(close)
        if end >= 0:
            n_text = len(self._held[:end].rstrip())
            parts.append(self._take("thinking", n_text))
            parts.append(self._take("tag", end - n_text + len(close)))
            self._state = "answer begins"
            return
        n_sure = len(self._held)
        if not final:  # the beginning of the tag, and white space before it, may have to go
            n_tag = next(
                n for n in range(min(len(close) - 1, n_sure), -1, -1) if self._held.endswith(close[:n])
            )
            n_sure = len(self._held[: n_sure - n_tag].rstrip())
        parts.append(self._take("thinking", n_sure))

    def _take(self, kind: Kind, n_chars: int) -> Part:
        text, self._held = self._held[:n_chars], self._held[n_chars:]
        return Part(kind, text)


@dataclass(frozen=True)
class Piece:
    """Text to show. is_thinking: it is not part of the answer; is_accepted: it was drafted and accepted."""

    text: str
    is_thinking: bool
    is_accepted: bool


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
    prompt_end:  the last characters of the prompt
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        tags: ThinkTags | None = None,
        marks: dict[int, str] | None = None,
        prompt_end: str = "",
    ) -> None:
        self.content = ""
        self.thinking = ""
        self.text = ""
        self._token_bytes = token_bytes
        self._marks = marks or {}
        self._splitter = ThinkSplitter(tags, prompt_end)
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
            for text, is_accepted in self._next_runs(len(part.text)):
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
