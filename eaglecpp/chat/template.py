# SPDX-License-Identifier: MIT
"""Chooses the template that turns a conversation into a prompt, and renders the prompt.

`ChatTemplate.choose` picks the Modelfile's template, else the GGUF's, else the store's. If all are missing,
it picks ChatML if the vocabulary has ChatML's marks, else the bare prompt. `describe()` names the choice and
the reason. A template is compiled at its first use, so an invalid template does not prevent loading a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from eaglecpp.chat.bounds import check_time_left
from eaglecpp.chat.formats import Begins, CallFormat, Layout, formats_of, layout_of, thinking_tags
from eaglecpp.chat.message import Message, Role
from eaglecpp.chat.probe import Form, Takes, probe
from eaglecpp.chat.reader import Reader
from eaglecpp.errors import InvalidValueError

BARE_PROMPT = "{{ .Prompt }}"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
)
# The pattern looks for `end`, because every block of a Go template has an end. The pattern does not look for
# `block`, `range` and `with`, because a Jinja template may use these words as variables.
_GO_MARK = re.compile(r"\{\{-?\s*(?:[.$]|/\*|end\s*-?\}\}|template\s+[\"`])")
_JINJA_NAMES = (
    "messages message bos_token eos_token add_generation_prompt system_message raise_exception tools loop"
)
_JINJA_MARK = re.compile(rf"\{{\{{-?\s*(?:{'|'.join(_JINJA_NAMES.split())})\b")


def is_jinja(text: str) -> bool:
    """Returns True if a TEMPLATE is written in Jinja, not in Go's language.

    A Go template may have `{%` in its text, so an action that exists only in Go takes precedence over `{%`.
    """
    return _GO_MARK.search(text) is None if "{%" in text else _JINJA_MARK.search(text) is not None


Language = Literal["go", "jinja"]


_SOURCES = {
    "asked": "the command line",
    "modelfile": "the Modelfile's TEMPLATE",
    "gguf": "the GGUF (tokenizer.chat_template)",
    "stored": "the store (template layer)",
}
"""Sources of templates, in order of precedence."""
_BUILT_IN: dict[str, tuple[Language, str, str]] = {
    "raw": ("go", BARE_PROMPT, "the model gets the prompt unchanged, as a base model does"),
    "chatml": ("jinja", CHATML, "ChatML is used, because the vocabulary has its tokens"),
}


@dataclass(frozen=True)
class Rendered:
    """A rendered prompt.

    has_bos: the prompt begins with the BOS text, so tokenizing must not add another BOS
    images:  images by their marks in the text
    begins: state at the beginning of the answer
    """

    text: str
    has_bos: bool
    images: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    begins: Begins = "any"


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the reason it was chosen.

    source:  where the template comes from, such as "the Modelfile's TEMPLATE"; "" for the bare prompt and
        ChatML
    notices: notices for the user about the choice
    """

    language: Language
    text: str
    source: str
    reason: str = ""
    bos_text: str = ""
    eos_text: str = ""
    notices: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def choose(
        cls,
        *,
        asked: str | None = None,
        modelfile: str | None = None,
        gguf: str | None = None,
        stored: str | None = None,
        choice: str = "auto",
        has_token: Callable[[str], bool] | None = None,
        bos_text: str = "",
        eos_text: str = "",
    ) -> ChatTemplate:
        """Returns the template to use. Pass None or "" for a source without a template.

        asked: template that replaces all others
        modelfile: the text of the TEMPLATE instruction, in Go's language or in Jinja (which Ollama refuses)
        gguf:      tokenizer.chat_template
        stored:    the template layer of a model in the store
        choice:    the `chat_template` pragma: auto, raw, chatml, or one of the sources
        has_token: function that returns whether the vocabulary has a token with exactly this text

        Raises InvalidValueError for an unknown choice and for a missing template.
        """
        texts = {"asked": asked, "modelfile": modelfile, "gguf": gguf, "stored": stored}
        reason = "" if choice == "asked" else f"chat_template {choice} was requested"
        name, notices = choice, ""
        if choice == "auto":
            is_chatml = has_token is not None and all(map(has_token, ("<|im_start|>", "<|im_end|>")))
            name, *others = [*filter(texts.get, texts), "chatml" if is_chatml else "raw"]
            reason = f"it replaces the template in {_SOURCES[others[0]]}" if others[:1] != others[-1:] else ""
            if name in _BUILT_IN:
                reason = "no template was found"
                notices = f"the model has no chat template; {_BUILT_IN[name][2]}"
        borders = (bos_text, eos_text)
        if name in _BUILT_IN:
            language, text, _ = _BUILT_IN[name]
            return cls(language, text, "", reason, *borders, notices=(notices,) if notices else ())
        if name not in texts:
            known = ", ".join(("auto", *_SOURCES, *_BUILT_IN))
            raise InvalidValueError(f"chat_template: expected one of {known}, found {choice}")
        written = texts[name]
        if not written:
            raise InvalidValueError(f"chat_template {choice}: {_SOURCES[name]} has no template")
        language = "jinja" if name == "gguf" or is_jinja(written) else "go"
        return cls(language, written, _SOURCES[name], reason, *borders)

    def describe(self) -> str:
        """Describes the template's language, its source, and why it was chosen."""
        what = f"{self.language.capitalize()} template from {self.source}"
        if not self.source:
            what = "ChatML" if self.text == CHATML else "the bare prompt"
        return f"{what}: {self.reason}" if self.reason else what

    def check(self) -> None:
        """Compiles the template now. Raises TemplateError."""
        _ = self._compiled

    @cached_property
    def layout(self) -> Layout | None:
        """The layout of answers to prompts of this template; None if the answers are plain text."""
        return layout_of(self.text + self.takes.said)

    @property
    def tags(self) -> Layout | None:
        """The layout of the answers if the model thinks; None for a model that does not think."""
        return thinking_tags(self.layout)

    @cached_property
    def calls(self) -> tuple[CallFormat, ...]:
        """The formats of tool calls that the template prints; () if it prints no calls."""
        return formats_of(self.text, self.takes.called, self.takes.said)

    @cached_property
    def takes(self) -> Takes:
        """The parts of a conversation that the template prints. Raises TemplateError."""
        return probe(self._text)

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | str | None = None,
        add_generation_prompt: bool = True,
        answers: bool = False,
        values: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """Returns the prompt of a conversation. A trailing assistant message without calls starts the answer.

        think: None for the template's default, a bool, or a level such as "high"
        add_generation_prompt: open the assistant's turn at the end; a Go template always opens it
        answers: start the answer without a thought, unless `think` requests a thought; a thought that the
            template opens is closed even if `think` is False
        values: variables of a Jinja template, which override the variables that `think` sets

        Raises TemplateError, and InvalidValueError for an invalid message.
        """
        turns = tuple(turn if isinstance(turn, Message) else Message.from_dict(turn) for turn in messages)
        start = Message(Role.ASSISTANT)
        last = turns[-1] if turns and self.language != "go" and add_generation_prompt else None
        if last is not None and last.role == Role.ASSISTANT and not last.tool_calls:
            start, turns = self._start(last), turns[:-1]
        answers = answers or bool(start.content)
        if think is None and answers and self.tags is not None:
            think = False
        check_time_left()
        form = self.takes.form if self.language == "jinja" else Form()
        text = self._text(turns, form, tools, think, add_generation_prompt, values)
        begins: Begins = "any"
        if add_generation_prompt:
            text, begins = self._begun(text, start, think, answers)
        return Rendered(text, bool(self.bos_text) and text.startswith(self.bos_text), begins=begins)

    def _start(self, message: Message) -> Message:
        """Returns the message that starts an answer. A thought in the message's content is moved to
        `thinking`.
        """
        texts, reader = {"thinking": message.thinking, "answer": "", "tag": ""}, Reader(self.tags)
        for part in (*reader.feed(message.content), *reader.finish()):
            texts[part.kind] += part.text
        return replace(message, content=texts["answer"], thinking=texts["thinking"])

    def _begun(
        self, text: str, start: Message, think: bool | str | None, answers: bool
    ) -> tuple[str, Begins]:
        """Appends the start of the answer to a prompt. Returns the prompt and the state in which the model
        continues.
        """
        tags, thought, said = self.layout, start.thinking, start.content
        if tags is None:
            return text + said, "any"
        if tags.plain and text.endswith(tags.plain):
            return text + said, "answer"
        is_open = bool(tags.open) and text.rstrip().endswith(tags.open)
        if thought and tags.open and not is_open:
            text, is_open = text + tags.open + ("\n" if tags.breaks else ""), True
        text += thought.lstrip("\n") if is_open and thought else ""
        if is_open and (said or think is False):
            return text + tags.closing(text) + said, "answer"
        if tags.plain and not is_open and (said or (answers and not think)):
            return text + tags.plain + said, "answer"
        return text + said, "thought" if is_open else "answer" if said else "any"

    def _text(
        self,
        turns: Sequence[Message],
        form: Form,
        tools: Sequence[Mapping[str, Any]],
        think: bool | str | None = None,
        add: bool = True,
        values: Mapping[str, Any] | None = None,
    ) -> str:
        if self.language == "go":
            return self._compiled(turns, tools=tools, think=think)
        variables: dict[str, Any] = {
            "messages": [form.applied(turn) for turn in turns],
            "tools": [dict(tool) for tool in tools] or None,
            "bos_token": self.bos_text,
            "eos_token": self.eos_text,
            "add_generation_prompt": add,
        }
        if think is not None:
            variables |= {
                "enable_thinking": bool(think),
                "thinking": bool(think),
                "thinking_mode": "enabled" if think else "disabled",
                "thinking_budget": -1 if think else 0,
            }
        if isinstance(think, str):
            variables["reasoning_effort"] = think
        named = [name for name in values or () if re.search(rf"\b{re.escape(name)}\b", self.text)]
        return self._compiled(variables | {name: (values or {})[name] for name in named})

    @cached_property
    def _compiled(self) -> Callable[..., str]:
        """The compiled template, which is compiled at its first use, because Jinja is slow to load."""
        if self.language == "go":
            from eaglecpp.chat.go_template import Template

            return Template.parse(self.text).render
        from eaglecpp.chat.jinja import JinjaTemplate

        return JinjaTemplate(self.text).render
