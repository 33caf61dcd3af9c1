# SPDX-License-Identifier: MIT
"""Tests maps from the draft vocabulary to the target's. Every increasing list of target tokens is read back
from every form of storage, and any other map is refused.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglecpp.convert.errors import VocabMapError
from eaglecpp.convert.vocab_map import absolute_ids


@st.composite
def choices(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Draws increasing target ids, and a size of the target vocabulary that is larger than these ids."""
    n_target = draw(st.integers(2, 200))
    ids = draw(st.sets(st.integers(0, n_target - 1), min_size=1, max_size=n_target - 1))
    return np.array(sorted(ids), np.int64), n_target


def stored(ids: np.ndarray, n_target: int) -> tuple[np.ndarray, np.ndarray]:
    return ids - np.arange(ids.size), np.isin(np.arange(n_target), ids)


@given(choices(), st.sampled_from([np.int64, np.int32]), st.sampled_from([bool, np.uint8, np.int64]))
def test_a_mask_with_offsets_with_ids_or_alone(
    choice: tuple[np.ndarray, int], table_type: type, mask_type: type
) -> None:
    ids, n_target = choice
    d2t, t2d = stored(ids, n_target)
    for table in (d2t.astype(table_type), ids.astype(table_type), None):
        found, note = absolute_ids(table, t2d.astype(mask_type), ids.size, n_target)
        np.testing.assert_array_equal(found, ids)
        assert found is not None and found.dtype == np.int64
        assert table is not None or "t2d" in note


@given(choices())
def test_a_table_alone_is_read_correctly_or_refused(choice: tuple[np.ndarray, int]) -> None:
    """Tests a table without further information. Only a table of offsets can have equal values next to each
    other. Without such values the table could contain ids or offsets, so it is refused.
    """
    ids, n_target = choice
    d2t, _ = stored(ids, n_target)
    ambiguous = ids.size == np.unique(d2t).size
    try:
        found, _ = absolute_ids(d2t, None, ids.size, n_target)
    except VocabMapError:
        assert ambiguous or not d2t.any()
        return
    np.testing.assert_array_equal(found, ids)


@given(choices(), st.data())
def test_a_contradicting_mask_is_refused(choice: tuple[np.ndarray, int], data: st.DataObject) -> None:
    ids, n_target = choice
    d2t, t2d = stored(ids, n_target)
    flipped = t2d.copy()
    flipped[data.draw(st.integers(0, n_target - 1))] ^= True
    with pytest.raises(VocabMapError):
        absolute_ids(d2t, flipped, ids.size, n_target)


@given(st.lists(st.integers(-300, 300), min_size=2, max_size=60), st.integers(61, 200))
def test_the_result_is_always_a_map(table: list[int], n_target: int) -> None:
    d2t = np.array(table, np.int64)
    try:
        found, _ = absolute_ids(d2t, None, d2t.size, n_target)
    except VocabMapError:
        return
    assert found is not None
    assert (np.diff(found) > 0).all()
    assert found[0] >= 0
    assert found[-1] < n_target


@given(st.integers(1, 100))
def test_the_whole_vocabulary_is_the_identity(n: int) -> None:
    identity = np.zeros(n, np.int64)
    for d2t in (None, identity, np.arange(n)):
        for t2d in (None, np.ones(n, bool)):
            assert absolute_ids(d2t, t2d, n, n)[0] is None
