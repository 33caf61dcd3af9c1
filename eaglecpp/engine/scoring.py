# SPDX-License-Identifier: MIT
"""What the target thinks of a text: the log-probability of each token after those before it.

The engine computes logits only where it chooses a token, so the target is opened a second time, on its own,
when the first text is scored. Its weights are mapped from the same file; the logits of a text take four bytes
for each of its tokens and each of the vocabulary while it is scored. Neither drafter nor sampling options
play a part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from eaglecpp._extension import core
from eaglecpp.engine.params import engine_options
from eaglecpp.log import drain
from eaglecpp.options import DraftOptions, ModelOptions, Strategy

__all__ = ["Score", "Scorer"]

_LOGITS_BYTES = 64 << 20
"""Of one decode, in llama.cpp's output buffer."""
_BLOCK_ROWS = 64
"""Rows of logits that are looked at together."""


@dataclass(frozen=True)
class Score:
    """logprobs[i]: natural logarithm of the probability of `tokens[i + 1]` after `tokens[:i + 1]`. The first
    token has none: nothing comes before it.
    """

    tokens: list[int]
    logprobs: list[float]

    @property
    def total(self) -> float:
        """The logarithm of the whole text's probability, given its first token."""
        return float(np.sum(self.logprobs))

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability; 1 would be a text that is certain. NaN for a single
        token.
        """
        return float(np.exp(-np.mean(self.logprobs))) if self.logprobs else float("nan")


class Scorer:
    """A target, opened when it is first asked."""

    def __init__(self, target: Path, model: ModelOptions, n_ctx: int, n_vocab: int) -> None:
        self._path, self._model, self.n_ctx, self._n_vocab = target, model, n_ctx, n_vocab
        self._target: Any = None

    def score(self, tokens: list[int]) -> Score:
        """Raises ValueError for a text that does not fit the context."""
        if len(tokens) > self.n_ctx:
            raise ValueError(
                f"{len(tokens)} tokens, the context holds {self.n_ctx}; open the engine with a larger n_ctx, "
                "or score the text in pieces"
            )
        if len(tokens) < 2:
            return Score(list(tokens), [])
        try:
            _, logits = self._opened().forward(tokens[:-1], True)
        finally:
            drain()
        said: list[float] = []
        for at in range(0, len(logits), _BLOCK_ROWS):
            rows = logits[at : at + _BLOCK_ROWS].astype(np.float64)
            best = rows.max(axis=1)
            log_sum = best + np.log(np.exp(rows - best[:, None]).sum(axis=1))
            chosen = tokens[at + 1 : at + 1 + len(rows)]
            said += (rows[np.arange(len(rows)), chosen] - log_sum).tolist()
        return Score(list(tokens), said)

    def _opened(self) -> Any:
        if self._target is None:
            model = replace(self._model, n_ctx=self.n_ctx, n_sequences=1)
            n_rows = max(16, min(128, _LOGITS_BYTES // (4 * self._n_vocab)))
            drafting = DraftOptions(n_draft_max=n_rows - 1)  # rows with logits of one decode, less the root
            options = engine_options(self._path, None, model, drafting, Strategy("off"))
            self._target = core.Target(options, [])
        return self._target
