# SPDX-License-Identifier: MIT
"""`ThinkBudget`: finds the token at which an answer has thought long enough, and the text that closes it."""

from __future__ import annotations

from eaglecpp.chat.formats import Begins, Layout
from eaglecpp.chat.reader import Reader


class ThinkBudget:
    """Counts the tokens of an answer's thinking, one by one, so that the end never depends on the number of
    tokens in a round.
    """

    def __init__(self, n_max: int, tags: Layout, begins: Begins, prompt: str) -> None:
        """n_max: tokens of thinking; begins, prompt: the rendered prompt, whose end may open the thought."""
        self._n_left = n_max
        self._tags = tags
        self._reader = Reader(tags, begins)
        self._text = prompt

    @property
    def is_spent(self) -> bool:
        """Returns whether a thought is open that may not go on."""
        return self._reader.is_thinking and self._n_left <= 0

    def take(self, piece: str) -> None:
        """Takes the text of the next token, also of a control token."""
        self._text += piece
        self._n_left -= self._reader.is_thinking
        self._reader.feed(piece)

    def closing(self) -> str:
        """Returns the text that closes the open thought and begins the answer."""
        return self._tags.closing(self._text)
