# SPDX-License-Identifier: MIT
"""Data types of training: token lists with their assistant turns, and the target's results for these lists.

The types use plain numpy, so that reading and capturing need no torch. `TrainText` comes from `data` and
`generate`, `Sample` from a `FeatureSource` (the running target, or a cache on disk).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TrainText:
    """One text as tokens.

    tokens:   i32 [S], with BOS if the model has a BOS token
    turns:    i16 [S], 0 = no loss at this token; n >= 1: inside the n-th assistant turn, including its end
              token
    n_prompt: number of tokens before the first answer, even if this answer has no loss; 0 = unknown
    """

    tokens: NDArray[np.int32]
    turns: NDArray[np.int16]
    n_prompt: int = 0


@dataclass(frozen=True)
class Sample:
    """A conversation with the target's hidden states and labels. Row p is computed after reading
    tokens[0..p].

    features:   f32 [n_aux, S, n_embd], hidden states of the extracted layers
    label_ids:  i32 [S, n_top], most probable next tokens, best first
    label_logp: f32 [S, n_top], their log-probabilities over the whole vocabulary (not renormalised)
    """

    tokens: NDArray[np.int32]
    turns: NDArray[np.int16]
    features: NDArray[np.float32]
    label_ids: NDArray[np.int32]
    label_logp: NDArray[np.float32]


class FeatureSource(Protocol):
    """A source of samples by index. An index always gives the same sample. So the trainer alone determines
    the order of the samples, and can resume exactly.
    """

    @property
    def lengths(self) -> Sequence[int]:
        """Number of tokens of each sample. It is known without computing the samples."""
        ...

    def sample(self, index: int) -> Sample:
        """Returns one sample. Raises EagleError if the target fails."""
        ...
