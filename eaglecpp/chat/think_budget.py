# SPDX-License-Identifier: MIT
"""`ThinkBudget`: finds the token at which an answer has thought long enough, and the text that closes it."""

from __future__ import annotations

from eaglecpp.chat.thinking import Begins, ThinkTags


class ThinkBudget:
    """Counts the tokens of an answer's thinking, one by one, so that the end never depends on how many tokens
    came in one round.
    """

    def __init__(self, n_max: int, tags: ThinkTags, begins: Begins, prompt: str) -> None:
        """n_max: tokens of thinking; begins, prompt: the rendered prompt, whose end may open the thought."""
        self._n_left = n_max
        self._tags = tags
        self._prompt = prompt
        self._is_open = begins == "thought"
        self._is_over = begins == "answer"
        self._text = ""
        self._seen = 0  # characters before the mark that is looked for

    @property
    def is_spent(self) -> bool:
        """Whether a thought is open that may not go on."""
        return self._is_open and self._n_left <= 0

    def take(self, piece: str) -> None:
        """Takes the text of the next token, of control tokens, too."""
        self._text += piece
        if self._is_over:
            return
        if self._tags.channels is not None and self._tags.plain in self._text[self._seen :]:
            self._is_open, self._is_over = False, True  # an answer may quote the marks
            return
        if self._is_open:
            self._n_left -= 1
        mark = self._tags.close if self._is_open else self._tags.open
        at = self._text.find(mark, self._seen)
        if at >= 0:
            self._seen = at + len(mark)
            # Thinking in tags comes once, and first.
            self._is_over = self._is_open and self._tags.channels is None
            self._is_open = not self._is_open
            return
        if not self._is_open and self._tags.channels is None:
            begun = self._text.lstrip()
            self._is_over = not (mark.startswith(begun) or begun.startswith(mark))
        n_longest = max(len(mark), len(self._tags.plain))
        self._seen = max(self._seen, len(self._text) - n_longest + 1)

    def closing(self) -> str:
        """Returns the text that closes the open thought and begins the answer."""
        return self._tags.closing(self._prompt + self._text)
