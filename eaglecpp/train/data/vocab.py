# SPDX-License-Identifier: MIT
"""The draft vocabulary: the target's tokens that a drafter can propose, chosen by how often they occur.

Takes the tokens of the conversations that are trained on; gives ids and the maps that drafter files carry
(`d2t`, `t2d`). A token outside it is never drafted, so the coverage is an upper bound of acceptance. Tokens
that end or open turns are always kept: they are rare in any count but needed in every answer.
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
    """ids: i64 [n_draft_vocab], target ids, ascending; n_vocab: of the target."""

    ids: NDArray[np.int64] = field(repr=False)
    n_vocab: int

    @property
    def d2t(self) -> NDArray[np.int64]:
        """i64 [n_draft_vocab]: offset to add to a draft id, the form of SafeAILab/EAGLE's checkpoints."""
        return self.ids - np.arange(len(self.ids), dtype=np.int64)

    @property
    def t2d(self) -> NDArray[np.bool_]:
        """bool [n_vocab]: whether a target token can be drafted."""
        return self.draft_ids >= 0

    @property
    def draft_ids(self) -> NDArray[np.int64]:
        """i64 [n_vocab]: the draft id of each target token, -1 outside."""
        table = np.full(self.n_vocab, -1, np.int64)
        table[self.ids] = np.arange(len(self.ids))
        return table


def count(conversations: Iterable[TrainText], n_vocab: int) -> NDArray[np.int64]:
    """i64 [n_vocab]: how often each token is said where there is loss."""
    counts = np.zeros(n_vocab, np.int64)
    for one in conversations:
        counts += np.bincount(one.tokens[one.turns > 0], minlength=n_vocab)
    return counts


def choose(counts: NDArray[np.int64], size: int, keep: Collection[int] = ()) -> DraftVocabulary:
    """The `size` most frequent tokens, `keep` among them whatever their count; of equally frequent ones the
    lower id. A size of the whole vocabulary or more gives all of it.

    counts: i64 [n_vocab], see `count`. Raises InvalidValueError for a size that `keep` alone exceeds.
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
    """The target's control and end-of-generation tokens: those that show no text, or end an answer."""
    is_eog, text = engine.native.is_eog, engine.native.token_to_piece
    return [i for i in range(engine.n_vocab) if is_eog(i) or (not text(i, False) and text(i, True))]
