# SPDX-License-Identifier: MIT
"""Scoring a text: the target's log-probability of each token, given those before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Score"]


@dataclass(frozen=True, repr=False)
class Score:
    """logprobs[i]: natural logarithm of the probability of `tokens[i + 1]` after `tokens[:i + 1]`. The first
    token has none: nothing comes before it.
    """

    tokens: list[int]
    logprobs: list[float]

    def __repr__(self) -> str:
        return f"<Score of {len(self.tokens)} tokens: perplexity {self.perplexity:.4g}>"

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
