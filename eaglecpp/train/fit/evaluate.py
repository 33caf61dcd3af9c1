# SPDX-License-Identifier: MIT
"""What a drafter would be accepted for, measured on held-out conversations without running the engine.

Every row of an answer is taken as the anchor of a chain; depth k is a hit when all depths before it were and
the drafter's best token is the target's most probable one. On text that the target wrote itself, at
temperature 0, that is exactly what a chain drafted there would have accepted. The simulated acceptance length
uses the joint hits: a product of the depths' averages would differ (NVIDIA-NeMo/Automodel#2959).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglecpp.train.fit.batch import Batch, make_batch, micro_batches
from eaglecpp.train.fit.distributed import Ranks
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.samples import FeatureSource

__all__ = ["Acceptance", "evaluate"]


@dataclass(frozen=True)
class Acceptance:
    """rates: per depth, of the chains that reached it; length: tokens per round, the bonus token included;
    n_rows: anchors.
    """

    rates: tuple[float, ...]
    length: float
    n_rows: int


def evaluate(
    model: DraftModel,
    source: FeatureSource,
    indices: Sequence[int],
    draft_ids: NDArray[np.int64],
    depth: int,
    n_tokens: int,
    ranks: Ranks | None = None,
) -> Acceptance:
    """Runs chains of `depth` drafts over some samples, shared among all processes.

    n_tokens: most padded tokens of a micro-batch. The result is the same in every process.
    """
    ranks = ranks or Ranks()
    device = model.fc.device
    sums = torch.zeros(3, depth, device=device)  # hit with all before, reached, counted
    for micro in micro_batches(indices, source.lengths, n_tokens, ranks.rank, ranks.n):
        batch = make_batch([source.sample(i) for i in micro], draft_ids, depth, device)
        sums += _prefix_hits(batch, model.drafts(batch, depth), depth)
    hit, reached, counted = ranks.sum(sums).cpu()
    rates = (hit / reached.clamp(min=1)).tolist()
    length = 1.0 + float((hit / counted.clamp(min=1)).sum())
    return Acceptance(tuple(rates), length, int(counted[0]))


def _prefix_hits(batch: Batch, hits: Sequence[Tensor], depth: int) -> Tensor:
    """Sums over the rows of one batch, [3, depth]. The rows counted at a step were counted at all before."""
    alive = torch.ones(batch.tokens.numel(), dtype=torch.bool, device=batch.tokens.device)
    sums = torch.zeros(3, depth, device=batch.tokens.device)
    for k, hit in enumerate(hits):
        rows = batch.counted[k]
        reached = alive[rows]
        alive[rows] = joint = reached & hit
        sums[:, k] = torch.stack([joint.sum(), reached.sum(), torch.tensor(len(rows), device=hit.device)])
    return sums
