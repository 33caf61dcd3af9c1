# SPDX-License-Identifier: MIT
"""Which template turns a conversation into a prompt, why that one, and the prompt itself.

`ChatTemplate.choose` picks by one rule: what the Modelfile says, else what the GGUF has, else what the
store has, else ChatML where the vocabulary has its marks, else the bare prompt. `describe()` tells which and
why, because that is what people ask when a model answers oddly. Compilation waits for the first use, so that
a bad template does not keep a model from loading. `Rendered.has_bos` lets the caller tokenize without a
second BOS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from eaglecpp.chat.bounds import check_time_left
from eaglecpp.chat.call_forms import CallForm, forms_of
from eaglecpp.chat.jinja import JinjaTemplate
from eaglecpp.chat.message import Message, Role
from eaglecpp.chat.probe import Form, Takes, probe
from eaglecpp.chat.thinking import Begins, ThinkTags, layout_of, splitter, thinking_tags
from eaglecpp.errors import InvalidValueError

if TYPE_CHECKING:
    from eaglecpp.chat.go_template import Template


BARE_PROMPT = "{{ .Prompt }}"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
)
# Every block of Go's language has an end; `block`, `range` and `with` may be variables of Jinja.
_GO_MARK = re.compile(r"\{\{-?\s*(?:[.$]|/\*|end\s*-?\}\}|template\s+[\"`])")
_JINJA_NAMES = (
    "messages message bos_token eos_token add_generation_prompt system_message raise_exception tools loop"
)
_JINJA_MARK = re.compile(rf"\{{\{{-?\s*(?:{'|'.join(_JINJA_NAMES.split())})\b")


def is_jinja(text: str) -> bool:
    """Whether a TEMPLATE is written in Jinja instead of Go's language.

    `{%` alone does not tell, it may be text of a Go template; an action that only Go has does.
    """
    return _GO_MARK.search(text) is None if "{%" in text else _JINJA_MARK.search(text) is not None


Language = Literal["go", "jinja"]


_SOURCES = {
    "asked": "the command line",
    "modelfile": "the Modelfile's TEMPLATE",
    "gguf": "the GGUF (tokenizer.chat_template)",
    "stored": "the store (template layer)",
}
"""Where a template may come from; the first goes before the next."""
_BUILT_IN: dict[str, tuple[Language, str, str]] = {
    "raw": ("go", BARE_PROMPT, "the prompt is used as it is, as for a base model"),
    "chatml": ("jinja", CHATML, "ChatML is used, whose marks its vocabulary has"),
}


@dataclass(frozen=True)
class Rendered:
    """A prompt. has_bos: it begins with the BOS text, so no BOS must be added when it is tokenized. images:
    by the marks that stand for them. begins: what its answer begins with.
    """

    text: str
    has_bos: bool
    images: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    begins: Begins = "any"


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the reason it was chosen.

    source:   where the text is from, as in "the Modelfile's TEMPLATE"; "" for the bare prompt and ChatML
    notices:  what the user should know about the choice
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
        """Picks one. None or "" is a template that is not there.

        asked:     in place of all others
        modelfile: the TEMPLATE instruction; Go, or Jinja, which Ollama refuses
        gguf:      tokenizer.chat_template
        stored:    the template layer of a model in the store
        choice:    the `chat_template` pragma: auto, or one of these, raw, or chatml
        has_token: whether the vocabulary has a token of that text
        Raises ValueError for a choice that is not there.
        """

        texts = {"asked": asked, "modelfile": modelfile, "gguf": gguf, "stored": stored}
        reason = "" if choice == "asked" else f"chat_template {choice} was requested"
        name, notices = choice, ""
        if choice == "auto":
            is_chatml = has_token is not None and all(map(has_token, ("<|im_start|>", "<|im_end|>")))
            name, *others = [*filter(texts.get, texts), "chatml" if is_chatml else "raw"]
            reason = f"it overrides that of {_SOURCES[others[0]]}" if others[:1] != others[-1:] else ""
            if name in _BUILT_IN:
                reason = "no template was found"
                notices = f"the model has no chat template; {_BUILT_IN[name][2]}"
        borders = (bos_text, eos_text)
        if name in _BUILT_IN:
            language, text, _ = _BUILT_IN[name]
            return cls(language, text, "", reason, *borders, notices=(notices,) if notices else ())
        if name not in texts:
            known = ", ".join(("auto", *_SOURCES, *_BUILT_IN))
            raise InvalidValueError(f"chat_template {choice}: unknown; expected one of {known}")
        written = texts[name]
        if not written:
            raise InvalidValueError(f"chat_template {choice}: there is none in {_SOURCES[name]}")
        language = "jinja" if name == "gguf" or is_jinja(written) else "go"
        return cls(language, written, _SOURCES[name], reason, *borders)

    def describe(self) -> str:
        """One sentence: which language, from where, and why."""
        what = f"{self.language.capitalize()} template from {self.source}"
        if not self.source:
            what = "ChatML" if self.text == CHATML else "the bare prompt"
        return f"{what}: {self.reason}" if self.reason else what

    def check(self) -> None:
        """Compiles the template now. Raises TemplateError."""
        _ = self._compiled

    @cached_property
    def layout(self) -> ThinkTags | None:
        """How an answer of a model with this template is written."""
        return layout_of(self.text + self.takes.said)

    @property
    def tags(self) -> ThinkTags | None:
        """The tags around the thinking of a model with this template; None for one that does not think."""
        return thinking_tags(self.layout)

    @cached_property
    def calls(self) -> tuple[CallForm, ...]:
        """The forms in which it prints calls; () where it prints none."""
        return forms_of(self.text, self.takes.called, self.takes.said)

    @cached_property
    def takes(self) -> Takes:
        """What of a conversation reaches its prompts. Raises TemplateError."""
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
        """The prompt of a conversation; a trailing assistant message, without calls, begins the answer.

        think: None = as the template has it; a bool or a level such as "high"
        add_generation_prompt: open the assistant's turn; a Go template always does
        answers: no thought comes before the answer, unless `think` asks for one. A thought that the template
                 opens all the same, or although `think` is False, is closed.
        values: for variables that a Jinja template names, over those that `think` sets
        Raises TemplateError, and ValueError for a message of the wrong form.
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
        """The start of an answer, with the thought that is written into its content apart from it."""
        said, reader = {"thinking": message.thinking, "answer": "", "tag": ""}, splitter(self.tags)
        for part in (*reader.feed(message.content), *reader.finish()):
            said[part.kind] += part.text
        return replace(message, content=said["answer"], thinking=said["thinking"])

    def _begun(
        self, text: str, start: Message, think: bool | str | None, answers: bool
    ) -> tuple[str, Begins]:
        """A prompt with the start of its answer, and what the rest of that begins with."""
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
        compiled = self._compiled
        if not isinstance(compiled, JinjaTemplate):
            return compiled.render(turns, tools=tools, think=think)
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
        return compiled.render(variables | {name: (values or {})[name] for name in named})

    @cached_property
    def _compiled(self) -> Template | JinjaTemplate:
        if self.language == "go":  # the interpreter loads only for a template that needs it
            from eaglecpp.chat.go_template import Template

            return Template.parse(self.text)
        return JinjaTemplate(self.text)
