# SPDX-License-Identifier: MIT
"""`Mirror`: the attributes and methods of a `llama_cpp.Llama` other than generation. These attributes and
methods use the engine. For state that only llama_cpp has, they use the plain twin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from eaglecpp.engine.engine import Engine
from eaglecpp.llama.plain import ARGUMENTS, TWIN, TheirLlama, open_twin

_log = logging.getLogger("eaglecpp.llama")


def _fact(read: Callable[[Engine], int], text: str) -> Callable[[Any], int]:
    """Creates a method of llama_cpp's interface that reads a number from the engine."""

    def fact(self: Mirror) -> int:
        return read(self.engine)

    fact.__doc__ = text
    return fact


class Mirror(TheirLlama):  # type: ignore[misc] # llama_cpp is untyped
    """Base class of `Llama`, which opens the engine and the plain twin."""

    engine: Engine
    metadata: dict[str, str]
    _arguments: dict[str, Any]
    _twin_is_ahead: bool

    # Methods for text and tokens, and facts

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Returns the token ids of UTF-8 bytes. `special`: turn the texts of special tokens into these
        tokens.
        """
        return self.engine.native.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Returns the UTF-8 bytes of token ids, without the space that some tokenizers put after a BOS token.
        `prev_tokens` is ignored.
        """
        text = b"".join(self.engine.token_to_piece(token, special=special) for token in tokens)
        begins = len(tokens) > 0 and tokens[0] == self.token_bos()
        return text[1:] if begins and text.startswith(b" ") else text

    n_ctx = _fact(lambda engine: engine.n_ctx, "Context length in tokens.")
    n_vocab = _fact(lambda engine: engine.n_vocab, "Size of the vocabulary.")
    n_embd = _fact(lambda engine: engine.native.n_embd, "Width of the model.")
    token_bos = _fact(lambda engine: engine.native.bos, "Id of the BOS token, -1 = none.")
    token_eos = _fact(lambda engine: engine.native.eos, "Id of the EOS token, -1 = none.")
    token_nl = _fact(lambda engine: engine.native.nl, "Id of the newline token, -1 = none.")
    _n_ctx, _n_vocab = property(n_ctx), property(n_vocab)
    _token_eos, _token_nl = property(token_eos), property(token_nl)

    # Methods for the state, which llama_cpp's own object answers

    def eval(self, tokens: Sequence[int]) -> None:
        """Runs tokens in the plain twin. With `logits_all`, `scores` then has the logits of these tokens."""
        self._caught_up().eval(tokens)

    def sample(self, *args: Any, **options: Any) -> int:
        """Samples a token in the plain twin, from the logits of the last `eval`."""
        return int(self._caught_up().sample(*args, **options))

    # Attributes that other frameworks read

    def __getattr__(self, name: str) -> Any:
        if name in TWIN:
            return getattr(self._plain, name)
        if name in ARGUMENTS and "_arguments" in self.__dict__:
            return self._arguments[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def n_tokens(self) -> int:
        """Number of tokens that are evaluated in the last conversation: all tokens except the last generated
        token.
        """
        if self._twin_is_ahead:
            return int(self._plain.n_tokens)
        return max(len(self.engine.tokens) - 1, 0)

    @n_tokens.setter
    def n_tokens(self, value: int) -> None:
        self._caught_up().n_tokens = value

    @property
    def input_ids(self) -> Any:
        """The `n_tokens` evaluated tokens, in an array as long as the context."""
        return self._caught_up().input_ids

    @property
    def scores(self) -> Any:
        """Logits of the plain twin. With `logits_all`, there is a row for each evaluated token."""
        return self._caught_up().scores

    @property
    def n_batch(self) -> int:
        """Maximum prompt tokens per forward pass."""
        return min(int(self._arguments["n_batch"]), self.n_ctx())

    @property
    def n_threads(self) -> int:
        """Number of threads for decoding."""
        return int(self.engine.device_info["n_threads"])

    @property
    def n_threads_batch(self) -> int:
        """Number of threads for prompt processing."""
        return int(self._arguments["n_threads_batch"] or self.n_threads)

    # Private methods

    @cached_property
    def _plain(self) -> Any:
        """The plain twin: a second instance of the model, which is opened at its first use."""
        _log.info("opening %s a second time, for decoding without drafts", self._arguments["model_path"])
        return open_twin(self._arguments)

    def _caught_up(self) -> Any:
        """Returns the plain twin, after it has evaluated the tokens that the engine has evaluated since the
        last use.
        """
        plain = self._plain
        if not self._twin_is_ahead:
            plain.reset()
            plain.eval(self.engine.tokens[:-1])
            self._twin_is_ahead = True
        return plain
