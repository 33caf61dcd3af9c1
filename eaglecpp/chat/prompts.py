# SPDX-License-Identifier: MIT
"""`PromptMaker`: messages to the tokens of a prompt that shares as much as possible with the one before.

Where the text of a prompt goes on from an earlier prompt, or from one and its answer, so do its tokens: the
caches then hold everything but what is new, also where the tokenizer would cut the answer's text into other
tokens than those that the model chose. That is what the model has really said, and it is what makes a second
turn cost only its new tokens, drafter included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eaglecpp.chat.conversation import fold_system
from eaglecpp.chat.gotemplate import TemplateError
from eaglecpp.chat.message import Message
from eaglecpp.chat.template import ChatTemplate

if TYPE_CHECKING:
    from eaglecpp.engine import Engine
    from eaglecpp.results import Completion

__all__ = ["Prompt", "PromptMaker"]


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation and its tokens."""

    text: str
    tokens: list[int] = field(repr=False)


class PromptMaker:
    """One for each opened engine. folds_system: the template takes no system role, see `fold_system`."""

    def __init__(self, engine: Engine, template: ChatTemplate) -> None:
        self.folds_system = False
        self._engine = engine
        self._template = template
        self._known: list[
            Prompt
        ] = []  # prompts, alone and with their answers, each the beginning of the next
        self._memo: tuple[Any, Prompt] | None = None

    @property
    def spoken_tokens(self) -> list[int]:
        """A prompt that the caches hold already, as far as they hold any."""
        return self._known[-1].tokens if self._known else self._engine.tokenize(" ")

    def prompt(self, messages: Sequence[Message], think: bool | str | None = None) -> Prompt:
        """The prompt of a conversation. Raises TemplateError."""
        key = (list(messages), think)
        if self._memo is None or self._memo[0] != key:
            self._memo = (key, self._tokenized(*self._rendered(messages, think)))
        return self._memo[1]

    def remember(self, prompt: Prompt, completion: Completion, tokens_match: bool) -> None:
        """Notes an answer, so that the next prompt can go on from it. tokens_match: its tokens say exactly
        its text.
        """
        tokens = completion.tokens
        if tokens and self._engine.native.is_eog(tokens[-1]):
            tokens = tokens[:-1]
        self._known = [known for known in self._known if prompt.text.startswith(known.text)]
        self._known.append(prompt)
        if tokens_match:
            self._known.append(Prompt(prompt.text + completion.text, [*prompt.tokens, *tokens]))
        self._memo = None

    def _rendered(self, messages: Sequence[Message], think: bool | str | None) -> tuple[str, bool]:
        folded = fold_system(messages)
        if not self.folds_system:
            try:
                rendered = self._template.render(messages, think=think)
                return rendered.text, rendered.has_bos
            except TemplateError:
                if folded == list(messages):
                    raise
        rendered = self._template.render(folded, think=think)
        self.folds_system = True
        return rendered.text, rendered.has_bos

    def _tokenized(self, text: str, has_bos: bool) -> Prompt:
        for known in reversed(self._known):
            if text.startswith(known.text):
                rest = self._engine.tokenize(text[len(known.text) :], add_bos=False)
                # Only a control token is a safe seam: beside other text tokenizers join, or insert a space.
                if not rest or not self._engine.token_to_piece(rest[0]):
                    return Prompt(text, [*known.tokens, *rest])
        return Prompt(text, self._engine.tokenize(text, add_bos=not has_bos))
