# SPDX-License-Identifier: MIT
"""Batches: which conversations make a step, and their samples as tensors.

The order depends only on seed and epoch, so a resumed run goes on where it stopped. A step takes
conversations in shuffled order until it has enough tokens. The samples of a batch lie one after another:
padding them to the longest would add a third to the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglecpp.rounds import Rounds
from eaglecpp.train.fit.attention import Layout
from eaglecpp.train.fit.loss import counted_rows
from eaglecpp.train.samples import Sample

__all__ = ["Batch", "epoch_steps", "make_batch", "micro_batches"]


_ROUND = 64
"""With chosen rows, the tokens of a batch are a multiple of it; the rows of the first step of a half, those
of the others of a quarter.
"""


@dataclass(frozen=True)
class Batch:
    """Samples of one micro-batch, N tokens altogether, idle ones at the end included. A row is a token's
    place among them; behind them come the M rejected drafts of the samples' rounds, which have no states.

    tokens:    i64 [N + M]
    features:  [N, n_aux * n_embd_target], the aux layers side by side
    label_ids: i32 [N + M, n_top], draft ids of the target's best next tokens
    label_p:   f32 [N + M, n_top], their probabilities, 0 outside the draft vocabulary
    best:      i64 [N + M], draft id of the most probable next token, -1 outside
    layout:    the samples' lengths, as attention wants them
    run:       which rows the steps make states of; None = all in every step
    counted:   for each step the rows that have loss
    places:    where the counted rows are among those that a step runs
    labels:    the rows whose labels are theirs, those whose tokens they read
    weights:   f32, what each counted row stands for, more than 1 where rows were left out
    """

    tokens: Tensor
    features: Tensor
    label_ids: Tensor
    label_p: Tensor
    best: Tensor
    layout: Layout
    run: Run | None
    counted: tuple[Tensor, ...]
    places: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]

    def without_loss(self) -> Batch:
        """The same batch with no counted row: what a process without data computes."""
        none = tuple(rows[:0] for rows in self.counted)
        return replace(self, counted=none, places=none, labels=none, weights=none)


@dataclass(frozen=True)
class Run:
    """first: i64 [n_first], the rows of the first step: those that have loss; all others are only looked at
    by attention. later: i64 [n_later], the rows of all other steps; places: where they are among `first`;
    reads: of each step after the first, the rows whose tokens they read; layout: the rows as attention wants
    them. Both end with repetitions of the last row that nobody reads, whose places are 0.
    """

    first: Tensor
    later: Tensor
    places: Tensor
    reads: tuple[Tensor, ...]
    layout: Layout


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
    """This rank's share of a step, cut into micro-batches of at most `n_tokens` tokens each (one conversation
    is never cut). Empty when there are fewer conversations than ranks.
    """
    ordered = sorted(indices, key=lambda i: (-lengths[i], i))[rank::n_ranks]
    cut: list[list[int]] = []
    room = 0
    for index in ordered:
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
    rounds: Sequence[Rounds | None] = (),
) -> Batch:
    """Joins samples.

    draft_ids: i64 [n_vocab], the draft id of each token, -1 outside. every: run only the rows that have loss,
    and in the steps after the first one in so many of them, beginning with number `offset`; None = run all.
    Then rows that mean nothing are added up to round numbers: products of sizes that come again are prepared
    once, and memory of sizes that come again is found at once. rounds: of each sample, for `every`: chains
    that read their rejected drafts run beside those that read the text.

    Features stay in fp32 until they are normed: some targets' residual streams reach thousands.
    """
    n_idle = 0 if every is None else -sum(len(sample.tokens) for sample in samples) % _ROUND
    if n_idle:
        samples = [*samples, _idle(samples[0], n_idle)]
    tokens = np.concatenate([sample.tokens for sample in samples]).astype(np.int64)
    lengths = tuple(len(sample.tokens) for sample in samples)
    turns = np.concatenate([sample.turns for sample in samples])
    # no row predicts a sample's first token; with it outside all turns, none reaches into the next sample
    turns[np.cumsum((0, *lengths[:-1]))] = 0
    n_aux, _, n_embd = samples[0].features.shape
    features = np.empty((len(tokens), n_aux, n_embd), np.float32)
    for end, sample in zip(np.cumsum(lengths), samples, strict=True):
        features[end - len(sample.tokens) : end] = sample.features.transpose(1, 0, 2)
    known = [one for one in rounds if one is not None]
    n_top = samples[0].label_ids.shape[1]
    rejected = [one.token[~one.accepted] for one in known]
    ids = draft_ids[np.concatenate([s.label_ids for s in samples] + [one.ids[:, :n_top] for one in known])]
    logp = np.concatenate([s.label_logp for s in samples] + [one.logp[:, :n_top] for one in known])
    p = np.exp(logp, dtype=np.float32)
    best = ids[:, 0].copy()
    p[ids < 0] = 0.0
    ids[ids < 0] = 0
    counted = counted_rows(turns, n_steps)
    if every is None:
        chosen = Chosen(counted, None, counted, [r + 1 + k for k, r in enumerate(counted)], [1.0] * n_steps)
    else:
        chains = _chains(rounds, lengths, counted[0], n_steps)
        chosen = _thinned(counted, lengths, every, offset, chains, device)

    def on_device(rows: Sequence[NDArray[Any]]) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(r).to(device) for r in rows)

    return Batch(
        torch.from_numpy(np.concatenate([tokens, *rejected])).to(device),
        torch.from_numpy(features).flatten(1).to(device),
        torch.from_numpy(ids.astype(np.int32)).to(device),
        torch.from_numpy(p).to(device),
        torch.from_numpy(best).to(device),
        Layout(lengths, lengths, None),
        chosen.run,
        on_device(chosen.counted),
        on_device(chosen.places),
        on_device(chosen.labels),
        on_device(
            [np.full(len(r), w, np.float32) for r, w in zip(chosen.counted, chosen.weights, strict=True)]
        ),
    )


def _idle(like: Sample, n: int) -> Sample:
    """Tokens that nobody said."""
    n_aux, _, n_embd = like.features.shape
    labels = n, like.label_ids.shape[1]
    return Sample(
        np.zeros(n, np.int32),
        np.zeros(n, np.int16),
        np.zeros((n_aux, n, n_embd), np.float32),
        np.zeros(labels, np.int32),
        np.full(labels, -np.inf, np.float32),
    )


class Chains(NamedTuple):
    """Chains that read drafts. rows: i64 [C], from which they start, ascending; reads: of each step after the
    first i64 [C], the rows whose tokens they read, -1 = they have ended; counted: bool [C], whether the draft
    that is read was rejected, or the one drafted next: other steps are those of the text's own rows.
    """

    rows: NDArray[np.int64]
    reads: list[NDArray[np.int64]]
    counted: list[NDArray[np.bool_]]


def _chains(
    rounds: Sequence[Rounds | None],
    lengths: Sequence[int],
    anchors: NDArray[np.int64],
    n_steps: int,
) -> Chains:
    """Those of all rounds that had a draft rejected within the steps. anchors: the rows that have loss."""
    rows: list[int] = []
    reads: list[list[int]] = []
    may_start = np.zeros(sum(lengths) + 1, np.bool_)
    may_start[anchors] = True
    start, extra = 0, sum(lengths)
    for one, n_tokens in zip(rounds, lengths, strict=False):
        if one is not None and n_steps > 1:
            place = np.where(one.accepted, 0, extra + np.cumsum(~one.accepted) - 1)
            at = 0
            for root, n in zip(one.root.tolist(), one.n_drafts.tolist(), strict=True):
                if root and may_start[start + root - 1]:
                    for path in _paths(one.parent[at : at + n].tolist(), n_steps - 1):
                        seen = [
                            int(place[at + node - 1]) or start + root + d for d, node in enumerate(path, 1)
                        ]
                        if seen[-1] >= extra:
                            rows.append(start + root - 1)
                            reads.append(seen + [-1] * (n_steps - 1 - len(seen)))
                at += n
            extra += len(one.ids)
        start += n_tokens
    order = np.argsort(np.array(rows, np.int64), kind="stable")
    table = np.array(reads, np.int64).reshape(len(rows), n_steps - 1)[order]
    wrong = table >= sum(lengths)
    by_step = range(n_steps - 1)
    # a step that reads the last right draft is where the wrong one was drafted
    counted = [wrong[:, k] | (wrong[:, k + 1] if k + 2 < n_steps else False) for k in by_step]
    return Chains(np.array(rows, np.int64)[order], [table[:, k] for k in by_step], counted)


def _paths(parents: Sequence[int], depth: int) -> list[list[int]]:
    """The nodes from below the root down to each leaf of a round's tree, at most so many, without those that
    are then the same.
    """
    inner = set(parents)
    found: dict[tuple[int, ...], None] = {}
    for leaf in range(1, len(parents) + 1):
        if leaf in inner:
            continue
        path = [leaf]
        while (above := parents[path[-1] - 1]) > 0:
            path.append(above)
        found[tuple(path[::-1][:depth])] = None
    return [list(path) for path in found]


class Chosen(NamedTuple):
    """As the fields of `Batch`; weights: one for each step, or of each counted row."""

    counted: list[NDArray[np.int64]]
    run: Run | None
    places: list[NDArray[np.int64]]
    labels: list[NDArray[np.int64]]
    weights: Sequence[float | NDArray[np.float32]]


def _thinned(
    counted: list[NDArray[np.int64]],
    lengths: Sequence[int],
    every: int,
    offset: int,
    chains: Chains,
    device: torch.device,
) -> Chosen:
    """The rows that count, of step 1 one in `every`, and of later steps those among them. All of them where
    that leaves nothing. Then the chains. Those that are run are filled up to round numbers.

    Neighbouring chains overlap in all but one token, so leaving out every other one loses little; a row of
    step 2 must have been run at step 1.
    """
    first = counted[0]
    of_text = counted[1] if len(counted) > 1 else first[:0]
    kept = of_text[offset % every :: every]
    of_text = kept if len(kept) else of_text
    n_tokens, n_text = sum(lengths), len(of_text)
    order = np.argsort(np.concatenate([of_text, chains.rows]), kind="stable")
    later = np.concatenate([of_text, chains.rows])[order]
    is_text = order < n_text
    rows_of, places, labels, reads = [first], [np.arange(len(first))], [first + 1], []
    weights: list[float | NDArray[np.float32]] = [1.0]
    for k in range(1, len(counted)):
        read = np.where(is_text, later + 1 + k, -1)
        read[~is_text] = chains.reads[k - 1][order[~is_text] - n_text]
        counts = is_text & np.isin(later, counted[k])
        counts[~is_text] = chains.counted[k - 1][order[~is_text] - n_text]
        n_kept = max(int((counts & is_text).sum()), 1)
        at = np.flatnonzero(counts)
        rows_of.append(later[at])
        places.append(at)
        labels.append(read[at])
        weights.append(np.where(is_text[at], len(counted[k]) / n_kept, 1.0).astype(np.float32))
        reads.append(np.maximum(read, 0))
    of_first = np.searchsorted(first, later)
    first = np.pad(first, (0, -len(first) % (_ROUND // 2)), constant_values=n_tokens - 1)
    n_idle = -len(later) % (_ROUND // 4)
    later = np.pad(later, (0, n_idle), constant_values=n_tokens - 1)
    ends = np.cumsum(lengths)
    n_of = np.diff(np.searchsorted(later, ends), prepend=0)
    starts = np.repeat(ends - lengths, n_of)
    run = Run(
        torch.from_numpy(first).to(device),
        torch.from_numpy(later).to(device),
        torch.from_numpy(np.pad(of_first, (0, n_idle))).to(device),
        tuple(torch.from_numpy(np.pad(rows, (0, n_idle))).to(device) for rows in reads),
        Layout(tuple(lengths), tuple(n_of.tolist()), torch.from_numpy(later - starts).to(device)),
    )
    return Chosen(rows_of, run, places, labels, weights)
