# SPDX-License-Identifier: MIT
"""Two tables of the formats in which models answer: layouts with thinking, and formats of tool calls.

To support a new family of calls, add one line to `_PRINTED`. To support a new family of thinking, add one
entry to `_LAYOUTS`. The format of a model's calls is learned from a call that the chat template prints, or
taken from `KNOWN`. `reader.Reader` reads an answer only in the layout and the formats of its model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from eaglecpp.chat.call_syntax import (
    FUNCTIONARY,
    GEMMA,
    HARMONY,
    JSON,
    KEY,
    NAMED,
    PYTHON,
    TAG,
    Syntax,
    Tags,
    Tools,
)
from eaglecpp.chat.message import ToolCall

Begins = Literal["any", "thought", "answer"]
"""State at the beginning of an answer: "thought" = inside a thought that the prompt opened, "answer" = after
the thinking, "any" = unknown.
"""


# Layouts of answers


@dataclass(frozen=True)
class Channels:
    """Syntax of an answer that is a row of messages, each with a header and a body.

    beginnings: texts that begin a header; `mark` ends a header
    rest:       pattern of a header between its beginning and `mark`
    thought:    pattern found in headers of thinking
    call:       pattern found in headers of calls; the text of the call begins at the end of the match
    ends:       texts that end a message
    nexts:      texts that begin the next message and so end the message before
    lasts:      texts that end a message only at the end of the answer
    """

    beginnings: tuple[str, ...]
    mark: str
    thought: str
    call: str
    ends: tuple[str, ...]
    nexts: tuple[str, ...]
    lasts: tuple[str, ...] = ()
    rest: str = r"[\w.\s=|<>-]*"


@dataclass(frozen=True)
class Layout:
    """Tags around the thinking of a family of models. The tag `open` begins the thinking, `close` ends it,
    and `plain` begins an answer without thinking.

    after:    text between a thought and `plain`
    breaks:   if `open` is followed by a line break, the thinking is on separate lines
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
        """Returns the text that closes an open thought, so that the answer begins after this text."""
        begin = text.rfind(self.open) + len(self.open)
        breaks = int(self.breaks and text[begin : begin + 1] == "\n")
        return "\n" * breaks + self.close + self.after + self.plain + "\n\n" * breaks


GPT_OSS = Layout(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|channel|>final<|message|>",
    after="<|start|>assistant",
    breaks=False,
    marks="<|constrain|><|return|><|call|>",
    channels=Channels(
        beginnings=("<|start|>", "<|channel|>", "to="),
        mark="<|message|>",
        thought=r"<\|channel\|>\s*analysis\b(?!.*<\|channel\|>)|to=(?!functions\.|(?:assistant|user|all)\b)",
        call=r"(?=to=functions\.)",
        ends=("<|end|>",),
        nexts=("<|start|>assistant",),
        lasts=("<|return|>", "<|call|>"),
    ),
)
_LAYOUTS = (
    Layout("<think>", "</think>"),
    Layout("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
    Layout("<thinking>", "</thinking>"),
    Layout("[THINK]", "[/THINK]", breaks=False),
    Layout("<|inner_prefix|>", "<|inner_suffix|>", breaks=False),  # Apertus
    Layout("<|START_THINKING|>", "<|END_THINKING|>", breaks=False),  # Command R
    Layout("<|channel>thought", "<channel|>", breaks=False),  # Gemma 4
    GPT_OSS,
    Layout(  # Kimi K3
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        "<|open|>response<|sep|>",
        breaks=False,
        channels=Channels(
            beginnings=("<|open|>",),
            mark="<|sep|>",
            thought="think",
            call=r"(?=<\|open\|>tools)",
            ends=("<|close|>think<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
            nexts=("<|open|>response<|sep|>",),
            rest=r"\w+",
        ),
    ),
    Layout(  # Muse
        " to=self<|message|>",
        "<|eom|>",
        " to=user<|message|>",
        after="<|start|>assistant",
        breaks=False,
        marks="<|eot|>",
        channels=Channels(
            beginnings=("<|start|>", "to=", "<|message|>"),
            mark="<|message|>",
            thought=r"to=self\b",
            call=r"to=(?!(?:self|user)\b)[\w.-]+",
            ends=("<|eom|>",),
            nexts=("<|start|>assistant",),
            lasts=("<|eot|>",),
        ),
    ),
    Layout(  # Functionary 3.2
        "",
        "",
        "all\n",
        after=">>>",
        channels=Channels(
            beginnings=(">>>", ""),  # the prompt already ends with the first ">>>"
            mark="\n",
            thought="(?!)",
            call=r"\A(?!(?:>>>)?all\Z)",
            ends=(),
            nexts=(">>>",),
            rest=r"[\w.-]+",
        ),
    ),
)
_THOUGHT_TAG = r"(<[^<>\s]*(?i:think|reason|thought)[^<>\s]*>)"


def layout_of(template: str) -> Layout | None:
    """Returns the layout of the answers to prompts of a chat template; None if the answers are plain text.

    template: text of the template and of a prompt that it rendered, with "\\0" for a thought; unknown tags
        are learned from the text around the "\0"
    """
    found = (
        one
        for one in _LAYOUTS
        if (one.open or one.after + one.plain) in template or (not one.plain and one.close in template)
    )
    learned = re.search(rf"{_THOUGHT_TAG}\s*\0\s*{_THOUGHT_TAG}", template)
    return next(found, Layout(learned[1], learned[2]) if learned else None)


def thinking_tags(layout: Layout | None) -> Layout | None:
    """Returns the layout if it has tags for thinking, else None."""
    return layout if layout is not None and layout.open else None


def behind_thought(grammar: str, tags: Layout, begins: Begins) -> str:
    """Returns a Lark grammar for a thought followed by an answer that matches `grammar`. The thought is
    optional unless the prompt opened a thought.
    """
    form = re.sub("^start:", "form_behind_thought:", grammar, count=1, flags=re.MULTILINE)
    plain = _literal(tags.plain)
    if tags is GPT_OSS:  # gpt-oss may declare in the header that the answer is JSON
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


# Formats of tool calls


@dataclass(frozen=True)
class CallFormat:
    """Format of a model's tool calls.

    open:        mark before a block of calls, "" without a mark
    close:       mark after the block, "" if the block ends with its message or the answer
    syntax:      reader and writer of a block
    printed:     a call as the template prints it, with "\\0" for the tool's name and the value of `KEY`; some
        marks in the call are control tokens
    is_part:     `syntax` reads `open` and `close` itself
    needs_close: a call that is truncated before `close` looks complete
    is_message:  each call is a separate message
    """

    open: str
    close: str
    syntax: Syntax = field(compare=False, repr=False)
    printed: str = field(default="", compare=False)
    is_part: bool = False
    needs_close: bool = False
    is_message: bool = False

    def calls(self, text: str, tools: Tools) -> list[ToolCall] | None:
        """Returns the tool calls in a complete block, None for any other text."""
        try:
            calls, end = self.syntax.read(text, tools)
        except (ValueError, RecursionError):
            return None
        return calls if calls and not text[end:].strip() else None

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Writes tool calls in this format."""
        written = [self._written(call, index) for index, call in enumerate(calls)]
        if not self.close and self.syntax is JSON:
            return self.open + "".join(written)
        around = ("", "") if self.is_part else (self.open, self.close)
        return ("\n" if self.close else "").join(around[0] + call + around[1] for call in written)

    def _written(self, call: ToolCall, index: int) -> str:
        before, _, behind = self.printed.partition("\0")
        number = call.id.rpartition(":")[2]  # Kimi K2 numbers its calls
        behind = re.sub(r"^:0(?=<)", f":{number if number.isdigit() else index}", behind)
        arguments = self.syntax.write(call.arguments)
        return f"{before}{call.name}{self.syntax.argument.sub(lambda _: arguments, behind, 1)}"


_VALUE = f'{{"{KEY}": "\0"}}'
_MESSAGES = tuple(
    CallFormat(open, "", syntax, f"{open}\0{behind}", is_part=True, is_message=True)
    for open, syntax, behind in (
        ("to=functions.", HARMONY, f"<|channel|>commentary json<|message|>{_VALUE}<|call|>"),  # gpt-oss
        (">>>", FUNCTIONARY, f"\n{_VALUE}"),  # Functionary 3.2
    )
)
"""Formats that are recognised by the text before the tool's name."""
_PRINTED = (
    f"[TOOL_CALLS]\0[ARGS]{_VALUE}",  # Mistral
    f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>\0<｜tool▁sep｜>{_VALUE}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    f'<|tool_call|>[{{"name": "\0", "arguments": {_VALUE}}}]',  # Granite
    f'<|tool_call>call:\0{{{KEY}:<|"|>\0<|"|>}}<tool_call|>',  # Gemma 4
    f'<|tool_call_start|>[\0({KEY}="\0")]<|tool_call_end|>',  # LFM2
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.\0:0<|tool_call_argument_begin|>"  # Kimi K2
    f"{_VALUE}<|tool_call_end|><|tool_calls_section_end|>",
    _MESSAGES[0].printed,
    f'<tool_call>\n{{"name": "\0", "arguments": {_VALUE}}}\n</tool_call>',  # Hermes, Qwen
    f"<seed:tool_call>\n<function=\0>\n<parameter={KEY}>\0</parameter>\n</function>\n</seed:tool_call>",
    f'<function name="\0"><param name="{KEY}">\0</param></function>',  # MiniCPM5
    f'<|python_tag|>{{"name": "\0", "parameters": {_VALUE}}}',  # Llama 3
)
"""Printed calls, one for each known format, for templates that mention the marks of a format but print no
calls.
"""
_PAIRS = (("START", "END"), ("begin", "end"), ("_start", "_end"), ("prefix", "suffix"), ("open", "close"))
_JSON_START = re.compile(r'(?:\[\s*)?\{[^{}]*"\Z')


def learned(called: str, said: str = "") -> tuple[CallFormat, ...]:
    """Returns the formats of tool calls, learned from a printed call; () if the syntax of the call is
    unknown.

    called: the printed call, with "\\0" for the tool's name and the value of the argument `KEY`
    said:   a prompt without a call, which therefore lacks the marks of calls
    """
    parts = called.split("\0")
    index = next((at for at, part in enumerate(parts) if KEY in part), 0)
    if not 0 < index < len(parts) - 1:
        return ()
    before, between, behind = parts[index - 1 : index + 2]
    if message := next((one for one in _MESSAGES if before.endswith(one.open)), None):
        return (message,)
    start = _JSON_START.search(before)
    tag, close = _marks(before, behind, said, start)
    body = behind.partition(close)[0] if close else behind
    value_end, call_end, *_ = *TAG.findall(body), "", ""
    # An unclosed tag before the arguments contains the tool's name.
    unclosed = before[before.rfind("<") :] if before.rfind("<") > before.rfind(">") else ""
    lead = before.rpartition(tag)[2] if tag else start[0] if start else unclosed
    printed = f"{lead}\0{between}\0{body}"
    syntax = next((one for one in (JSON, PYTHON, GEMMA) if one.argument.search(printed)), None)
    if syntax is not None:
        if syntax is JSON and unclosed:  # Functionary 3.1 writes the tool's name inside a tag
            tag, close, printed = unclosed, value_end, printed.removeprefix(unclosed)
        syntax = NAMED if syntax is JSON and not start else syntax
        # The pattern matches the arguments and the end of the call, but not the end of the message.
        ends = re.compile(syntax.argument.pattern + r"""(?:\s*(?:[\]})]|,\s*"\w+":\s*"[^"]*"))*""")
        end = ends.search(printed)
        assert end is not None
        return (CallFormat(tag, close, syntax, printed if close and not unclosed else printed[: end.end()]),)
    prefix = lead.strip()
    if "<" not in between.partition(KEY)[0] or not value_end or not (tag or prefix):
        return ()
    if not close:
        last = call_end or value_end
        printed = f"{lead}\0{between}\0{body[: body.find(last) + len(last)]}"
    tags = Tags(printed, value_end, call_end)
    single = CallFormat(prefix, call_end, tags, printed, is_part=True)
    if not tag or (prefix and not close):
        return (single,)
    # Muse repeats the tool's name in the header of the message.
    opening = before[: before.find(tag) + len(tag)] if index > 1 else tag
    is_message = index > 1 or tag.startswith("<|open|>")
    block = CallFormat(opening, close, tags, printed, needs_close=not call_end, is_message=is_message)
    # Qwen Coder sometimes omits the mark of the block. So a call without this mark is a format too.
    return (block, single) if prefix and call_end and not is_message else (block,)


def _marks(before: str, behind: str, said: str, start: re.Match[str] | None) -> tuple[str, str]:
    """Returns the marks before and after a printed call, "" for a missing mark. start: text at which the
    call's JSON begins.
    """
    tags_behind = TAG.findall(behind)
    opens = (
        one
        for one in TAG.findall(before)
        if one not in said and not one.startswith("</") and one not in tags_behind
    )
    tag = next(opens, "")
    if not tag and start:  # the call follows a text (Command R+) or a header (GigaChat 3)
        head = before[: start.start()].strip()
        line = head[head.rfind(">") + 1 :].strip() or head.rpartition("\n")[2]
        tag = line if line not in said else ""
    closes = {tag.replace(*pair, 1) for pair in _PAIRS} | {tag.replace("<|", "<", 1).replace(">", "|>")}
    closes.add("</".join(tag.rsplit("<", 1)))
    return tag, next((one for one in tags_behind if one in closes - {tag, ""}), "")


KNOWN = tuple(one for printed in _PRINTED for one in learned(printed)[:1])
HERMES = next(one for one in KNOWN if one.open == "<tool_call>")
"""The format in which tools are described to a model whose template does not support tools."""


def formats_of(template: str, called: str = "", said: str = "") -> tuple[CallFormat, ...]:
    """Returns the formats of tool calls of a model with this chat template; () if the template does not
    support calls.

    A call that the template prints (`called` and `said`, as in `learned`) takes precedence over marks in the
    template's text.
    """
    found = learned(called, said)
    if found and found[0].open:
        return found
    mentioned = [one for one in KNOWN if one.open in template][:1]
    # Llama 3's template prints calls without a mark, but Llama 3 may write a mark.
    return (*mentioned, *(one for one in found if not mentioned))
