# SPDX-License-Identifier: MIT
"""Tests the draft vocabulary: the chosen tokens, their order, and the maps."""

from __future__ import annotations

import numpy as np
import pytest

from eaglecpp.train.data.chats import open_tokenizer
from eaglecpp.train.data.vocab import choose, count, special_tokens
from eaglecpp.train.samples import TrainText
from helpers.models import Models


def counts_of(*counts: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(counts, np.int64)


def test_the_most_frequent_are_kept_and_the_lower_of_equal_ones() -> None:
    assert choose(counts_of(5, 1, 9, 1, 5, 5), 4).ids.tolist() == [0, 2, 4, 5]
    assert choose(counts_of(5, 1, 9, 1, 5, 5), 2).ids.tolist() == [0, 2]
    assert choose(counts_of(5, 1, 9, 1, 5, 5), 5).ids.tolist() == [0, 1, 2, 4, 5]


def test_special_tokens_stay_with_any_count() -> None:
    assert choose(counts_of(0, 7, 8, 9, 0), 3, keep=[4, 0]).ids.tolist() == [0, 3, 4]


def test_the_maps_agree_with_the_ids(rng: np.random.Generator) -> None:
    vocab = choose(rng.integers(0, 50, 400), 90, keep=[399, 17])
    assert (np.diff(vocab.ids) > 0).all()
    assert (np.arange(90) + vocab.d2t == vocab.ids).all()
    assert vocab.d2t.dtype == np.int64
    assert np.flatnonzero(vocab.t2d).tolist() == vocab.ids.tolist()
    assert (vocab.draft_ids[vocab.ids] == np.arange(90)).all()
    assert (vocab.draft_ids >= 0).sum() == 90


def test_a_size_of_the_whole_vocabulary_is_the_identity() -> None:
    vocab = choose(counts_of(1, 0, 3), 10)
    assert vocab.ids.tolist() == [0, 1, 2]
    assert vocab.d2t.tolist() == [0, 0, 0]
    assert vocab.t2d.all()


@pytest.mark.parametrize(("size", "keep", "says"), [(2, [0, 1, 2], "at least 3"), (0, [], "at least 1")])
def test_impossible_sizes_are_refused(size: int, keep: list[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        choose(counts_of(1, 1, 1, 1), size, keep)


def test_only_learnt_tokens_are_counted() -> None:
    one = TrainText(np.array([0, 3, 3, 2, 3], np.int32), np.array([0, 0, 1, 1, 2], np.int16))
    assert count([one, one], 5).tolist() == [0, 0, 2, 4, 0]


def test_special_tokens_are_the_control_and_end_tokens(models: Models) -> None:
    with open_tokenizer(models.target) as engine:
        assert special_tokens(engine) == [0, 1, 2, 3]
