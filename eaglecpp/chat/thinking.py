# SPDX-License-Identifier: MIT
"""Where in an answer the thinking is: `ThinkTags` of the families, and `splitter`, which tells thinking and
answer apart while the text streams; `behind_thought` gives a grammar for an answer that thinks first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
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

    def closing(self, text: str) -> str:
        """What closes the thought that a text leaves open, so that the answer begins behind it."""
        begin = text.rfind(self.open) + len(self.open)
        breaks = int(self.breaks and text[begin : begin + 1] == "\n")
        return "\n" * breaks + self.close + self.after + self.plain + "\n\n" * breaks


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
    ThinkTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
    ThinkTags("<thinking>", "</thinking>"),
    ThinkTags("[THINK]", "[/THINK]", breaks=False),
    ThinkTags("<|inner_prefix|>", "<|inner_suffix|>", breaks=False),  # Apertus
    ThinkTags("<|START_THINKING|>", "<|END_THINKING|>", breaks=False),  # Command R
    ThinkTags("<|channel>thought", "<channel|>", breaks=False),
    HARMONY,
)


_TAG = r"(<[^<>\s]*(?i:think|reason|thought)[^<>\s]*>)"  # which says what it is


def tags_of(template: str) -> ThinkTags | None:
    """The tags that a chat template mentions, and what it prints, with "\\0" for a thought, from which others
    are learned; None for a model that does not think.
    """
    found = (tags for tags in _KNOWN if tags.open in template or (tags.close in template and not tags.plain))
    learned = re.search(rf"{_TAG}\s*\0\s*{_TAG}", template)
    return next(found, ThinkTags(learned[1], learned[2]) if learned else None)


@dataclass(frozen=True)
class Part:
    """A piece of the text. "tag": the tags and the white space around them, not for showing; is_next: it has
    no text, and another message of its kind begins behind it.
    """

    kind: Kind
    text: str
    is_next: bool = False


class Splitter:
    """Feed text, take parts; every character comes out once, in order. For tags around one thought, which
    comes first.
    """

    def __init__(
        self,
        tags: ThinkTags | None,
        begins: Begins = "any",
        calls: Sequence[str] = (),
        is_call: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._held = ""
        self._tags = tags
        self._calls = calls
        self._is_call_text = is_call
        kinds: dict[str, Kind | None] = {"any": None, "thought": "thinking", "answer": "answer"}
        self._kind = "answer" if tags is None else kinds[begins]
        self._is_behind_tag = begins == "thought"
        self._is_whole = False

    def feed(self, text: str) -> list[Part]:
        """Takes the next text; returns what became certain."""
        self._held += text
        return self._advance(final=False)

    def finish(self, is_whole: bool = True) -> list[Part]:
        """Returns what was held back; no more text will come. is_whole: the model ended the answer itself."""
        self._is_whole = is_whole
        return self._advance(final=True)

    def _advance(self, final: bool) -> list[Part]:
        parts: list[Part] = []
        while self._held and (self._begin(parts, final) if self._kind is None else self._go_on(parts, final)):
            pass
        return [part for part in parts if part.text or part.is_next]

    def _take(self, kind: Kind, n_chars: int) -> Part:
        text, self._held = self._held[:n_chars], self._held[n_chars:]
        return Part(kind, text)

    def _begin(self, parts: list[Part], final: bool) -> bool:
        """Finds out what kind of text comes next; whether to look again."""
        assert self._tags is not None
        text, tags = self._held.lstrip(), (self._tags.open, self._tags.close)
        if not final and any(tag != text and tag.startswith(text) for tag in tags):
            return False
        self._kind = "thinking" if text.startswith(self._tags.open) else "answer"
        for tag in filter(text.startswith, tags):  # a close alone: of no thought
            parts.append(self._take("tag", len(self._held) - len(text) + len(tag)))
            self._is_behind_tag = True
        return True

    def _go_on(self, parts: list[Part], final: bool) -> bool:
        """Takes text of the kind; whether to look again."""
        if self._is_behind_tag:
            parts.append(self._take("tag", len(self._held) - len(self._held.lstrip())))
            self._is_behind_tag = not self._held
        if self._kind == "answer" or self._tags is None:
            parts.append(self._take("answer", len(self._held)))
            return False
        at, close = first_mark(self._held, (self._tags.close,), final)
        if not close:
            # Some models call from within a thought and end the answer there. A call that a thought quotes or
            # only considers has text after it, or was cut.
            at = min(at, first_mark(self._held, self._calls, final)[0])
            if final and not (self._is_whole and self._is_call_text(self._held[at:])):
                at = len(self._held)
        # the beginning of the tag, and white space before it, may have to go
        n_text = at if final and at == len(self._held) else len(self._held[:at].rstrip())
        parts.append(self._take("thinking", n_text))
        is_over = bool(close or (final and self._held))
        if is_over:
            parts.append(self._take("tag", at - n_text + len(close)))
            self._kind, self._is_behind_tag = "answer", True
        return is_over


def splitter(
    tags: ThinkTags | None,
    begins: Begins = "any",
    calls: Sequence[str] = (),
    is_call: Callable[[str], bool] = lambda _: False,
) -> Splitter:
    """Returns the splitter of one answer.

    calls:   the marks that begin tool calls, which come out as answers with their marks; () without tools
    is_call: whether a text is whole calls and nothing else
    """
    return HarmonySplitter(begins, calls) if tags is HARMONY else Splitter(tags, begins, calls, is_call)


def first_mark(text: str, marks: Iterable[str], final: bool = False) -> tuple[int, str]:
    """Where the first one of some marks is in a text, and that. "" where there is none, behind what cannot
    belong to one; final: no more text will come.
    """
    found = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    if found or final:
        return min(found, default=(len(text), ""))
    return len(text) - max((_n_begun(text, mark) for mark in marks), default=0), ""


def _n_begun(text: str, mark: str) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    return next(n for n in range(min(len(mark) - 1, len(text)), -1, -1) if text.endswith(mark[:n]))


_MESSAGE = "<|message|>"
_END, _NEXT = "<|end|>", "<|start|>assistant"
_LAST = ("<|return|>", "<|call|>")
_BEGINNINGS = ("<|start|>", "<|channel|>", "to=")
_TO_FUNCTION = "to=functions."
_PEOPLE = ("assistant", "user", "all")
_LONGEST_HEADER = 512


class HarmonySplitter(Splitter):
    """For gpt-oss: an answer is a row of messages, each a header, which says the channel and the recipient,
    `<|message|>`, and a body. Thinking is in the channel "analysis", what is for the user in "final" and
    "commentary", and a call is a message to "functions.NAME", in any channel.
    """

    def __init__(self, begins: Begins = "any", calls: Sequence[str] = ()) -> None:
        super().__init__(HARMONY, begins, calls)
        self._is_call = False
        self._said: set[Kind] = set()  # of messages that are over

    def _begin(self, parts: list[Part], final: bool) -> bool:
        """Reads a header."""
        head, mark, _ = self._held.partition(_MESSAGE)
        text = head.lstrip()
        is_one = any(text.startswith(b) or (not mark and b.startswith(text)) for b in _BEGINNINGS)
        if not is_one or len(text + mark[1:]) > _LONGEST_HEADER:
            self._kind = "answer"  # a model that forgot its channels
            return True
        if not mark:
            if final:
                parts.append(self._take("tag", len(self._held)))
            return False
        channel = ("final", *re.findall(r"<\|channel\|>\s*(\w+)", head))[-1]
        to = ("", *(name for name in re.findall(r"to=([\w.-]+)", head) if name not in _PEOPLE))[-1]
        self._is_call = bool(self._calls) and to.startswith("functions.")
        is_thought = channel == "analysis" or (to and not to.startswith("functions."))
        self._kind = "thinking" if is_thought and not self._is_call else "answer"
        if self._kind in self._said and not self._is_call:
            parts.append(Part(self._kind, "", is_next=True))
        n_all = len(head) + len(mark)
        n_tag = head.find(_TO_FUNCTION) if self._is_call else n_all
        parts += [self._take("tag", n_tag), self._take("answer", n_all - n_tag)]
        return True

    def _go_on(self, parts: list[Part], final: bool) -> bool:
        """Reads on in a message. What ends the whole answer is text elsewhere."""
        assert self._kind is not None
        at, mark = first_mark(self._held, (_END, _NEXT), final)
        last = next((one for one in _LAST if self._held.endswith(one)), "")
        if not mark and last:
            at, mark = len(self._held) - len(last), last if final else ""
        elif not mark and not final:
            at = min(at, *(len(self._held) - _n_begun(self._held, one) for one in _LAST))
        if at and not self._is_call:
            self._said.add(self._kind)
        parts.append(self._take(self._kind, at))
        if not mark:
            return False
        if mark != _NEXT:
            parts.append(self._take("answer" if self._is_call else "tag", len(mark)))
        self._kind, self._is_call = None, False
        return True


def behind_thought(grammar: str, tags: ThinkTags, begins: Begins) -> str:
    """grammar: in Lark. begins: of the prompt; a thought that is not open may be left out."""
    form = re.sub("^start:", "form_behind_thought:", grammar, count=1, flags=re.MULTILINE)
    plain = _literal(tags.plain)
    if tags.plain:  # the JSON that a channel may say it has
        before, message = tags.plain.rsplit("<", 1)
        plain = f'{_literal(before)} (" "? "<|constrain|>json")? {_literal("<" + message)}'
    answer = f"{plain} form_behind_thought"
    thought = f"thought_before_form {_literal(tags.after)} /[ \\t\\r\\n]{{0,4}}/ {answer}"
    rest = "" if begins == "thought" else f" | {answer}"
    opened = "" if begins == "thought" else _literal(tags.open)
    return f"""{form}
start: {opened} {thought}{rest}
thought_before_form[lazy]: /(?s:.*)/ {_literal(tags.close)}
"""


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
