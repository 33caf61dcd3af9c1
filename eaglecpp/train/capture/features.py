# SPDX-License-Identifier: MIT
"""`TargetSource`: samples straight from the running target, the same GGUF that the drafter will serve.

Features are the residual streams as the engine hands them to a drafter; labels are the most probable next
tokens with their log-probabilities under the whole vocabulary, taken from the target's own logits, quantised
output matrix included. Nothing is stored; `eaglecpp.train.capture.cache` does that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eaglecpp.engine.request import engine_options
from eaglecpp.errors import DataError, EagleError, InvalidStateError
from eaglecpp.log import drain
from eaglecpp.lowlevel import Target
from eaglecpp.opening.find import find_target
from eaglecpp.options import DraftOptions, ModelOptions, Strategy
from eaglecpp.store.facts import read_facts
from eaglecpp.train.samples import Sample, TrainText

_N_TOP = 64
_LOGITS_BYTES = 64 << 20
"""Of one decode, in llama.cpp's output buffer."""
_BLOCK_BYTES = 1 << 20
"""Of logits looked at together: what stays in a core's cache."""


class Capture(NamedTuple):
    """What the target made of a token list. features f32 [n_layers, S, n_embd], label_ids i32 [S, n_top],
    label_logp f32 [S, n_top], best first.
    """

    features: NDArray[np.float32]
    label_ids: NDArray[np.int32]
    label_logp: NDArray[np.float32]


def default_layers(n_layer: int) -> list[int]:
    """The boundary ids that EAGLE-3 drafters read, 2, n/2 and n-3 (SafeAILab/EAGLE: traineagle3); where these
    coincide, three ids spread over the blocks, or as many as there are.
    """
    if n_layer >= 7:
        return [2, n_layer // 2, n_layer - 3]
    last = max(n_layer - 1, min(n_layer, 3))
    return sorted({round(1 + (last - 1) * part / 2) for part in range(3)})


def top_labels(logits: NDArray[np.float32], n_top: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The `n_top` best tokens of each row and their log-probabilities over all tokens, best first; of equal
    ones the lower id first.

    logits: f32 [S, n_vocab]. Returns i32 and f32 [S, n_top], n_top at most n_vocab. A row with NaN or +inf
    gives NaN.
    """
    n_rows, n_vocab = logits.shape
    n_top = min(n_top, n_vocab)
    ids, logp = np.empty((n_rows, n_top), np.int32), np.empty((n_rows, n_top), np.float32)
    n_block = max(1, _BLOCK_BYTES // (4 * n_vocab))
    work = np.empty((min(n_block, n_rows), n_vocab), np.float32)
    for at in range(0, n_rows, n_block):
        block = logits[at : at + n_block]
        rows = work[: len(block)]
        chosen = _top_ids(block, n_top)
        best = block.max(axis=1, keepdims=True)
        np.subtract(block, best, out=rows)
        np.exp(rows, out=rows)
        log_sum = np.log(rows.sum(axis=1, keepdims=True, dtype=np.float64))
        values = np.take_along_axis(block, chosen, axis=1).astype(np.float64)
        ids[at : at + n_block] = chosen
        logp[at : at + n_block] = values - best - log_sum
    return ids, logp


def _top_ids(block: NDArray[np.float32], n_top: int) -> NDArray[np.intp]:
    """Ids of the best of each row, [n, n_top].

    Sorting out a whole vocabulary is most of the cost, so a bound comes first: with the tokens dealt into
    groups, the n-th best of the groups' maxima is at most the n-th best token, and few tokens reach it.
    """
    n_rows, n_vocab = block.shape
    n_group = max(1, n_vocab // (8 * n_top))
    n_groups = n_vocab // n_group
    maxima = block[:, : n_groups * n_group].reshape(n_rows, n_group, n_groups).max(axis=1)
    maxima.partition(n_groups - n_top, axis=1)
    flat = np.flatnonzero(block >= maxima[:, n_groups - n_top, None])
    starts = np.searchsorted(flat, n_vocab * np.arange(n_rows + 1))
    counts = np.diff(starts)
    if counts.min() < n_top:  # NaN reaches nothing
        return np.argsort(-block, axis=1, kind="stable")[:, :n_top]
    columns = np.arange(counts.max())
    places = np.minimum(starts[:-1, None] + columns, len(flat) - 1)  # in `flat`, rows filled up to one length
    values = block.reshape(-1)[flat][places]
    values[columns >= counts[:, None]] = -np.inf
    order = np.argsort(-values, axis=1, kind="stable")[:, :n_top]
    chosen: NDArray[np.intp] = flat[np.take_along_axis(places, order, axis=1)] % n_vocab
    return chosen


class TargetSource:
    """Captures conversations one by one, each from its first token. A `FeatureSource`.

    lengths: tokens of each conversation; layers: boundary ids of the features; n_top: labels of each row;
    n_embd, n_vocab: of the target. Used by one thread at a time. `close` frees the target.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        conversations: Sequence[TrainText],
        layers: Sequence[int] | None = None,
        model: ModelOptions | None = None,
    ) -> None:
        """Loads the target. model: how; its n_ctx is replaced by what the conversations need.

        Raises what `Engine.open` raises, MismatchError for a layer that is not there.
        """
        self.target_path: Path = find_target(target).target
        self.conversations = conversations
        self.lengths = [len(one.tokens) for one in conversations]
        self.model = model or ModelOptions()
        facts = read_facts([self.target_path])
        n_vocab = len(facts.tokens)
        self.layers = tuple(default_layers(facts.block_count or 0) if layers is None else layers)
        self.n_top = min(_N_TOP, n_vocab)
        self._target: Target | None = _open(
            self.target_path, self.layers, max(self.lengths, default=8), n_vocab, self.model
        )
        self.n_embd, self.n_vocab = self._target.n_embd, n_vocab

    def with_threads(self, n_threads: int) -> TargetSource:
        """Another one of the same conversations, with a target of its own."""
        model = replace(self.model, n_threads=n_threads, n_threads_batch=0)
        return TargetSource(self.target_path, self.conversations, self.layers, model)

    def sample(self, index: int) -> Sample:
        """Runs the target over one conversation. Raises DataError for features or logits that are no
        numbers.
        """
        one = self.conversations[index]
        try:
            captured = self.capture(one.tokens)
        except DataError as error:
            raise DataError(f"conversation {index}: {error}") from None
        return Sample(one.tokens, one.turns, *captured)

    def capture(self, tokens: NDArray[np.int32]) -> Capture:
        """What the target makes of i32 [S]. Raises DataError, and ContextFullError for too many tokens."""
        if self._target is None:
            raise InvalidStateError("this source is closed")
        try:
            features, logits = self._target.forward(tokens.tolist())
        finally:
            drain()
        if logits is None:
            raise EagleError("the target gave no logits")
        finite = np.isfinite(features).all(axis=2)
        if not finite.all():
            layer, row = (int(n) for n in np.argwhere(~finite)[0])
            raise DataError(
                f"token {row}: expected finite features, found NaN or Inf at layer id {self.layers[layer]}; "
                "the target itself is broken there, or its cache type is too narrow for it"
            )
        ids, logp = top_labels(logits, self.n_top)
        bad = np.flatnonzero(~np.isfinite(logp).all(axis=1))
        if bad.size:
            raise DataError(f"token {int(bad[0])}: expected finite logits, found NaN or Inf")
        return Capture(features, ids, logp)

    def close(self) -> None:
        """Frees the target. A second call does nothing."""
        self._target = None


def _open(path: Path, layers: Sequence[int], n_longest: int, n_vocab: int, model: ModelOptions) -> Target:
    n_rows = max(16, min(128, _LOGITS_BYTES // (4 * n_vocab)))
    drafting = DraftOptions(n_draft_max=n_rows - 1)  # rows with logits of one decode, less the root
    options = engine_options(
        path, None, replace(model, n_ctx=n_longest, n_sequences=1), drafting, Strategy.parse("off")
    )
    try:
        return Target(options, list(layers))
    finally:
        drain()
