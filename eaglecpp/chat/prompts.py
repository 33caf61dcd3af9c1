# SPDX-License-Identifier: MIT
"""`PromptMemory`: tokens of a prompt that shares as much as possible with those and the answers before it.

If the text of a prompt continues an earlier prompt, or one and its answer, so do its tokens. The caches then
have everything except what is new, even if the tokenizer would split the answer's text into other tokens than
those that the model chose. That is what the model has really said, and it makes a second turn cost only its
new tokens, drafter included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eaglecpp.chat.template import Rendered

if TYPE_CHECKING:
    from eaglecpp.engine.vocabulary import Vocabulary
    from eaglecpp.results import Completion

__all__ = ["PromptMemory"]


class PromptMemory:
    """What one conversation's caches hold, as texts with their tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # prompts, alone and with their answers, each the beginning of the next
        self._known: list[tuple[str, Sequence[int]]] = []

    @property
    def last_tokens(self) -> Sequence[int]:
        """A prompt that the caches hold already, as far as they hold any."""
        return self._known[-1][1] if self._known else self._vocabulary.tokenize(" ")

    def tokens(self, prompt: Rendered, n_ctx: int | None = None) -> list[int]:
        """The tokens of a prompt. n_ctx: raises ContextFullError for one that leaves no room there, 0 = in
        the engine's context; None = of any length.
        """
        known = self.continued(prompt)
        if known is not None:
            return known
        add_bos = not prompt.has_bos
        if n_ctx is None:
            return self._vocabulary.tokenize(prompt.text, add_bos=add_bos)
        return self._vocabulary.fitting(prompt.text, add_bos=add_bos, n_ctx=n_ctx)

    def continued(self, prompt: Rendered) -> list[int] | None:
        """The tokens of a prompt that goes on from what is known; None if it does not."""
        for known, tokens in reversed(self._known):
            if prompt.text.startswith(known):
                rest = self._vocabulary.tokenize(prompt.text[len(known) :], add_bos=False)
                # Only a control token is a safe seam: beside other text tokenizers join, or insert a space.
                if not rest or not self._vocabulary.token_to_piece(rest[0]):
                    return [*tokens, *rest]
        return None

    def remember(self, prompt: Rendered, completion: Completion) -> None:
        """Notes an answer, so that the next prompt can go on from it, where its tokens say exactly its text:
        a stop string cuts the text and not the tokens.
        """
        tokens, vocabulary = completion.tokens, self._vocabulary
        if tokens and vocabulary.is_end(tokens[-1]):
            tokens = tokens[:-1]
        self._known = [known for known in self._known if prompt.text.startswith(known[0])]
        self._known.append((prompt.text, completion.prompt_tokens))
        said = b"".join(map(vocabulary.token_to_piece, tokens)).decode("utf-8", "replace")
        if said == completion.text and "\ufffd" not in said:
            self._known.append((prompt.text + said, [*completion.prompt_tokens, *tokens]))

    def clear(self) -> None:
        """Forgets everything, as the caches did."""
        self._known.clear()
