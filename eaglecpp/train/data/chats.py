# SPDX-License-Identifier: MIT
"""`ChatEncoder`: turns a conversation into the target's tokens, and marks the tokens of the assistant's
turns.

The text is rendered by `eaglecpp.chat` with the GGUF's own template, as in the engine. The bounds of a turn
are found by rendering prefixes of the conversation and comparing tokens, so this works for every template and
needs no `{% generation %}` marks. A turn whose bounds cannot be found gets no loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglecpp.chat.bounds import rendered_at
from eaglecpp.chat.message import Message, Role
from eaglecpp.chat.template import ChatTemplate
from eaglecpp.chat.turns import accepted
from eaglecpp.engine.engine import Engine
from eaglecpp.engine.prompt_cache import n_common
from eaglecpp.errors import DataError, TemplateError
from eaglecpp.options import ModelOptions

Tokens = NDArray[np.int32]
TEMPLATE_DATE = datetime(2025, 7, 1, 12)
"""Fixed date for templates that show today's date. With the real date, tomorrow's run would have other
tokens: no cache and no recorded answer would fit, and no training could be resumed.
"""


def open_tokenizer(target: Path) -> Engine:
    """Opens the target only for its tokenizer and template: with the smallest context, and without repacking
    weights.

    Raises the errors of `Engine.open`.
    """
    model = ModelOptions(n_ctx=64, n_batch=64, n_ubatch=64, n_threads=1, n_gpu_layers=0, repack="off")
    return Engine.open(target, strategy="off", model=model)


def template_of(engine: Engine) -> ChatTemplate | None:
    """Returns the template for chats. This is the GGUF's template, or else ChatML if the vocabulary has
    ChatML's tokens, or None for a base model.
    """
    template = engine.chat_template
    return None if template.language == "go" else template


class ChatEncoder:
    """Encodes chats as tokens of one target. Raises DataError for a target without a template."""

    def __init__(self, engine: Engine, template: ChatTemplate | None = None) -> None:
        chosen = template or template_of(engine)
        if chosen is None:
            raise DataError(
                f"{engine.target_path.name}: expected a chat template (tokenizer.chat_template) for "
                "chats, found none; this is probably a base model: give it plain text"
            )
        self.template = chosen
        self._engine = engine

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Returns the tokens of a conversation up to the start of the answer. Raises TemplateError."""
        taken = accepted(messages, tools, self.template.takes, self.template.calls)
        return [int(token) for token in self._tokens(taken.messages, taken.tools, opened=True)]

    def encode(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[Tokens, NDArray[np.int16]]:
        """Returns tokens i32 [S] and turns i16 [S] of a whole conversation: the number n inside the n-th
        assistant turn, including its end token, and 0 elsewhere. Raises TemplateError if the template rejects
        the conversation.
        """
        taken = accepted(messages, tools, self.template.takes, self.template.calls)
        turns, tools = taken.messages, taken.tools
        whole = self._tokens(turns, tools, opened=False)
        mask, n_turns = np.zeros(len(whole), np.int16), 0
        for index, message in enumerate(turns):
            if index and message.role == Role.ASSISTANT:
                begin, end = self._span(whole, turns, index, tools)
                if end > begin:
                    n_turns += 1
                    mask[begin:end] = n_turns
        return whole, mask

    def _span(
        self, whole: Tokens, turns: Sequence[Message], index: int, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[int, int]:
        """Returns the positions in `whole` at which the turn `index` begins and ends, or (0, 0) if the
        positions cannot be found.

        The turn begins where the prompt for the turn ends. But a prompt may end in text that the finished
        turn lacks (an opened thinking tag), or the prompt's last token may merge with the answer's first
        token. In these cases the prompt and the finished conversation differ after the question, and the turn
        begins at the first difference. If they differ before the end of the question, the template rendered
        the history differently, and the bounds are unknown.
        """
        try:
            prompt = self._tokens(turns[:index], tools, opened=True)
            begin = n_common(whole, prompt)
            if begin < len(prompt) and begin < len(self._tokens(turns[:index], tools, opened=False)) - 1:
                return 0, 0
            is_last = index + 1 == len(turns)
            through = whole if is_last else self._tokens(turns[: index + 1], tools, opened=False)
        except TemplateError:
            return 0, 0
        n_same = n_common(whole, through)
        if n_same == len(through):
            end = self._first_end(whole, begin, n_same)
            return begin, n_same if end is None else end
        # A template may render the last turn differently from earlier turns. For example, Qwen3's template
        # drops the thoughts of earlier turns. Such a turn ends at its end-of-generation token, if the
        # template writes one.
        if self._first_end(through, n_same, len(through)) is None:
            return 0, 0
        return begin, self._first_end(whole, begin, len(whole)) or 0

    def _first_end(self, tokens: Tokens, begin: int, end: int) -> int | None:
        """Returns the index after the first end-of-generation token in tokens[begin:end], or None."""
        is_eog = self._engine.native.is_eog
        return next((index + 1 for index in range(begin, end) if is_eog(int(tokens[index]))), None)

    def _tokens(self, turns: Sequence[Message], tools: Sequence[Mapping[str, Any]], opened: bool) -> Tokens:
        with rendered_at(TEMPLATE_DATE):
            rendered = self.template.render(turns, tools=tools, add_generation_prompt=opened)
        return np.array(self._engine.tokenize(rendered.text, add_bos=not rendered.has_bos), np.int32)
