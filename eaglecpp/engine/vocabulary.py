# SPDX-License-Identifier: MIT
"""`Vocabulary`: text to tokens of the target and back."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cached_property

from eaglecpp.engine.native import NativeEngine
from eaglecpp.errors import ContextFullError, InvalidTypeError, InvalidValueError

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
        data, add_special = self._to_tokenize(text, add_bos, special)
        tokens = self._engine.get().tokenize(data, add_special, special)
        assert tokens is not None
        return tokens

    def fitting(self, text: str | bytes, *, add_bos: bool = True, n_ctx: int = 0) -> list[int]:
        """The token ids of a prompt's text that leaves room for an answer in a context of `n_ctx` tokens, 0 =
        the engine's. What cannot fit is not tokenised. Raises ContextFullError.
        """
        native = self._engine.get()
        n_ctx = n_ctx or native.n_ctx
        data, add_special = self._to_tokenize(text, add_bos, True)
        tokens = native.tokenize(data, add_special, True, n_ctx - 1)
        if tokens is None:
            raise self._context_full(f"at least {n_ctx} tokens", n_ctx)
        return tokens

    def check_fit(self, n_prompt: int) -> None:
        """Raises ContextFullError for a prompt that leaves no room for an answer."""
        n_ctx = self._engine.get().n_ctx
        if n_prompt >= n_ctx:
            raise self._context_full(f"{n_prompt} tokens", n_ctx)

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

    def prompt_tokens(self, prompt: Prompt, *, has_to_fit: bool = False) -> list[int]:
        """As `Engine.prompt_tokens`. has_to_fit: raises ContextFullError for one that leaves no room for an
        answer.
        """
        if isinstance(prompt, str | bytes):
            tokens = self.fitting(prompt) if has_to_fit else self.tokenize(prompt)
        elif isinstance(prompt, Mapping) or not hasattr(prompt, "__iter__"):
            raise InvalidTypeError(
                f"prompt must be str, bytes or a list of token ids, got {type(prompt).__name__}"
            )
        else:
            if has_to_fit and hasattr(prompt, "__len__"):
                self.check_fit(len(prompt))
            tokens = self._checked(prompt)
        if not tokens:
            raise InvalidValueError("the prompt is empty and the model has no BOS token to begin with")
        return tokens

    def _to_tokenize(self, text: str | bytes, add_bos: bool, special: bool) -> tuple[bytes, bool]:
        """The bytes, and whether llama.cpp has to add a BOS token to them."""
        data = text.encode("utf-8") if isinstance(text, str) else bytes(text)
        return data, add_bos and not (special and self.bos_text and data.startswith(self.bos_text))

    def _context_full(self, found: str, n_ctx: int) -> ContextFullError:
        n_train = self._engine.get().n_ctx_train
        return ContextFullError(
            f"the prompt has {found}, but the context has {n_ctx} and the answer needs room; raise n_ctx "
            f"(the model was trained for {n_train}) or shorten the prompt"
        )

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
