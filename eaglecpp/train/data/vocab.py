# SPDX-License-Identifier: MIT
"""The draft vocabulary: the target's tokens that a drafter can propose, chosen by frequency.

This module counts the tokens of the training conversations, and computes the ids and the maps of drafter
files (`d2t`, `t2d`). A token outside the draft vocabulary is never drafted, so the coverage of this
vocabulary bounds the acceptance rate. Tokens that start or end turns are always included: they are rare in
any count, but needed in every answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eaglecpp.engine.engine import Engine
from eaglecpp.errors import InvalidValueError
from eaglecpp.train.samples import TrainText


@dataclass(frozen=True)
class DraftVocabulary:
    """The draft vocabulary. ids: i64 [n_draft_vocab], ascending target ids; n_vocab: size of the target's
    vocabulary.
    """

    ids: NDArray[np.int64] = field(repr=False)
    n_vocab: int

    @property
    def d2t(self) -> NDArray[np.int64]:
        """Map `d2t` of the drafter's file, i64 [n_draft_vocab]: the offset from each draft id to its target
        id, as in SafeAILab/EAGLE's checkpoints.
        """
        return self.ids - np.arange(len(self.ids), dtype=np.int64)

    @property
    def t2d(self) -> NDArray[np.bool_]:
        """Mask `t2d` of the drafter's file, bool [n_vocab]: True for each target token that can be
        drafted.
        """
        return self.draft_ids >= 0

    @property
    def draft_ids(self) -> NDArray[np.int64]:
        """Draft id of each target token, i64 [n_vocab]. A token outside the draft vocabulary has -1."""
        table = np.full(self.n_vocab, -1, np.int64)
        table[self.ids] = np.arange(len(self.ids))
        return table


def count(conversations: Iterable[TrainText], n_vocab: int) -> NDArray[np.int64]:
    """Returns how often each token occurs at positions with loss, i64 [n_vocab]."""
    counts = np.zeros(n_vocab, np.int64)
    for one in conversations:
        counts += np.bincount(one.tokens[one.turns > 0], minlength=n_vocab)
    return counts


def choose(counts: NDArray[np.int64], size: int, keep: Collection[int] = ()) -> DraftVocabulary:
    """Chooses the `size` most frequent tokens, always including `keep`. Of equally frequent tokens, the lower
    id is chosen. If `size` is at least the size of the vocabulary, returns the whole vocabulary.

    counts: i64 [n_vocab], the result of `count`. Raises InvalidValueError if `keep` alone exceeds the size.
    """
    n_vocab, kept = len(counts), np.unique(np.array([*keep], np.int64))
    if size < max(1, len(kept)):
        raise InvalidValueError(
            f"draft vocabulary: expected a size of at least {max(1, len(kept))} (special tokens are always "
            f"kept), found {size}"
        )
    if size >= n_vocab:
        return DraftVocabulary(np.arange(n_vocab, dtype=np.int64), n_vocab)
    rank = counts.astype(np.int64)
    rank[kept] = np.iinfo(np.int64).max
    return DraftVocabulary(np.sort(np.argsort(-rank, kind="stable")[:size]), n_vocab)


def special_tokens(engine: Engine) -> list[int]:
    """Returns the target's control tokens (without visible text) and end-of-generation tokens."""
    is_eog, text = engine.native.is_eog, engine.native.token_to_piece
    return [i for i in range(engine.n_vocab) if is_eog(i) or (not text(i, False) and text(i, True))]
