# SPDX-License-Identifier: MIT
"""`Vocabulary`: text to tokens of the target and back."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cached_property

from eaglecpp.engine.native import NativeEngine
from eaglecpp.errors import InvalidTypeError, InvalidValueError

__all__ = ["Prompt", "Vocabulary"]

Prompt = str | bytes | Sequence[int]


class Vocabulary:
    """The target's tokenizer. `Engine` has the same methods, and documents them."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self._engine.get().n_vocab

    @property
    def bos_text(self) -> bytes:
        """The text of the BOS token, empty without one."""
        return self._special_text(self._engine.get().bos)

    @cached_property
    def border_texts(self) -> tuple[str, str]:
        """The texts of BOS and EOS, "" for none."""
        texts = self.bos_text, self._special_text(self._engine.get().eos)
        return texts[0].decode("utf-8", "replace"), texts[1].decode("utf-8", "replace")

    def tokenize(self, text: str | bytes, *, add_bos: bool = True, special: bool = True) -> list[int]:
        """As `Engine.tokenize`."""
        data = text.encode("utf-8") if isinstance(text, str) else bytes(text)
        add_special = add_bos and not (special and self.bos_text and data.startswith(self.bos_text))
        return self._engine.get().tokenize(data, add_special, special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """As `Engine.detokenize`."""
        data = self._engine.get().detokenize(self._checked(tokens), False, special)
        return data.decode("utf-8", "replace")

    def token_to_piece(self, token: int, *, special: bool = False) -> bytes:
        """As `Engine.token_to_piece`."""
        return self._engine.get().token_to_piece(token, special)

    def is_end(self, token: int) -> bool:
        """Whether a token ends a generation."""
        return self._engine.get().is_eog(token)

    def has_token(self, text: str) -> bool:
        """Whether one token has exactly this text."""
        return self.token_of(text) is not None

    def token_of(self, text: str) -> int | None:
        """The one token that this text is, None if it is several."""
        tokens = self.tokenize(text, add_bos=False)
        is_whole = len(tokens) == 1 and self.token_to_piece(tokens[0], special=True) == text.encode()
        return tokens[0] if is_whole else None

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        """As `Engine.prompt_tokens`."""
        if isinstance(prompt, str | bytes):
            tokens = self.tokenize(prompt)
        elif isinstance(prompt, Mapping) or not hasattr(prompt, "__iter__"):
            raise InvalidTypeError(
                f"prompt must be str, bytes or a list of token ids, got {type(prompt).__name__}"
            )
        else:
            tokens = self._checked(prompt)
        if not tokens:
            raise InvalidValueError("the prompt is empty and the model has no BOS token to begin with")
        return tokens

    def _special_text(self, token: int) -> bytes:
        return b"" if token < 0 else self.token_to_piece(token, special=True)

    def _checked(self, tokens: Sequence[int]) -> list[int]:
        try:
            ids, n_vocab = [operator.index(token) for token in tokens], self.size
        except TypeError as error:
            raise InvalidTypeError(f"token ids must be whole numbers: {error}") from None
        for position, token in enumerate(ids):
            if not 0 <= token < n_vocab:
                raise InvalidValueError(
                    f"token id {token} at position {position}: this model's ids are 0 to {n_vocab - 1}"
                )
        return ids
