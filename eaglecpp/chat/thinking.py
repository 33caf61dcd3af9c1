# SPDX-License-Identifier: MIT
"""Splits an answer into thinking and text while it streams.

`ThinkTags` and `Channels` describe the families, `splitter` returns the reader of one answer, and
`behind_thought` builds a grammar for an answer that thinks first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

GAP = "\n\n"
"""Text between two messages of one answer."""
CALL = "\0"
"""Added before a message to a tool, because an answer may quote the text of one."""
Begins = Literal["any", "thought", "answer"]
"""The beginning of an answer: inside a thought that the prompt opened, after a thought, or either way."""

Kind = Literal["thinking", "answer", "tag"]


@dataclass(frozen=True)
class Channels:
    """Syntax of an answer that is a row of messages, each with a header and a body.

    beginnings: texts that begin a header; a header ends with `mark`
    rest:       pattern of a header between its beginning and `mark`
    thought:    pattern found in headers of thinking
    call:       pattern found in headers of calls; the text of the call begins at the end of the match
    adds:       text added before a call, after `CALL`
    ends:       texts that end a message
    nexts:      texts that begin the next message and so end the last one
    lasts:      texts that end a message only at the end of the answer
    calls_last: no message follows a call
    """

    beginnings: tuple[str, ...]
    mark: str
    thought: str
    call: str
    ends: tuple[str, ...]
    nexts: tuple[str, ...]
    lasts: tuple[str, ...] = ()
    rest: str = r"[\w.\s=|<>-]*"
    adds: str = ""
    calls_last: bool = False


@dataclass(frozen=True)
class ThinkTags:
    """Tags around the thinking of a family: `open` and `close`; `plain` begins an answer without thinking.

    after:    text between a thought and `plain`
    breaks:   the thinking is on separate lines if `open` is followed by a line break
    marks:    other texts that are control tokens
    channels: syntax of the messages, if an answer is a row of messages
    """

    open: str
    close: str
    plain: str = ""
    after: str = ""
    breaks: bool = True
    marks: str = ""
    channels: Channels | None = None

    def closing(self, text: str) -> str:
        """Returns what closes the thought that a text leaves open, so that the answer begins after it."""
        begin = text.rfind(self.open) + len(self.open)
        breaks = int(self.breaks and text[begin : begin + 1] == "\n")
        return "\n" * breaks + self.close + self.after + self.plain + "\n\n" * breaks


_HARMONY = Channels(
    beginnings=("<|start|>", "<|channel|>", "to="),
    mark="<|message|>",
    thought=r"<\|channel\|>\s*analysis\b(?!.*<\|channel\|>)|to=(?!functions\.|(?:assistant|user|all)\b)",
    call=r"(?=to=functions\.)",
    ends=("<|end|>",),
    nexts=("<|start|>assistant",),
    lasts=("<|return|>", "<|call|>"),
)
_KIMI_K3 = Channels(
    beginnings=("<|open|>",),
    mark="<|sep|>",
    thought="think",
    call=r"(?=<\|open\|>tools)",
    ends=("<|close|>think<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    nexts=("<|open|>response<|sep|>",),
    lasts=("<|close|>message<|sep|>",),
    rest=r"\w+",
    calls_last=True,
)
_MUSE = Channels(
    beginnings=("<|start|>", "to=", "<|message|>"),
    mark="<|message|>",
    thought=r"to=self\b",
    call=r"to=(?!(?:self|user)\b)[\w.-]+",
    ends=("<|eom|>",),
    nexts=("<|start|>assistant",),
    lasts=("<|eot|>",),
)
_FUNCTIONARY = Channels(
    beginnings=(">>>", ""),  # the prompt ends with the first ">>>"
    mark="\n",
    thought="(?!)",
    call=r"\A(?:>>>)?(?!all\Z)",
    ends=(),
    nexts=(">>>",),
    rest=r"[\w.-]+",
    adds=">>>",
)
HARMONY = ThinkTags(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|channel|>final<|message|>",
    after="<|start|>assistant",
    breaks=False,
    marks="<|constrain|><|return|><|call|>",
    channels=_HARMONY,
)
"""The tags of gpt-oss."""

_KNOWN = (
    ThinkTags("<think>", "</think>"),
    ThinkTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
    ThinkTags("<thinking>", "</thinking>"),
    ThinkTags("[THINK]", "[/THINK]", breaks=False),
    ThinkTags("<|inner_prefix|>", "<|inner_suffix|>", breaks=False),  # Apertus
    ThinkTags("<|START_THINKING|>", "<|END_THINKING|>", breaks=False),  # Command R
    ThinkTags("<|channel>thought", "<channel|>", breaks=False),
    HARMONY,
    ThinkTags(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        "<|open|>response<|sep|>",
        breaks=False,
        channels=_KIMI_K3,
    ),
    ThinkTags(
        " to=self<|message|>",
        "<|eom|>",
        " to=user<|message|>",
        after="<|start|>assistant",
        breaks=False,
        marks="<|eot|>",
        channels=_MUSE,
    ),
    ThinkTags("", "", "all\n", after=">>>", channels=_FUNCTIONARY),
)


_TAG = r"(<[^<>\s]*(?i:think|reason|thought)[^<>\s]*>)"


def layout_of(template: str) -> ThinkTags | None:
    """Returns the tags of a chat template, None if its answers have no tags.

    template: the template and a prompt that it rendered, with "\\0" for a thought; unknown tags are learned
              from the text around it
    """
    found = (
        tags
        for tags in _KNOWN
        if (tags.open or tags.after + tags.plain) in template or (not tags.plain and tags.close in template)
    )
    learned = re.search(rf"{_TAG}\s*\0\s*{_TAG}", template)
    return next(found, ThinkTags(learned[1], learned[2]) if learned else None)


def thinking_tags(layout: ThinkTags | None) -> ThinkTags | None:
    """Returns the tags around the thinking in a layout, None for a model that does not think."""
    return layout if layout is not None and layout.open else None


@dataclass(frozen=True)
class Segment:
    """A piece of an answer. Tags and the white space around them are not shown. added: text that is shown
    before the piece but is not in the answer.
    """

    kind: Kind
    text: str
    added: str = ""


class Splitter:
    """Splits an answer that may begin with a thought between tags. Returns each character once, in order."""

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

    def feed(self, text: str) -> list[Segment]:
        """Takes the next text; returns the parts that are certain."""
        self._held += text
        return self._advance(final=False)

    def finish(self, is_whole: bool = True) -> list[Segment]:
        """Returns the parts that were held back. is_whole: the model ended the answer itself."""
        self._is_whole = is_whole
        return self._advance(final=True)

    def _advance(self, final: bool) -> list[Segment]:
        parts: list[Segment] = []
        while self._held and (self._begin(parts, final) if self._kind is None else self._go_on(parts, final)):
            pass
        return [part for part in parts if part.text or part.added]

    def _take(self, kind: Kind, n_chars: int) -> Segment:
        text, self._held = self._held[:n_chars], self._held[n_chars:]
        return Segment(kind, text)

    def _begin(self, parts: list[Segment], final: bool) -> bool:
        """Detects the kind of the text. Returns whether to go on."""
        assert self._tags is not None
        text, tags = self._held.lstrip(), (self._tags.open, self._tags.close)
        if not final and any(tag != text and tag.startswith(text) for tag in tags):
            return False
        self._kind = "thinking" if text.startswith(self._tags.open) else "answer"
        for tag in filter(text.startswith, tags):  # `close` alone ends an empty thought
            parts.append(self._take("tag", len(self._held) - len(text) + len(tag)))
            self._is_behind_tag = True
        return True

    def _go_on(self, parts: list[Segment], final: bool) -> bool:
        """Takes text of the current kind. Returns whether to go on."""
        if self._is_behind_tag:
            parts.append(self._take("tag", len(self._held) - len(self._held.lstrip())))
            self._is_behind_tag = not self._held
        if self._kind == "answer" or self._tags is None:
            parts.append(self._take("answer", len(self._held)))
            return False
        at, close = first_mark(self._held, (self._tags.close,), final)
        if not close:
            # Some models call a tool inside a thought and end the answer there. A quoted call has text after
            # it, or the answer was cut.
            at = min(at, first_mark(self._held, self._calls, final)[0])
            if final and not (self._is_whole and self._is_call_text(self._held[at:])):
                at = len(self._held)
        # holds back the beginning of a tag and the white space before it
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

    calls:   marks that begin tool calls, which are returned as part of the answer; () without tools
    is_call: returns whether a text consists of complete calls
    """
    if tags is not None and tags.channels is not None:
        return ChannelSplitter(tags, tags.channels, begins, calls)
    return Splitter(tags, begins, calls, is_call)


def first_mark(text: str, marks: Iterable[str], final: bool = False) -> tuple[int, str]:
    """Returns the position of the first mark in a text, and the mark.

    Without a mark, returns "" and the position up to which the text cannot be part of one. final: the text is
    complete.
    """
    found = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    if found or final:
        return min(found, default=(len(text), ""))
    return len(text) - max((_n_begun(text, mark) for mark in marks), default=0), ""


def _n_begun(text: str, mark: str) -> int:
    """Returns the number of characters at the end of a text that may begin a mark."""
    return next(n for n in range(min(len(mark) - 1, len(text)), -1, -1) if text.endswith(mark[:n]))


_LONGEST_HEADER = 512


class ChannelSplitter(Splitter):
    """Splits an answer that is a row of messages. A call is part of the answer, with the marks inside it."""

    def __init__(self, tags: ThinkTags, channels: Channels, begins: Begins, calls: Sequence[str]) -> None:
        super().__init__(tags, begins, calls)
        self._channels = channels
        self._is_call = False
        self._ended: set[Kind] = set()  # kinds of earlier messages

    def _take(self, kind: Kind, n_chars: int) -> Segment:
        """Takes text, in which a model cannot write `CALL` itself."""
        return Segment(kind, super()._take(kind, n_chars).text.replace(CALL, "\ufffd"))

    def _header(self, text: str) -> tuple[str, str] | None:
        """Returns the header at the beginning of a text, None without one, and its mark, "" if incomplete."""
        head, mark, _ = text.partition(self._channels.mark)
        name = head.lstrip()
        if not mark:
            name = name[: len(name) - _n_begun(name, self._channels.mark)]
        is_header = len(name) <= _LONGEST_HEADER and any(
            (not mark and begin.startswith(name))
            or (name.startswith(begin) and re.fullmatch(self._channels.rest, name[len(begin) :], re.DOTALL))
            for begin in self._channels.beginnings
        )
        return (head, mark) if is_header else None

    def _begin(self, parts: list[Segment], final: bool) -> bool:
        """Reads a header."""
        channels = self._channels
        header = self._header(self._held)
        if header is None or (final and not header[1] and "" in channels.beginnings):
            self._kind = "answer"  # the model forgot the header
            parts.append(self._take("answer", int(self._held.startswith(channels.nexts))))
            return True
        head, mark = header
        if not mark:
            if final:
                parts.append(self._take("tag", len(self._held)))
            return False
        call = re.search(channels.call, head) if self._calls else None
        self._is_call = call is not None
        is_thought = not self._is_call and re.search(channels.thought, head, re.DOTALL)
        self._kind = "thinking" if is_thought else "answer"
        if self._is_call or self._kind in self._ended:
            parts.append(Segment(self._kind, "", CALL + channels.adds if self._is_call else GAP))
        n_all = len(head) + len(mark)
        n_tag = n_all if call is None else call.end()
        parts += [self._take("tag", n_tag), self._take("answer", n_all - n_tag)]
        return True

    def _end(self, final: bool) -> tuple[int, str]:
        """Returns the end of the message and its mark, "" without one. After a call, a header follows."""
        channels, text = self._channels, self._held
        marks = () if self._is_call and channels.calls_last else (*channels.ends, *channels.nexts)
        at, mark = first_mark(text, marks, final)
        while mark and self._is_call:
            behind = at if mark in channels.nexts else at + len(mark)
            header = self._header(text[behind : behind + 2 * _LONGEST_HEADER])
            if header is not None:
                return at, mark if header[1] or final else ""
            first = at + len(mark)
            at, mark = first_mark(text[first:], marks, final)
            at += first
        return at, mark

    def _go_on(self, parts: list[Segment], final: bool) -> bool:
        """Reads the body of a message."""
        assert self._kind is not None
        channels, text = self._channels, self._held
        at, mark = self._end(final)
        if not mark:
            last = next(filter(text.endswith, channels.lasts), "")
            n_last = max([len(last), *(_n_begun(text, one) for one in channels.lasts if not final)])
            at, mark = min(at, len(text) - n_last), last if final else ""
        if at and not self._is_call:
            self._ended.add(self._kind)
        parts.append(self._take(self._kind, at))
        if not mark:
            return False
        if mark not in channels.nexts:
            parts.append(self._take("tag", len(mark)))
        self._kind, self._is_call = None, False
        return True


def behind_thought(grammar: str, tags: ThinkTags, begins: Begins) -> str:
    """Returns a grammar in Lark for a thought and an answer that matches `grammar`. A thought that the prompt
    does not open is optional.
    """
    form = re.sub("^start:", "form_behind_thought:", grammar, count=1, flags=re.MULTILINE)
    plain = _literal(tags.plain)
    if tags.channels is _HARMONY:  # whose header may say that the answer is JSON
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
