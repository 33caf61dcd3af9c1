# SPDX-License-Identifier: MIT
"""`Embedder`: turns texts into vectors with the weights of an engine.

The embedder has its own context (native/target/embedder.h), so conversations keep their caches. The embedder
checks and tokenizes all input first, then computes in steps. Conversations can run between two steps.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

from eaglecpp._extension import core
from eaglecpp.engine.native import NativeEngine, checks_arguments
from eaglecpp.engine.vocabulary import Prompt, Vocabulary
from eaglecpp.errors import ContextFullError, EagleError, InvalidTypeError, InvalidValueError
from eaglecpp.log import drain
from eaglecpp.results import Embedding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CHARS_PER_TOKEN = 16  # characters of a long text that are tokenized first, per token of the context
_SPARE_TOKENS = 64  # number of tokens to read beyond the maximum, because the cut may change the last tokens
_COUNTED_CHARS = 1 << 20  # maximum characters of a text whose tokens are counted for an error message
_NO_LOCK: AbstractContextManager[Any] = contextlib.nullcontext()


class EmbedKeywords(TypedDict, total=False):
    """Keyword arguments of `Engine.embed`. The docstring of `Engine.embed` explains them."""

    dimensions: int | None
    truncate: bool
    normalize: bool
    pooling: str | None


class Embedder:
    """Computes vectors of texts for one engine. Thread-safe: concurrent calls wait for each other."""

    def __init__(self, native: NativeEngine, vocabulary: Vocabulary) -> None:
        self._native = native
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._embedder: core.Embedder | None = None
        self._asked = ""  # pooling with which the embedder was opened

    def close(self) -> None:
        """Frees the embedder's context."""
        with self._lock:
            self._embedder = None

    def embed(
        self,
        texts: Sequence[Prompt],
        *,
        dimensions: int | None = None,
        truncate: bool = True,
        normalize: bool = True,
        pooling: str | None = None,
        n_ctx: int = 0,
        special: bool = True,
        n_before: int = 0,
        lock: AbstractContextManager[Any] = _NO_LOCK,
        is_over: Callable[[], bool] = lambda: False,
    ) -> list[Embedding]:
        """Returns the vectors of a list of texts, as `Engine.embed` does. n_ctx: maximum tokens of a text, if
        less than the engine's context; special: parse the text of special tokens; n_before: number of the
        request's texts before this list, for error messages; lock: lock to hold during each step; is_over:
        function that returns True once the vectors are no longer needed.
        """
        import numpy as np  # the import is here, because it takes 0.1 s and `eaglecpp run` needs no numpy

        if isinstance(texts, str | bytes) or not isinstance(texts, Sequence):
            raise InvalidTypeError(f"expected a list of texts, found {type(texts).__name__}")
        with self._lock:
            native = self._open(pooling or "")
            if dimensions is not None and not 1 <= dimensions <= native.n_values:
                raise InvalidValueError(
                    f"dimensions: expected 1 to {native.n_values}, this model's vector length, found "
                    f"{dimensions}"
                )
            n_max = min(n_ctx or native.n_max, native.n_max)
            read = [self._read(text, i, n_max, truncate, special) for i, text in enumerate(texts, n_before)]
            try:
                with checks_arguments():
                    native.begin([tokens for tokens, _ in read])
                has_more = bool(read)
                while has_more and not is_over():
                    with lock:
                        has_more = native.step(self._native.get().n_threads_now)
                rows = native.take()
            finally:
                drain()
        rows = rows[:, :dimensions]
        if not np.isfinite(rows).all():
            raise EagleError("the model's vectors have NaN or infinity; the model's file may be damaged")
        if normalize:
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = (rows / np.maximum(lengths, 1e-12)).astype(np.float32, copy=False)
        parts: Sequence[NDArray[np.float32]] = list(rows)
        if native.pooling == "none":
            parts = np.split(rows, np.cumsum([len(tokens) for tokens, _ in read])[:-1]) if read else []
        return [Embedding(part, len(tokens), n) for part, (tokens, n) in zip(parts, read, strict=True)]

    def _open(self, pooling: str) -> core.Embedder:
        if self._embedder is None or pooling != self._asked:
            self._embedder = None
            with checks_arguments():
                self._embedder = core.Embedder(self._native.get(), pooling)
            self._asked = pooling
        return self._embedder

    def _read(
        self, text: Prompt, index: int, n_max: int, truncate: bool, special: bool
    ) -> tuple[list[int], bool]:
        """Returns the tokens of a text, and whether the text was truncated."""
        if isinstance(text, str | bytes):
            n_chars = max(_CHARS_PER_TOKEN * n_max, 0 if truncate else _COUNTED_CHARS)
            tokens, is_whole = self._tokens(text, n_max, n_chars, special)
            n_tail = self._n_tail
        else:
            tokens, is_whole, n_tail = self._vocabulary.prompt_tokens(text), True, 0
        if not tokens:
            raise InvalidValueError(f"input {index} is empty, and the model has no BOS token; send some text")
        if len(tokens) <= n_max:
            return tokens, False
        if not truncate:
            found = f"{len(tokens)} tokens" if is_whole else f"more than {n_max} tokens"
            raise ContextFullError(
                f"input {index} has {found}, but the context holds {n_max}; shorten it, or set truncate"
            )
        return [*tokens[: n_max - n_tail], *(tokens[-n_tail:] if n_tail else [])], True

    def _tokens(self, text: str | bytes, n_max: int, n_chars: int, special: bool) -> tuple[list[int], bool]:
        """Returns the tokens of a text, and whether these are all tokens of the text. Tokenizing a long text
        stops after more than `n_max` tokens. n_chars: characters to tokenize first
        """
        whole = text if isinstance(text, str) else text.decode("utf-8", "replace")
        while True:
            tokens = self._vocabulary.read(whole[:n_chars].encode(), True, special)
            assert tokens is not None
            if n_chars >= len(whole) or len(tokens) > n_max + _SPARE_TOKENS:
                return tokens, n_chars >= len(whole)
            n_chars *= 4

    @cached_property
    def _n_tail(self) -> int:
        """Number of tokens that the model appends to every text."""
        whole, bare = (self._native.get().tokenize(b"a", special, False) for special in (True, False))
        starts = [i for i in range(len(whole)) if whole[i : i + len(bare)] == bare]
        return len(whole) - starts[0] - len(bare) if bare and starts else 0
