# SPDX-License-Identifier: MIT
"""d2t and t2d: the target token of each draft id, and a check of the draft head against them.

Checkpoints store offsets (`target id = i + d2t[i]`) and a membership mask `t2d`; a GGUF stores absolute ids
(I64). Only this module handles both forms. The target ids of every map must be strictly increasing within the
target vocabulary. An ambiguous map is rejected.

A draft head that started as a copy of the target's head still resembles the target's head. The similarity
shows whether the rows of the draft head were gathered by token id, or by the map's raw offsets. (One exporter
gathers them by raw offsets, lightseekorg/TorchSpec: tools/convert_to_hf.py.) A head gathered by raw offsets
is rejected, because it drafts wrong tokens. If neither order gives similar rows, the head was trained from
scratch and shows nothing about the map. Only a few rows of the target's head are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import VocabMapError
from .tensor import TensorSource

IntArray = npt.NDArray[np.int64]


def absolute_ids(
    d2t: npt.NDArray[Any] | None, t2d: npt.NDArray[Any] | None, n_draft: int, n_target: int
) -> tuple[IntArray | None, str]:
    """Returns the absolute target id of each draft id (None if draft ids equal target ids), and a note for
    the user (or "").

    d2t: `[n_draft]` integers. t2d: `[n_target]` bool or 0/1. n_draft, n_target: sizes of the vocabularies.
    Raises VocabMapError.
    """
    members = None if t2d is None else _members(t2d, n_draft, n_target)
    if d2t is None:
        ids, note = _from_mask(members, n_draft, n_target)
    else:
        ids, note = _from_table(_table(d2t, n_draft), members, n_draft, n_target)
    return (None, note) if ids is None or n_draft == n_target else (ids, note)


def _members(t2d: npt.NDArray[Any], n_draft: int, n_target: int) -> IntArray:
    if t2d.shape != (n_target,):
        raise VocabMapError(
            f"t2d: expected shape [{n_target}], the target vocabulary, found {list(t2d.shape)}"
        )
    if t2d.dtype.kind not in "biu" or not np.isin(t2d, (0, 1)).all():
        raise VocabMapError(f"t2d: expected a 0/1 mask, found values of {t2d.dtype} outside 0 and 1")
    members = np.flatnonzero(t2d).astype(np.int64)
    if members.size != n_draft:
        raise VocabMapError(
            f"t2d: expected {n_draft} marked tokens, the draft vocabulary, found {members.size}"
        )
    return members


def _table(d2t: npt.NDArray[Any], n_draft: int) -> IntArray:
    if d2t.shape != (n_draft,):
        raise VocabMapError(f"d2t: expected shape [{n_draft}], the draft vocabulary, found {list(d2t.shape)}")
    if d2t.dtype not in (np.dtype(np.int64), np.dtype(np.int32)):
        raise VocabMapError(f"d2t: expected int64 or int32, found {d2t.dtype}")
    return d2t.astype(np.int64)


def _from_mask(members: IntArray | None, n_draft: int, n_target: int) -> tuple[IntArray | None, str]:
    if n_draft == n_target:
        return None, ""
    if members is None:
        raise VocabMapError(
            f"the draft vocabulary has {n_draft} of {n_target} tokens, but the checkpoint has neither d2t "
            "nor t2d; without the map, draft ids have no meaning"
        )
    return members, "d2t is absent; the map was rebuilt from t2d"


def _from_table(
    table: IntArray, members: IntArray | None, n_draft: int, n_target: int
) -> tuple[IntArray, str]:
    offsets = table + np.arange(n_draft, dtype=np.int64)
    readings = {"offsets": offsets, "absolute ids": table}
    valid = {name: ids for name, ids in readings.items() if _is_map(ids, n_target)}
    if members is not None and n_draft < n_target:
        matching = {name: ids for name, ids in valid.items() if np.array_equal(ids, members)}
        if not matching:
            raise VocabMapError(_mismatch(offsets, members, n_target))
        valid = matching
    if not valid:
        raise VocabMapError(_why_invalid(offsets, n_target))
    if len(valid) == 2 and not np.array_equal(offsets, table) and n_draft < n_target:
        raise VocabMapError(
            "d2t: the values may be offsets or absolute ids, because both give a valid map. Add t2d to the "
            "checkpoint, or store offsets (target_id - i)"
        )
    if n_draft < n_target and members is None and not table.any():
        raise VocabMapError(
            f"d2t: all values are 0, but the draft vocabulary has only {n_draft} of {n_target} tokens. The "
            "training run never set its vocabulary map"
        )
    if "offsets" in valid:
        return offsets, ""
    return table, "d2t contains absolute ids instead of offsets"


def _is_map(ids: IntArray, n_target: int) -> bool:
    # The range is checked first, because the differences of arbitrary integers could overflow.
    return bool(ids.size and ((ids >= 0) & (ids < n_target)).all() and (np.diff(ids) > 0).all())


def _why_invalid(ids: IntArray, n_target: int) -> str:
    outside = np.flatnonzero((ids < 0) | (ids >= n_target))
    if outside.size:
        i = int(outside[0])
        return (
            f"d2t: draft id {i} maps to target id {int(ids[i])}, outside the target vocabulary of {n_target}"
        )
    i = int(np.flatnonzero(np.diff(ids) <= 0)[0])
    return (
        f"d2t: expected strictly increasing target ids i + d2t[i], found {int(ids[i])} then "
        f"{int(ids[i + 1])} at draft ids {i} and {i + 1}"
    )


def _mismatch(ids: IntArray, members: IntArray, n_target: int) -> str:
    if not _is_map(ids, n_target):
        return _why_invalid(ids, n_target)
    return (
        f"t2d and d2t disagree: t2d marks {members.size} tokens, d2t maps to {ids.size}, and "
        f"{np.setxor1d(ids, members).size} tokens are in only one of them"
    )


_N_SAMPLES = 64
# Minimum mean cosine of similar rows. The cosine of unrelated rows with a few hundred values or more is below
# 0.1.
_CLEARLY = 0.3

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class HeadRows:
    """The target's output head: its shape `[V, Ht]` and a function that returns the row of a token id as
    float32.
    """

    shape: tuple[int, int]
    row: Callable[[int], F32]


def check_head(head: TensorSource, ids: npt.NDArray[np.int64], target: HeadRows) -> str:
    """Compares the draft head with the target's head. Returns a note about the similarity, or "" if no rows
    can be compared.

    head: `[Vd, H]`. ids: absolute target ids `[Vd]`. Raises VocabMapError for a head that was gathered by raw
        offsets.
    """
    if head.shape[1] != target.shape[1] or not head.is_float:
        return ""
    offsets = ids - np.arange(ids.size)
    # A draft id is usable only if its target id and its raw offset are different rows of the target's head.
    usable = np.flatnonzero(offsets != ids)
    if usable.size < _N_SAMPLES:
        return ""
    sample = usable[:: max(1, usable.size // _N_SAMPLES)][:_N_SAMPLES]
    rows = [head.read_rows(int(i), int(i) + 1)[0] for i in sample]
    by_id = _mean_cosine(rows, [target.row(int(ids[i])) for i in sample])
    by_offset = _mean_cosine(rows, [target.row(int(offsets[i])) for i in sample])
    if by_offset > _CLEARLY and by_offset > 2 * abs(by_id):
        raise VocabMapError(
            "lm_head.weight does not match d2t: its row i resembles row d2t[i] of the target's head (cosine "
            f"{by_offset:.2f}), not row i + d2t[i] (cosine {by_id:.2f}). The exporter used offsets as ids; "
            "export the drafter again with rows i + d2t[i]"
        )
    return f"the draft head resembles the target's (cosine {by_id:.2f})" if by_id > _CLEARLY else ""


def _mean_cosine(left: list[F32], right: list[F32]) -> float:
    a, b = np.stack(left), np.stack(right)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.mean((a * b).sum(axis=1) / np.where(norms > 0, norms, 1)))
