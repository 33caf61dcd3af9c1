# SPDX-License-Identifier: MIT
"""Computes the acceptance length of a drafter on held-out conversations, without running the engine.

Any row of an answer could be the anchor of a chain. Depth k of a chain is accepted if all earlier depths are
accepted, and the drafter's best token at depth k is the target's most probable token. But the engine starts
chains only after the last accepted token, so the evaluation walks through each answer like the engine. A mean
over all rows would count a passage that is drafted in rounds of six tokens six times as often. On the same
answers, this mean was 2.5, while the engine measured an acceptance length of 2.2. On text written by the
target itself at temperature 0, the walk gives exactly the engine's acceptance length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from eaglecpp.train.fit.batch import Batch, make_batch, micro_batches
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.samples import FeatureSource, Sample


@dataclass(frozen=True)
class Acceptance:
    """Acceptance of a drafter. rates: acceptance rate per depth, among chains that reached this depth; an
    unreached depth has the rate of the previous depth. length: tokens per round, including the target's own
    token. n_rounds: number of rounds.
    """

    rates: tuple[float, ...]
    length: float
    n_rounds: int


@dataclass(frozen=True)
class TrainingTimeTest:
    """The training method of a drafter: chains of `n_steps` drafts that start at rows of a text. For a block
    drafter, the method uses blocks, and the positions of a block count as steps.

    later_every: steps after the first step (for a block drafter, all steps) use one row in `later_every`;
    draft_ids: i64 [n_vocab], draft id of each token, -1 outside
    """

    model: DraftModel
    draft_ids: NDArray[np.int64]
    n_steps: int = 1
    later_every: int = 1

    def batch(self, samples: Sequence[Sample], step: int) -> Batch:
        """Returns a training batch. `step` varies which rows the later steps use."""
        return self._joined(samples, self.n_steps, self.later_every, step)

    def rounds(self, samples: Sequence[Sample], depth: int) -> NDArray[np.float32]:
        """Walks through the samples' answers in rounds of `depth` drafts, comparing the best tokens of
        drafter and target. Returns the numbers of accepted and of reached drafts per depth, [2, depth].
        """
        block = self.model.spec.block
        n_slots = depth if block is None else min(depth, block.n_drafts)
        batch = self._joined(samples, n_slots, 1, 0)
        return np.pad(_walk(batch, self.model.drafts(batch)), ((0, 0), (0, depth - n_slots)))

    def _joined(self, samples: Sequence[Sample], depth: int, every: int, offset: int) -> Batch:
        model, ids = self.model, self.draft_ids
        has_blocks = model.spec.block is not None
        return make_batch(samples, ids, depth, model.fc.device, every, offset, has_blocks=has_blocks)


def evaluate(
    method: TrainingTimeTest, source: FeatureSource, indices: Sequence[int], depth: int, n_tokens: int
) -> Acceptance:
    """Measures the acceptance over some samples, in rounds of `depth` drafts. n_tokens: maximum tokens of a
    micro-batch.
    """
    accepted, reached = sums = np.zeros((2, depth), np.float32)
    for micro in micro_batches(indices, source.lengths, n_tokens):
        sums += method.rounds([source.sample(i) for i in micro], depth)
    n_rounds = int(reached[0])
    rates: list[float] = []
    for right, tried in zip(accepted.tolist(), reached.tolist(), strict=True):
        rates.append(right / tried if tried else [0.0, *rates][-1])
    return Acceptance(tuple(rates), 1.0 + float(accepted.sum()) / max(n_rounds, 1), n_rounds)


def _walk(batch: Batch, hits: Sequence[Tensor]) -> NDArray[np.float32]:
    """Walks through the answers of a batch. Returns the numbers of accepted and of reached drafts per depth,
    [2, depth]. Rows that are counted at a step are also counted at all earlier steps. Near the end of an
    answer, chains are shorter.
    """
    n_rows, depth = batch.tokens.numel(), len(hits)
    n_possible, n_accepted = np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64)
    for k, (rows, hit) in enumerate(zip(batch.counted, hits, strict=True)):
        anchors = rows.cpu().numpy()
        n_possible[anchors] += 1
        alive = anchors[n_accepted[anchors] == k]
        n_accepted[alive] += hit.cpu().numpy()[n_accepted[anchors] == k]
    sums = np.zeros((2, depth), np.float32)
    row = 0
    while row < n_rows:
        if n_possible[row]:
            sums[0, : n_accepted[row]] += 1
            sums[1, : min(n_accepted[row] + 1, n_possible[row])] += 1
        row += 1 + n_accepted[row]
    return sums
