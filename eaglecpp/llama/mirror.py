# SPDX-License-Identifier: MIT
"""`Mirror`: what programs read of a `llama_cpp.Llama` beyond what it generates. The engine answers, or the
plain twin where only llama_cpp has such a thing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from eaglecpp.engine.engine import Engine
from eaglecpp.llama.plain import ARGUMENTS, TWIN, TheirLlama

_log = logging.getLogger("eaglecpp.llama")


def _fact(read: Callable[[Engine], int], text: str) -> Callable[[Any], int]:
    """A method of llama_cpp's that tells a number."""

    def fact(self: Mirror) -> int:
        return read(self.engine)

    fact.__doc__ = text
    return fact


class Mirror(TheirLlama):  # type: ignore[misc] # llama_cpp is untyped
    """The engine and the twin are opened by `Llama`."""

    engine: Engine
    metadata: dict[str, str]
    _arguments: dict[str, Any]
    _twin_is_ahead: bool

    # Text, tokens, facts

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of UTF-8 bytes; `special`: the text of a special token becomes that token."""
        return self.engine.native.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Bytes of token ids, without the space some tokenizers put after a BOS token. `prev_tokens` is not
        needed.
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

    # State, by the twin

    def eval(self, tokens: Sequence[int]) -> None:
        """Runs tokens, by the twin; with `logits_all`, logits are in `scores`."""
        self._caught_up().eval(tokens)

    def sample(self, *args: Any, **options: Any) -> int:
        """Chooses a token from the logits of the last `eval`, by the twin."""
        return int(self._caught_up().sample(*args, **options))

    # What frameworks read

    def __getattr__(self, name: str) -> Any:
        if name in TWIN:
            return getattr(self._plain, name)
        if name in ARGUMENTS and "_arguments" in self.__dict__:
            return self._arguments[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def n_tokens(self) -> int:
        """Tokens that the model has run in the last conversation: all but the last generated one."""
        if self._twin_is_ahead:
            return int(self._plain.n_tokens)
        return max(len(self.engine.tokens) - 1, 0)

    @n_tokens.setter
    def n_tokens(self, value: int) -> None:
        self._caught_up().n_tokens = value

    @property
    def input_ids(self) -> Any:
        """The tokens that the model has run, `n_tokens` of them, in an array as long as the context."""
        return self._caught_up().input_ids

    @property
    def scores(self) -> Any:
        """Logits, by the twin: with `logits_all` a row for each token that ran."""
        return self._caught_up().scores

    @property
    def n_batch(self) -> int:
        """Prompt tokens per pass."""
        return min(int(self._arguments["n_batch"]), self.n_ctx())

    @property
    def n_threads(self) -> int:
        """Threads of decoding."""
        return int(self.engine.device_info["n_threads"])

    @property
    def n_threads_batch(self) -> int:
        """Threads of reading prompts."""
        return int(self._arguments["n_threads_batch"] or self.n_threads)

    # Inside

    @cached_property
    def _plain(self) -> Any:
        """The twin: the model opened a second time, once."""
        _log.info("%s: opened a second time, for plain decoding", self._arguments["model_path"])
        return TheirLlama(**self._arguments)

    def _caught_up(self) -> Any:
        """The twin, with the conversation that ran last: what the engine ran since is run again."""
        plain = self._plain
        if not self._twin_is_ahead:
            plain.reset()
            plain.eval(self.engine.tokens[:-1])
            self._twin_is_ahead = True
        return plain
