# SPDX-License-Identifier: MIT
"""The tokens of a prompt that shares as much as possible with the prompts and answers before it.

If the text of a prompt continues an earlier prompt, or one and its answer, so do its tokens. The caches then
have everything except what is new, even if the tokenizer would split the answer's text into other tokens than
those that the model chose. That is what the model has really said, and it makes a second turn cost only its
new tokens, drafter included.

`PromptMemory` does that for rendered texts, `PromptMaker` renders messages through one template as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from eaglecpp.chat.conversation import fold_system
from eaglecpp.chat.gotemplate.errors import TemplateError
from eaglecpp.chat.message import Message

if TYPE_CHECKING:
    from eaglecpp.chat.template import ChatTemplate
    from eaglecpp.results import Completion

__all__ = ["Prompt", "PromptMaker", "PromptMemory", "Tokenizer"]


class Tokenizer(Protocol):
    """What is needed of the engine's vocabulary."""

    def tokenize(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Token ids of a text."""
        ...

    def token_to_piece(self, token: int) -> bytes:
        """Bytes of a token, empty for a control token."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether a token ends a generation."""
        ...


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation and its tokens."""

    text: str
    tokens: list[int] = field(repr=False)


class PromptMemory:
    """What one conversation's caches hold, as texts with their tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # prompts, alone and with their answers, each the beginning of the next
        self._known: list[Prompt] = []

    @property
    def last_tokens(self) -> list[int]:
        """A prompt that the caches hold already, as far as they hold any."""
        return self._known[-1].tokens if self._known else self._tokenizer.tokenize(" ")

    def prompt(self, text: str, has_bos: bool) -> Prompt:
        """The tokens of a rendered text. has_bos: it begins with the BOS text, so no BOS is added."""
        for known in reversed(self._known):
            if text.startswith(known.text):
                rest = self._tokenizer.tokenize(text[len(known.text) :], add_bos=False)
                # Only a control token is a safe seam: beside other text tokenizers join, or insert a space.
                if not rest or not self._tokenizer.token_to_piece(rest[0]):
                    return Prompt(text, [*known.tokens, *rest])
        return Prompt(text, self._tokenizer.tokenize(text, add_bos=not has_bos))

    def remember(self, prompt: Prompt, completion: Completion) -> None:
        """Notes an answer, so that the next prompt can go on from it, where its tokens say exactly its text:
        a stop string cuts the text and not the tokens.
        """
        tokens, tokenizer = completion.tokens, self._tokenizer
        if tokens and tokenizer.is_end(tokens[-1]):
            tokens = tokens[:-1]
        self._known = [known for known in self._known if prompt.text.startswith(known.text)]
        self._known.append(prompt)
        said = b"".join(map(tokenizer.token_to_piece, tokens)).decode("utf-8", "replace")
        if said == completion.text and "\ufffd" not in said:
            self._known.append(Prompt(prompt.text + said, [*prompt.tokens, *tokens]))

    def clear(self) -> None:
        """Forgets everything, as the caches did."""
        self._known.clear()


class PromptMaker:
    """Messages to prompts, for one opened model. folds_system: the template takes no system role, see
    `fold_system`.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.folds_system = False
        self._template = template
        self._memory = PromptMemory(tokenizer)
        self._last: tuple[Any, Prompt] | None = None

    @property
    def spoken_tokens(self) -> list[int]:
        """A prompt that the caches hold already, as far as they hold any."""
        return self._memory.last_tokens

    def prompt(self, messages: Sequence[Message], think: bool | str | None = None) -> Prompt:
        """The prompt of a conversation. Raises TemplateError."""
        key = (list(messages), think)
        if self._last is None or self._last[0] != key:
            self._last = (key, self._memory.prompt(*self._rendered(messages, think)))
        return self._last[1]

    def remember(self, prompt: Prompt, completion: Completion) -> None:
        """Notes an answer, so that the next prompt can go on from it."""
        self._memory.remember(prompt, completion)
        self._last = None

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
