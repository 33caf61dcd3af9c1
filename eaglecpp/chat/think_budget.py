# SPDX-License-Identifier: MIT
"""`ThinkBudget`: finds the token at which a thought has used its budget, and the text that closes the
thought.
"""

from __future__ import annotations

from eaglecpp.chat.formats import Begins, Layout
from eaglecpp.chat.reader import Reader


class ThinkBudget:
    """Counts the tokens of a thought one by one, so that the end of a thought never depends on the number of
    tokens in a round.
    """

    def __init__(self, n_max: int, tags: Layout, begins: Begins, prompt: str) -> None:
        """n_max: maximum tokens of thinking; begins: state at the beginning of the answer; prompt: text of
        the rendered prompt, which may open the thought.
        """
        self._n_left = n_max
        self._tags = tags
        self._reader = Reader(tags, begins)
        self._text = prompt

    @property
    def is_spent(self) -> bool:
        """True if a thought is open and its budget is used up."""
        return self._reader.is_thinking and self._n_left <= 0

    def take(self, piece: str) -> None:
        """Counts the next token of the answer, which may be a control token. piece: text of the token."""
        self._text += piece
        self._n_left -= self._reader.is_thinking
        self._reader.feed(piece)

    def closing(self) -> str:
        """Returns the text that closes the open thought and begins the answer."""
        return self._tags.closing(self._text)
