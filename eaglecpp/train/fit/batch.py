# SPDX-License-Identifier: MIT
"""Batches: which conversations make a step, and their samples as right-padded tensors.

The order depends only on seed and epoch, so a resumed run goes on where it stopped. A step takes
conversations in shuffled order until it has enough tokens; inside the step they are sorted by length and cut
into micro-batches, so that padding stays small without any step being all long or all short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglecpp.train.fit.loss import counted_rows
from eaglecpp.train.samples import Sample

__all__ = ["Batch", "epoch_steps", "make_batch", "micro_batches"]


@dataclass(frozen=True)
class Batch:
    """Samples of one micro-batch, S tokens after padding.

    tokens:    i64 [n_batch, S]
    features:  [n_batch, S, n_aux * n_embd_target], the aux layers side by side
    label_ids: i32 [n_batch * S, n_top], draft ids of the target's best next tokens
    label_p:   f32 [n_batch * S, n_top], their probabilities, 0 outside the draft vocabulary
    best:      i64 [n_batch * S], draft id of the most probable next token, -1 outside
    counted:   for each step the flat indices b * S + p of the rows that have loss
    later:     i64 [n_batch, n_later], the rows p that the steps after the first run; None = all
    places:    where the counted rows are among a step's own rows, flat; without `later` as `counted`
    scale:     what a counted row of each step stands for, more than 1 where rows were left out
    n_tokens:  without padding
    """

    tokens: Tensor
    features: Tensor
    label_ids: Tensor
    label_p: Tensor
    best: Tensor
    counted: tuple[Tensor, ...]
    later: Tensor | None
    places: tuple[Tensor, ...]
    scale: tuple[float, ...]
    n_tokens: int

    def without_loss(self) -> Batch:
        """The same batch with no counted row: what a process without data computes."""
        none = tuple(rows[:0] for rows in self.counted)
        return replace(self, counted=none, places=none)


def epoch_steps(lengths: Sequence[int], n_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """The conversations of each step of one epoch, at least `n_tokens` tokens in every step but the last."""
    order = np.random.default_rng([seed, epoch]).permutation(len(lengths))
    steps: list[list[int]] = [[]]
    filled = 0
    for index in order.tolist():
        if filled >= n_tokens:
            steps.append([])
            filled = 0
        steps[-1].append(index)
        filled += lengths[index]
    return steps


def micro_batches(
    indices: Sequence[int], lengths: Sequence[int], n_tokens: int, rank: int = 0, n_ranks: int = 1
) -> list[list[int]]:
    """This rank's share of a step, cut into micro-batches of at most `n_tokens` padded tokens each (one
    conversation is never cut). Empty when there are fewer conversations than ranks.
    """
    ordered = sorted(indices, key=lambda i: (-lengths[i], i))[rank::n_ranks]
    cut: list[list[int]] = []
    for index in ordered:
        if cut and (len(cut[-1]) + 1) * lengths[cut[-1][0]] <= n_tokens:
            cut[-1].append(index)
        else:
            cut.append([index])
    return cut


def make_batch(
    samples: Sequence[Sample],
    draft_ids: NDArray[np.int64],
    n_steps: int,
    device: torch.device,
    every: int = 1,
    offset: int = 0,
) -> Batch:
    """Pads samples to the longest.

    draft_ids: i64 [n_vocab], the draft id of each token, -1 outside. every: of the rows that count, the steps
    after the first run one in so many, beginning with number `offset`.

    Features stay in fp32 until they are normed: some targets' residual streams reach thousands.
    """
    n_rows = max(len(sample.tokens) for sample in samples)
    tokens = np.zeros((len(samples), n_rows), np.int64)
    turns = np.zeros((len(samples), n_rows), np.int16)
    n_aux, _, n_embd = samples[0].features.shape
    features = torch.zeros(len(samples), n_rows, n_aux, n_embd)
    n_top = samples[0].label_ids.shape[1]
    ids = np.full((len(samples), n_rows, n_top), -1, np.int64)
    p = np.zeros((len(samples), n_rows, n_top), np.float32)
    for b, sample in enumerate(samples):
        n = len(sample.tokens)
        tokens[b, :n], turns[b, :n] = sample.tokens, sample.turns
        features[b, :n] = torch.from_numpy(sample.features).transpose(0, 1)
        ids[b, :n], p[b, :n] = draft_ids[sample.label_ids], np.exp(sample.label_logp)
    best = ids[:, :, 0].flatten()
    p[ids < 0] = 0.0
    ids[ids < 0] = 0
    counted = counted_rows(turns, n_steps)
    chosen = None if every == 1 or n_steps == 1 else _thinned(counted, turns.shape, every, offset)
    chosen = chosen or Chosen(counted, None, counted, [1.0] * n_steps)
    return Batch(
        torch.from_numpy(tokens).to(device),
        features.flatten(2).to(device),
        torch.from_numpy(ids.astype(np.int32)).flatten(0, 1).to(device),
        torch.from_numpy(p).flatten(0, 1).to(device),
        torch.from_numpy(best).to(device),
        tuple(torch.from_numpy(rows).to(device) for rows in chosen.counted),
        None if chosen.later is None else torch.from_numpy(chosen.later).to(device),
        tuple(torch.from_numpy(rows).to(device) for rows in chosen.places),
        tuple(chosen.scale),
        sum(len(sample.tokens) for sample in samples),
    )


class Chosen(NamedTuple):
    """As the fields of `Batch`."""

    counted: list[NDArray[np.int64]]
    later: NDArray[np.int64] | None
    places: list[NDArray[np.int64]]
    scale: list[float]


def _thinned(
    counted: list[NDArray[np.int64]], shape: tuple[int, ...], every: int, offset: int
) -> Chosen | None:
    """One in `every` of the rows that count at step 1, and of later steps those among them. None when that
    leaves nothing.

    Neighbouring chains overlap in all but one token, so leaving out every other one loses little; a row of
    step 2 must have been run at step 1.
    """
    n_batch, n_tokens = shape
    kept = counted[1][offset % every :: every]
    if not len(kept):
        return None
    of_sample = [kept[kept // n_tokens == b] % n_tokens for b in range(n_batch)]
    later = np.zeros((n_batch, max(map(len, of_sample))), np.int64)
    place = np.full(n_batch * n_tokens, -1, np.int64)
    for b, rows in enumerate(of_sample):
        later[b, : len(rows)] = rows
        place[b * n_tokens + rows] = b * later.shape[1] + np.arange(len(rows))
    rows_of = [counted[0], *(rows[place[rows] >= 0] for rows in counted[1:])]
    scale = [len(all_) / max(len(rows), 1) for all_, rows in zip(counted, rows_of, strict=True)]
    return Chosen(rows_of, later, [counted[0], *(place[rows] for rows in rows_of[1:])], scale)
