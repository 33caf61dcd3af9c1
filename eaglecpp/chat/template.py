# SPDX-License-Identifier: MIT
"""Which template turns a conversation into a prompt, why that one, and the prompt itself.

`ChatTemplate.choose` picks by one rule: what the Modelfile says, else what the GGUF has, else what the
store has, else the format of the model's family, else the bare prompt. `describe()` tells which and why,
because that is what people ask when a model answers oddly. Compilation waits for the first use, so that a bad
template does not keep a model from loading. `Rendered.has_bos` lets the caller tokenize without a second BOS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

from eaglecpp.chat.jinja import JinjaTemplate
from eaglecpp.chat.jinja_bounds import check_time_left
from eaglecpp.chat.message import Message
from eaglecpp.errors import InvalidValueError, TemplateError

if TYPE_CHECKING:
    from eaglecpp.chat.gotemplate.ollama import Template

__all__ = ["ChatTemplate", "Rendered", "family_names", "family_of", "is_jinja", "render_family"]


_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("chatml", ("<|im_start|>", "<|im_end|>")),
    ("llama3", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    ("llama4", ("<|header_start|>", "<|header_end|>")),
    ("gemma", ("<start_of_turn>", "<end_of_turn>")),
    ("granite", ("<|start_of_role|>", "<|end_of_role|>")),
    ("command-r", ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>")),
    ("phi3", ("<|user|>", "<|assistant|>", "<|end|>")),
    ("mistral-v3", ("[INST]", "[/INST]")),
)


def family_of(has_token: Callable[[str], bool]) -> str:
    """The family whose marks are all tokens of the vocabulary, or the empty string."""
    return next((family for family, marks in _MARKS if all(map(has_token, marks))), "")


@cache
def family_names() -> tuple[str, ...]:
    """Every family that llama.cpp knows."""
    import ctypes

    import llama_cpp

    n_names = llama_cpp.llama_chat_builtin_templates(None, 0)
    names = (ctypes.c_char_p * n_names)()
    llama_cpp.llama_chat_builtin_templates(names, n_names)
    return tuple(sorted(name.decode() for name in names if name))


def render_family(family: str, messages: Sequence[Message], add_generation_prompt: bool) -> str:
    """The conversation in a family's format. Raises TemplateError for an unknown family."""
    import ctypes

    import llama_cpp

    pairs = [(str(message.role).encode(), message.content.encode()) for message in messages]
    if any(b"\0" in text for pair in pairs for text in pair):
        raise TemplateError(
            "a message contains a NUL character, which llama.cpp's formats cannot represent", 0, name=family
        )
    chat = (llama_cpp.llama_chat_message * len(pairs))(*pairs)
    size = 4096 + 2 * sum(len(content) for _, content in pairs)
    for _ in range(2):
        buffer = ctypes.create_string_buffer(size + 1)
        needed = llama_cpp.llama_chat_apply_template(
            family.encode(), chat, len(pairs), add_generation_prompt, buffer, size
        )
        if needed < 0:
            raise TemplateError(f"llama.cpp has no chat format '{family}' for these messages", 0, name=family)
        if needed <= size:
            return buffer.raw[:needed].decode("utf-8", "replace")
        size = needed
    raise TemplateError(f"llama.cpp's format '{family}' changes its length between two calls", 0, name=family)


BARE_PROMPT = "{{ .Prompt }}"
_GO_MARK = re.compile(
    r"\{\{-?\s*(?:[.$]|/\*|(?:if|range|with|end|else|template|define|block|break|continue)\b)"
)
_JINJA_NAMES = (
    "messages message bos_token eos_token add_generation_prompt system_message raise_exception tools loop"
)
_JINJA_MARK = re.compile(rf"\{{\{{-?\s*(?:{'|'.join(_JINJA_NAMES.split())})\b")


def is_jinja(text: str) -> bool:
    """Whether a TEMPLATE is written in Jinja instead of Go's language.

    `{%` alone does not tell, it may be text of a Go template; an action that only Go has does.
    """
    if "{%" in text:
        return _GO_MARK.search(text) is None
    return _JINJA_MARK.search(text) is not None


@dataclass(frozen=True)
class Rendered:
    """A prompt. has_bos: it begins with the BOS text, so no BOS must be added when it is tokenized. images:
    by the marks that stand for them.
    """

    text: str
    has_bos: bool
    images: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the reason it was chosen.

    language: "go", "jinja", or "family" (text is then a name of llama.cpp's list)
    source:   where the text is from, as in "the Modelfile's TEMPLATE"; "" for the bare prompt and a family
    notices:  what the user should know about the choice
    """

    language: Literal["go", "jinja", "family"]
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
        modelfile: str | None = None,
        gguf: str | None = None,
        stored: str | None = None,
        choice: str = "auto",
        has_token: Callable[[str], bool] | None = None,
        bos_text: str = "",
        eos_text: str = "",
    ) -> ChatTemplate:
        """Picks one. None or "" is a template that is not there.

        modelfile: the TEMPLATE instruction; Go, or Jinja, which Ollama refuses
        gguf:      tokenizer.chat_template
        stored:    the template layer of a model in the store
        choice:    the `chat_template` pragma: auto, modelfile, gguf, raw, or a family
        has_token: whether the vocabulary has a token of that text
        Raises ValueError for a choice that is not there.
        """
        return _Chooser(modelfile, gguf, stored, bos_text, eos_text).chosen(choice, has_token)

    def describe(self) -> str:
        """One sentence: which language, from where, and why."""
        if self.language == "family":
            what = f"llama.cpp's format '{self.text}'"
        elif self.source:
            what = f"{self.language.capitalize()} template from {self.source}"
        else:
            what = "the bare prompt"
        return f"{what}: {self.reason}" if self.reason else what

    def check(self) -> None:
        """Compiles the template now. Raises TemplateError."""
        _ = self._compiled

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | str | None = None,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """The prompt of a conversation; a trailing assistant message is the start of the answer.

        think: None = as the template has it; a bool or a level such as "high"
        add_generation_prompt: open the assistant's turn; a Go template always does
        Raises TemplateError, and ValueError for a message of the wrong form.
        """
        turns = tuple(turn if isinstance(turn, Message) else Message.from_dict(turn) for turn in messages)
        prefill = ""
        if self.language != "go" and add_generation_prompt and turns and turns[-1].role == "assistant":
            prefill, turns = turns[-1].content, turns[:-1]
        check_time_left()
        compiled = self._compiled
        if isinstance(compiled, JinjaTemplate):
            values = self._variables(turns, tools, think, add_generation_prompt)
            if any(turn.tool_calls for turn in turns):
                values["messages"] = [_said(message, *self._call_form) for message in values["messages"]]
            text = compiled.render(values)
        elif compiled is not None:
            from eaglecpp.chat.gotemplate.ollama import TemplateInput

            text = compiled.render(TemplateInput(turns, tuple(tools), think))
        else:
            text = render_family(self.text, turns, add_generation_prompt)
        text += prefill
        return Rendered(text, bool(self.bos_text) and text.startswith(self.bos_text))

    def infill(self, prefix: str, suffix: str) -> Rendered | None:
        """The prompt whose answer goes between two texts; None where the template knows no `.Suffix`, or one
        of the texts is empty, which Ollama's templates are not written for. Raises TemplateError.
        """
        if self.language != "go" or not (prefix and suffix):
            return None
        from eaglecpp.chat.gotemplate.ollama import TemplateInput

        check_time_left()
        compiled = self._compiled
        assert compiled is not None and not isinstance(compiled, JinjaTemplate)
        if "suffix" not in compiled.uses:
            return None
        text = compiled.render(TemplateInput(prompt=prefix, suffix=suffix))
        return Rendered(text, bool(self.bos_text) and text.startswith(self.bos_text))

    @cached_property
    def _call_form(self) -> tuple[bool, bool]:
        """How the template wants tool calls: arguments as text, and None for a content that is empty.

        Templates differ and say so nowhere: one writes the arguments down as they are, the next turns them
        into JSON itself, a third passes over a call beside a content. So each form is tried.
        """
        compiled = self._compiled
        assert isinstance(compiled, JinjaTemplate)
        call = {
            "id": "call00001",
            "type": "function",
            "function": {"name": "probe_f", "arguments": {"probe_a": "probe_b"}},
        }
        asks = {"role": "assistant", "content": "", "tool_calls": [call]}
        told = {"role": "tool", "content": "r", "tool_call_id": "call00001", "name": "probe_f"}
        for as_text, without in ((False, False), (True, False), (False, True), (True, True)):
            values = self._variables([Message("user", "q")], (), None, False)
            values["messages"] += [_said(asks, as_text, without), told]
            try:
                text = compiled.render(values)
            except TemplateError:
                continue
            if "probe_b" in text and "'probe_a'" not in text and '\\"probe_a' not in text:
                return as_text, without
        return False, False

    @cached_property
    def _compiled(self) -> Template | JinjaTemplate | None:
        if self.language == "go":  # the interpreter loads only for a template that needs it
            from eaglecpp.chat.gotemplate.ollama import Template

            return Template.parse(self.text)
        return JinjaTemplate(self.text) if self.language == "jinja" else None

    def _variables(
        self,
        turns: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        think: bool | str | None,
        add: bool,
    ) -> dict[str, Any]:
        variables: dict[str, Any] = {
            "messages": [turn.to_dict() for turn in turns],
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
        return variables


def _said(message: Mapping[str, Any], as_text: bool, without: bool) -> dict[str, Any]:
    """A message in the form of `ChatTemplate._call_form`."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        given = function["arguments"]
        text = json.dumps(given, ensure_ascii=False) if as_text else given
        calls.append({**call, "function": {**function, "arguments": text}})
    content = message.get("content") or (None if without else "")
    return {**message, "tool_calls": calls, "content": content}


@dataclass(frozen=True)
class _Chooser:
    """The templates that are there, and the rule that picks among them."""

    modelfile: str | None
    gguf: str | None
    stored: str | None
    bos_text: str
    eos_text: str

    def chosen(self, choice: str, has_token: Callable[[str], bool] | None) -> ChatTemplate:
        asked = f"chat_template {choice} was requested"
        match choice:
            case "auto":
                return self._automatic(has_token)
            case "modelfile" if self.modelfile:
                return self._written(self.modelfile, "the Modelfile's TEMPLATE", asked)
            case "gguf" if self.gguf:
                return self._made("jinja", self.gguf, "the GGUF (tokenizer.chat_template)", asked)
            case "modelfile":
                raise InvalidValueError("chat_template modelfile: the Modelfile has no TEMPLATE")
            case "gguf":
                raise InvalidValueError("chat_template gguf: the GGUF has no tokenizer.chat_template")
            case "raw":
                return self._made("go", BARE_PROMPT, "", asked)
        if choice not in family_names():
            known = ", ".join(("auto", "modelfile", "gguf", "raw", *family_names()))
            raise InvalidValueError(f"chat_template {choice}: unknown; expected one of {known}")
        return self._made("family", choice, "", asked)

    def _automatic(self, has_token: Callable[[str], bool] | None) -> ChatTemplate:
        if self.modelfile:
            reason = "a TEMPLATE overrides the GGUF's own" if self.gguf else ""
            return self._written(self.modelfile, "the Modelfile's TEMPLATE", reason)
        if self.gguf:
            reason = "drafters are trained on it, so it overrides the stored one" if self.stored else ""
            return self._made("jinja", self.gguf, "the GGUF (tokenizer.chat_template)", reason)
        if self.stored:
            return self._written(self.stored, "the store (template layer)", "the GGUF has none")
        family = family_of(has_token) if has_token is not None else ""
        if family:
            notice = f"the model has no chat template; its vocabulary looks like {family}"
            return self._made("family", family, "", "guessed from the vocabulary", notice)
        notice = "the model has no chat template; the prompt is used as it is, as for a base model"
        return self._made("go", BARE_PROMPT, "", "no template was found", notice)

    def _written(self, text: str, source: str, reason: str) -> ChatTemplate:
        return self._made("jinja" if is_jinja(text) else "go", text, source, reason)

    def _made(
        self, language: Literal["go", "jinja", "family"], text: str, source: str, reason: str, *notices: str
    ) -> ChatTemplate:
        return ChatTemplate(language, text, source, reason, self.bos_text, self.eos_text, notices)
