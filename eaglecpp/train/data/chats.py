# SPDX-License-Identifier: MIT
"""`ChatEncoder`: turns a conversation in words into the target's tokens, and marks which of them it said.

The text is rendered by `eaglecpp.chat` with the GGUF's own template, as the engine does. Where a turn begins
and ends is found by rendering the conversation's beginnings and comparing tokens, so it works for every
template and needs no `{% generation %}` marks. A turn that the comparison cannot place is left without loss
rather than guessed.
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
"""Of templates that tell the model today's date. With the real one, tomorrow's run would be one over other
tokens: no cache and no recorded answer would fit, and no training could be resumed.
"""


def open_tokenizer(target: Path) -> Engine:
    """The target opened for its tokenizer and template only: nothing repacked, the smallest context.

    Raises what `Engine.open` raises.
    """
    model = ModelOptions(n_ctx=64, n_batch=64, n_ubatch=64, n_threads=1, n_gpu_layers=0, repack="off")
    return Engine.open(target, strategy="off", model=model)


def template_of(engine: Engine) -> ChatTemplate | None:
    """The template that chats are rendered with: the GGUF's, else ChatML where its vocabulary has it; None
    for a base model.
    """
    template = engine.chat_template
    return None if template.language == "go" else template


class ChatEncoder:
    """One for each target. Raises DataError for a target without a template."""

    def __init__(self, engine: Engine, template: ChatTemplate | None = None) -> None:
        found = template or template_of(engine)
        if found is None:
            raise DataError(
                f"{engine.target_path.name}: expected a chat template (tokenizer.chat_template) for "
                "chats, found none; this is probably a base model: give it plain text"
            )
        self.template = found
        self._engine = engine

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The tokens of a conversation with the answer's turn opened. Raises TemplateError."""
        taken = accepted(messages, tools, self.template.takes, self.template.calls)
        return [int(token) for token in self._tokens(taken.messages, taken.tools, opened=True)]

    def encode(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[Tokens, NDArray[np.int16]]:
        """tokens i32 [S] and turns i16 [S] of a whole conversation: n inside the n-th assistant turn, its end
        token included, else 0. Raises TemplateError where the template refuses the conversation.
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
        """Where the tokens of turn `index` begin and end in `whole`; (0, 0) where that cannot be told.

        The turn begins where the prompt that asks for it ends. A prompt may end in something the finished
        turn does not have (an opened thinking tag), or its last token may join with the answer's first: both
        show as a difference after the question, and the turn begins there. A difference before the end of the
        question means that the template wrote the history in another way, and nothing can be said.
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
        # The turn was rendered otherwise as the last one (Qwen3 drops older thoughts): its end token tells,
        # where the template writes one.
        if self._first_end(through, n_same, len(through)) is None:
            return 0, 0
        return begin, self._first_end(whole, begin, len(whole)) or 0

    def _first_end(self, tokens: Tokens, begin: int, end: int) -> int | None:
        """The index after the first end-of-generation token of tokens[begin:end]."""
        is_eog = self._engine.native.is_eog
        return next((index + 1 for index in range(begin, end) if is_eog(int(tokens[index]))), None)

    def _tokens(self, turns: Sequence[Message], tools: Sequence[Mapping[str, Any]], opened: bool) -> Tokens:
        with rendered_at(TEMPLATE_DATE):
            rendered = self.template.render(turns, tools=tools, add_generation_prompt=opened)
        return np.array(self._engine.tokenize(rendered.text, add_bos=not rendered.has_bos), np.int32)
