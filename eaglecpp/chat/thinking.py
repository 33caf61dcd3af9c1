# SPDX-License-Identifier: MIT
"""Where in an answer the thinking is: `ThinkTags` of the families, and `splitter`, which tells thinking and
answer apart while the text streams; `behind_thought` gives a grammar for an answer that thinks first.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

Begins = Literal["any", "thought", "answer"]
"""What an answer begins with, by the end of its prompt: a thought is open; or only the answer can come."""

Kind = Literal["thinking", "answer", "tag"]


@dataclass(frozen=True)
class ThinkTags:
    """`open` and `close` surround the thinking; `plain` begins an answer without any.

    after:  what stands between a thought and `plain`
    breaks: the thinking stands on lines of its own where its opening ends in a line break
    marks:  further texts that are control tokens
    """

    open: str
    close: str
    plain: str = ""
    after: str = ""
    breaks: bool = True
    marks: str = ""

    def is_open(self, text: str) -> bool:
        """Whether a prompt leaves a thought open."""
        return text.rstrip().endswith(self.open)

    def closing(self, text: str) -> str:
        """What closes the thought that a text leaves open, so that the answer begins behind it."""
        begin = text.rfind(self.open) + len(self.open)
        has_break = self.breaks and text[begin : begin + 1] == "\n"
        before = "\n" if has_break else ""
        return f"{before}{self.close}{self.after}{self.plain}" + ("\n\n" if has_break else "")


HARMONY = ThinkTags(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|channel|>final<|message|>",
    after="<|start|>assistant",
    breaks=False,
    marks="<|constrain|><|return|><|call|>",
)
"""Of gpt-oss, whose answers are messages of several channels."""

_KNOWN = (
    ThinkTags("<think>", "</think>"),
    ThinkTags("<thinking>", "</thinking>"),
    ThinkTags("<reasoning>", "</reasoning>"),
    ThinkTags("<seed:think>", "</seed:think>"),
    ThinkTags("[THINK]", "[/THINK]", breaks=False),
    ThinkTags("<|channel>thought", "<channel|>", breaks=False),
    HARMONY,
)


def tags_of(template: str) -> ThinkTags | None:
    """The tags that a chat template mentions; None for a model that does not think."""
    found = (tags for tags in _KNOWN if tags.open in template or (tags.close in template and not tags.plain))
    return next(found, None)


@dataclass(frozen=True)
class Part:
    """A piece of the text. "tag": the tags and the white space around them, not for showing; is_next: it has
    no text, and another message of its kind begins behind it.
    """

    kind: Kind
    text: str
    is_next: bool = False


class Splitter(ABC):
    """Feed text, take parts; every character comes out once, in order."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> list[Part]:
        """Takes the next text; returns what became certain."""
        self._held += text
        return self._advance(final=False)

    def finish(self) -> list[Part]:
        """Returns what was held back; no more text will come."""
        return self._advance(final=True)

    def _take(self, kind: Kind, n_chars: int) -> Part:
        text, self._held = self._held[:n_chars], self._held[n_chars:]
        return Part(kind, text)

    @abstractmethod
    def _advance(self, final: bool) -> list[Part]:
        """Takes from the held text what is certain, all of it at the end."""


def splitter(tags: ThinkTags | None, begins: Begins = "any", has_tools: bool = False) -> Splitter:
    """For one answer. has_tools: calls of them come out as answers, with the marks around them."""
    if tags is HARMONY:
        return HarmonySplitter(begins, has_tools)
    return ThinkSplitter(tags, begins)


class ThinkSplitter(Splitter):
    """For tags around one thought, which comes first."""

    def __init__(self, tags: ThinkTags | None, begins: Begins = "any") -> None:
        super().__init__()
        self._tags = tags
        self._state: Literal["begin", "think begins", "think", "answer begins", "answer"] = "answer"
        if tags is not None and begins != "answer":
            self._state = "think begins" if begins == "thought" else "begin"

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
        tag = self._tags.open
        if text.startswith(tag):
            parts.append(self._take("tag", n_blank + len(tag)))
            self._state = "think begins"
        elif final or not tag.startswith(text):
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
            n_sure = len(self._held[: n_sure - n_begun(self._held, close)].rstrip())
        parts.append(self._take("thinking", n_sure))


def n_begun(text: str, mark: str) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    return next(n for n in range(min(len(mark) - 1, len(text)), -1, -1) if text.endswith(mark[:n]))


_MESSAGE = "<|message|>"
_END, _NEXT = "<|end|>", "<|start|>assistant"
_LAST = ("<|return|>", "<|call|>")
_BEGINNINGS = ("<|start|>", "<|channel|>", "to=")
_TO_FUNCTION = "to=functions."
_PEOPLE = ("assistant", "user", "all")
_LONGEST_HEADER = 512
_HEADER = re.compile(r"<\|channel\|>\s*(\w+)|to=([\w.-]+)")


class HarmonySplitter(Splitter):
    """For gpt-oss: an answer is a row of messages, each a header, which says the channel and the recipient,
    `<|message|>`, and a body. Thinking is in the channel "analysis", what is for the user in "final" and
    "commentary", and a call is a message to "functions.NAME", in any channel.
    """

    def __init__(self, begins: Begins = "any", has_tools: bool = False) -> None:
        super().__init__()
        self._has_tools = has_tools
        self._kind: Kind | None = {"any": None, "thought": "thinking", "answer": "answer"}[begins]
        self._is_call = False
        self._said: set[Kind] = set()  # of messages that are over

    def _advance(self, final: bool) -> list[Part]:
        parts: list[Part] = []
        while self._held and (self._header(parts, final) if self._kind is None else self._body(parts, final)):
            pass
        return [part for part in parts if part.text or part.is_next]

    def _header(self, parts: list[Part], final: bool) -> bool:
        """Reads a header; whether to look again."""
        end = self._held.find(_MESSAGE)
        if end < 0:
            text = self._held.lstrip()
            is_one = any(text.startswith(begin) or begin.startswith(text) for begin in _BEGINNINGS)
            if is_one and len(text) <= _LONGEST_HEADER:
                if final:
                    parts.append(self._take("tag", len(self._held)))
                return False
            self._kind = "answer"  # a model that forgot its channels
            return True
        found = [(match[1], match[2]) for match in _HEADER.finditer(self._held, 0, end)]
        channel = next((name for name, _ in reversed(found) if name), "final")
        to = next((name for _, name in reversed(found) if name and name not in _PEOPLE), "")
        self._is_call = self._has_tools and to.startswith("functions.")
        is_thought = channel == "analysis" or (to and not to.startswith("functions."))
        self._kind = "thinking" if is_thought and not self._is_call else "answer"
        if self._is_call:
            parts.append(self._take("tag", self._held.find(_TO_FUNCTION)))
            parts.append(self._take("answer", self._held.find(_MESSAGE) + len(_MESSAGE)))
            return True
        if self._kind in self._said:
            parts.append(Part(self._kind, "", is_next=True))
        parts.append(self._take("tag", end + len(_MESSAGE)))
        return True

    def _body(self, parts: list[Part], final: bool) -> bool:
        """Reads on in a message; whether to look again. What ends the whole answer is text elsewhere."""
        assert self._kind is not None
        found = [(at, mark) for mark in (_END, _NEXT) if (at := self._held.find(mark)) >= 0]
        at, mark = min(found, default=(len(self._held), ""))
        last = next((one for one in _LAST if self._held.endswith(one)), "")
        if not mark and last:
            at, mark = at - len(last), last if final else ""
        elif not mark and not final:
            at -= max(n_begun(self._held, one) for one in (_END, _NEXT, *_LAST))
        if at and not self._is_call:
            self._said.add(self._kind)
        parts.append(self._take(self._kind, at))
        if not mark:
            return False
        if mark != _NEXT:
            parts.append(self._take("answer" if self._is_call else "tag", len(mark)))
        self._kind, self._is_call = None, False
        return True


# What is no name of a rule: texts, classes of characters, tokens, comments.
_PARTS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|!?<[^>\n]*>|#[^\n]*|[A-Za-z0-9-]+')
_FORM, _THOUGHT = "form-behind-thought", "thought-before-form"  # no names of theirs
_JSON_CHANNEL = '( " "? "<|constrain|>json" )?'


def behind_thought(grammar: str, tags: ThinkTags, begins: Begins) -> str:
    """grammar: in GBNF. begins: of the prompt; a thought that is not open may be left out."""
    renamed = _PARTS.sub(lambda found: _FORM if found[0] == "root" else found[0], grammar)
    plain = _literal(tags.plain)
    if tags.plain:  # the JSON that a channel may say it has
        before, message = tags.plain.rsplit("<", 1)
        plain = f"{_literal(before)} {_JSON_CHANNEL} {_literal('<' + message)}"
    answer = f"{plain} {_FORM}"
    opened = f"{_THOUGHT}-0"
    root = opened if begins == "thought" else f"{_literal(tags.open)} {opened} | {answer}"
    rules = [f"root ::= {root}", *_until(tags.close, f"{_literal(tags.after)} [ \\t\\r\\n]{{0,4}} {answer}")]
    return "\n".join([*rules, renamed])


def _until(mark: str, then: str) -> list[str]:
    """Rules for any text up to the first time that a mark is in it: the states of Knuth, Morris and Pratt."""
    rules = []
    for state in range(len(mark)):
        to = {char: _next_state(mark, state, char) for char in set(mark)}
        ways = [f"{_literal(char)} {_THOUGHT}-{to[char]}" for char in sorted(to) if to[char]]
        others = "".join(sorted(char for char in to if to[char]))
        rules.append(f"{_THOUGHT}-{state} ::= {' | '.join(ways)} | [^{_in_class(others)}] {_THOUGHT}-0")
    return [*rules, f"{_THOUGHT}-{len(mark)} ::= {then}"]


def _next_state(mark: str, state: int, char: str) -> int:
    """How many characters of the mark end a text that ended in `state` of them, with one more."""
    text = mark[:state] + char
    return next(n for n in range(len(text), -1, -1) if text.endswith(mark[:n]))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _in_class(chars: str) -> str:
    return "".join(f"\\x{ord(char):02x}" for char in chars)
