# SPDX-License-Identifier: MIT
"""Tells a model's thinking from its answer while the text streams.

A reasoning model writes its thoughts between two tags at the beginning, or its template has opened the first
tag already. Which tags is read off the template, as Ollama does (ollama/ollama: thinking/template.go). Text
that may still become a tag is held back; every character comes out exactly once, in order, labelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Part", "ThinkSplitter", "ThinkTags", "tags_of"]

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
