# SPDX-License-Identifier: MIT
"""`ChatRenderer`: messages to the text of a prompt, through the chat template of the opened model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eaglecpp.engine.native import NativeEngine
from eaglecpp.engine.vocabulary import Vocabulary
from eaglecpp.errors import UnsupportedError

if TYPE_CHECKING:
    from eaglecpp.chat.template import ChatTemplate, Rendered
    from eaglecpp.store.resolve import ResolvedModel

__all__ = ["ChatRenderer"]


class ChatRenderer:
    """model: whose template, system prompt and messages are used."""

    def __init__(self, engine: NativeEngine, vocabulary: Vocabulary, model: ResolvedModel) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._model = model

    @cached_property
    def template(self) -> ChatTemplate:
        """The template that is used unless another is given, and why; the bare prompt where there is none."""
        from eaglecpp.opening.template import choose_template

        bos_text, eos_text = self._vocabulary.border_texts
        return choose_template(
            self._model,
            self._engine.get().chat_template(),
            self._vocabulary.has_token,
            bos_text=bos_text,
            eos_text=eos_text,
        )

    def render(
        self,
        messages: Sequence[Any],
        *,
        template: str | ChatTemplate | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | str | None = None,
    ) -> Rendered:
        """The prompt of a conversation; arguments and errors as `Engine.chat_prompt`."""
        if template is None:
            template = self._own()
        elif isinstance(template, str):
            from eaglecpp.chat.template import ChatTemplate

            template = ChatTemplate.from_gguf(template, *self._vocabulary.border_texts)
        return template.render(self._opened_by_model(messages), tools=tools, think=think)

    def _own(self) -> ChatTemplate:
        if not self._engine.get().chat_template() and not self._model.has_own_template:
            raise UnsupportedError(
                f"{self._model.target.name} has no chat template (tokenizer.chat_template): it is probably a "
                "base model. Use generate(), or give template="
            )
        return self.template

    def _opened_by_model(self, messages: Sequence[Any]) -> Sequence[Any]:
        """The conversation after what a stored model begins every one with, by Ollama's rule."""
        model = self._model
        if not (model.system or model.messages):
            return messages
        from eaglecpp.chat.message import Message

        turns = [turn if isinstance(turn, Message) else Message.from_dict(turn) for turn in messages]
        has_system = bool(turns) and turns[0].role == "system"
        system = [Message("system", model.system)] if model.system and not has_system else []
        return [*system, *model.messages, *turns]
