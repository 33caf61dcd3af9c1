# SPDX-License-Identifier: MIT
"""Batches: the conversations of a step, and their samples as tensors.

The order depends only on seed and epoch, so that a resumed run continues exactly. A step takes conversations
in shuffled order until it has enough tokens. The samples of a batch are concatenated, because padding all
samples to the length of the longest would add a third to the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglecpp.train.fit.attention import Spans, takes_mask
from eaglecpp.train.fit.loss import counted_rows
from eaglecpp.train.samples import Sample

_ROUND = 64
"""With selected rows, the tokens of a batch are padded to a multiple of this, the rows of the first step to a
multiple of its half, and the rows of later steps to a multiple of its quarter.
"""


@dataclass(frozen=True)
class Batch:
    """Samples of one micro-batch, N tokens in total, including padding at the end. A row is a token's index.

    tokens:    i64 [N]
    features:  [N, n_aux * n_embd_target], extracted layers concatenated
    label_ids: i32 [N, n_top], draft ids of the target's best next tokens
    label_p:   f32 [N, n_top], their probabilities, 0 outside the draft vocabulary
    outside:   f32 [N], probability of the labels outside the draft vocabulary
    best:      i64 [N], draft id of the most probable next token, -1 outside
    layout:    lengths of the samples, for attention
    run:       rows that the steps compute; None = all rows in every step
    counted:   rows with loss in each step; at step k such a row reads the token and the labels at position
    row + 1 + k
    places:    indices of the counted rows among the computed rows
    weights:   weight of a counted row in each step, above 1 if rows were left out
    """

    tokens: Tensor
    features: Tensor
    label_ids: Tensor
    label_p: Tensor
    outside: Tensor
    best: Tensor
    layout: Spans
    run: StepRows | None
    counted: tuple[Tensor, ...]
    places: tuple[Tensor, ...]
    weights: tuple[float, ...]

    @property
    def n_steps(self) -> int:
        """Number of steps of training-time test."""
        return len(self.counted)


@dataclass(frozen=True)
class StepRows:
    """Rows that the steps compute.

    first: i64 [n_first], rows of the first step with loss; all other rows are only read by attention
    later: i64 [n_later], rows of all other steps; for a block drafter, of all steps
    places: indices of `later` among `first`; layout: lengths of the samples, for attention. Both lists end
    with copies of the last row as padding; the places of these copies are 0.
    """

    first: Tensor
    later: Tensor
    places: Tensor
    layout: Spans


def epoch_steps(lengths: Sequence[int], n_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Returns the conversations of each step of an epoch. All steps except the last have at least `n_tokens`
    tokens.
    """
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


def micro_batches(indices: Sequence[int], lengths: Sequence[int], n_tokens: int) -> list[list[int]]:
    """Splits a step into micro-batches of up to `n_tokens` tokens. Conversations are never cut."""
    cut: list[list[int]] = []
    room = 0
    for index in sorted(indices, key=lambda i: (-lengths[i], i)):
        if lengths[index] > room or not cut:
            cut.append([])
            room = n_tokens
        cut[-1].append(index)
        room -= lengths[index]
    return cut


def make_batch(
    samples: Sequence[Sample],
    draft_ids: NDArray[np.int64],
    n_steps: int,
    device: torch.device,
    every: int | None = None,
    offset: int = 0,
    *,
    has_blocks: bool = False,
) -> Batch:
    """Concatenates samples into a `Batch`.

    draft_ids: i64 [n_vocab], draft id of each token, -1 outside
    every: compute only rows with loss, and in later steps every n-th of these rows, starting at `offset`.
        With None, all rows are computed. With 1, all rows are computed if attention to selected rows is slow.
        Rows are padded to round numbers, so that prepared products and freed memory of the same size are
        reused.
    has_blocks: True for a block drafter. All steps of a block drafter use the same rows, the anchors: one row
        in `every`, drawn again for each `offset`

    Features stay in fp32 until they are normalised, because some targets' hidden states reach thousands.
    """
    if every == 1 and not takes_mask(device) and not has_blocks:
        every = None
    n_idle = 0 if every is None else -sum(len(sample.tokens) for sample in samples) % _ROUND
    if n_idle:
        samples = [*samples, _idle(samples[0], n_idle)]
    tokens = np.concatenate([sample.tokens for sample in samples]).astype(np.int64)
    lengths = tuple(len(sample.tokens) for sample in samples)
    turns = np.concatenate([sample.turns for sample in samples])
    # No row predicts the first token of a sample. So this token gets the turn number 0, which means outside
    # all turns. Otherwise a turn could reach into the next sample.
    turns[np.cumsum((0, *lengths[:-1]))] = 0
    n_aux, _, n_embd = samples[0].features.shape
    features = np.empty((len(tokens), n_aux, n_embd), np.float32)
    for end, sample in zip(np.cumsum(lengths), samples, strict=True):
        features[end - len(sample.tokens) : end] = sample.features.transpose(1, 0, 2)
    ids = draft_ids[np.concatenate([sample.label_ids for sample in samples])]
    p = np.exp(np.concatenate([sample.label_logp for sample in samples]), dtype=np.float32)
    best = ids[:, 0].copy()
    outside = np.where(ids < 0, p, 0.0).sum(1, dtype=np.float32)
    p[ids < 0] = 0.0
    ids[ids < 0] = 0
    counted = counted_rows(turns, n_steps)
    run, places, weights = None, counted, [1.0] * n_steps
    if every is not None:
        thinned = _thinned(counted, lengths, every, offset, device, has_blocks=has_blocks)
        counted, run, places, weights = thinned

    def on_device(rows: Sequence[NDArray[Any]]) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(r).to(device) for r in rows)

    return Batch(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(features).flatten(1).to(device),
        torch.from_numpy(ids.astype(np.int32)).to(device),
        torch.from_numpy(p).to(device),
        torch.from_numpy(outside).to(device),
        torch.from_numpy(best).to(device),
        Spans(lengths, lengths, None),
        run,
        on_device(counted),
        on_device(places),
        tuple(weights),
    )


def _idle(like: Sample, n: int) -> Sample:
    """Returns a sample of padding tokens, which have no labels."""
    n_aux, _, n_embd = like.features.shape
    labels = n, like.label_ids.shape[1]
    return Sample(
        np.zeros(n, np.int32),
        np.zeros(n, np.int16),
        np.zeros((n_aux, n, n_embd), np.float32),
        np.zeros(labels, np.int32),
        np.full(labels, -np.inf, np.float32),
    )


def _thinned(
    counted: list[NDArray[np.int64]],
    lengths: Sequence[int],
    every: int,
    offset: int,
    device: torch.device,
    *,
    has_blocks: bool,
) -> tuple[list[NDArray[np.int64]], StepRows, list[NDArray[np.int64]], list[float]]:
    """Selects the counted rows. Later steps count one row in `every`. All steps of a block drafter count the
    same random anchors. If no row would be left, all rows are counted. Returns the rows of each step, the run
    (padded to round numbers), and the rows' places and weights, as in `Batch`.

    Neighbouring chains overlap in all but one token, so leaving out every other chain loses little. A row of
    a later step must also be computed in the first step.
    """
    first = counted[0]
    if has_blocks:
        n = max(len(first) // every, min(len(first), 1))
        first = later = np.sort(np.random.default_rng(offset).permutation(first)[:n])
    else:
        later = counted[1] if len(counted) > 1 else first[:0]
        selected = later[offset % every :: every]
        later = selected if len(selected) else later
    rows_of, places, weights = [], [], []
    for k, of_step in enumerate(counted):
        rows = later if k else first
        at = np.flatnonzero(np.isin(rows, of_step))
        rows_of.append(rows[at])
        places.append(at)
        weights.append(len(of_step) / max(len(at), 1))
    of_first = np.searchsorted(first, later)
    # each anchor adds a block of rows
    n_tokens, n_idle = sum(lengths), -len(later) % (_ROUND // (8 if has_blocks else 4))
    first = np.pad(first, (0, -len(first) % (_ROUND // 2)), constant_values=n_tokens - 1)
    later = np.pad(later, (0, n_idle), constant_values=n_tokens - 1)
    run = StepRows(
        torch.from_numpy(first).to(device),
        torch.from_numpy(later).to(device),
        torch.from_numpy(np.pad(of_first, (0, n_idle))).to(device),
        _layout_of(later, lengths, device),
    )
    return rows_of, run, places, weights


def _layout_of(rows: NDArray[np.int64], lengths: Sequence[int], device: torch.device) -> Spans:
    """Returns the layout for attention of rows in ascending order."""
    ends = np.cumsum(lengths)
    n_of = np.diff(np.searchsorted(rows, ends), prepend=0)
    at = torch.from_numpy(rows - np.repeat(ends - lengths, n_of)).to(device)
    return Spans(tuple(lengths), tuple(n_of.tolist()), at)
