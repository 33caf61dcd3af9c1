# SPDX-License-Identifier: MIT
"""What flows from data to training: token lists with their assistant turns, and the target's results.

Plain numpy, so that reading and capturing need no torch. `TrainText` comes from `data` and `generate`,
`Sample` from a `FeatureSource` (the running target, or a cache on disk).
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

    tokens: i32 [S], with BOS where the model has one
    turns:  i16 [S], 0 = no loss here; n >= 1: inside the n-th assistant turn, its end token included
    n_prompt: tokens before the first answer, whether they are learnt or not; 0 = none is known
    """

    tokens: NDArray[np.int32]
    turns: NDArray[np.int16]
    n_prompt: int = 0


@dataclass(frozen=True)
class Sample:
    """A conversation with the target's view of it. Row p is what the target knows after reading tokens[0..p].

    features:   f32 [n_aux, S, n_embd], the residual streams at the aux layers
    label_ids:  i32 [S, n_top], the most probable next tokens, the best first
    label_logp: f32 [S, n_top], their log-probabilities over the whole vocabulary (never renormalised)
    """

    tokens: NDArray[np.int32]
    turns: NDArray[np.int16]
    features: NDArray[np.float32]
    label_ids: NDArray[np.int32]
    label_logp: NDArray[np.float32]


class FeatureSource(Protocol):
    """Samples by index; the same index gives the same sample each time, so order and resume are the
    trainer's.
    """

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each sample, known without making it."""
        ...

    def sample(self, index: int) -> Sample:
        """One sample. Raises EagleError when the target cannot give it."""
        ...
