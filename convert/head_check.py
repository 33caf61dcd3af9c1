# SPDX-License-Identifier: MIT
"""Does the draft head's row i belong to the target token the map gives it?

A draft head that was started from the target's keeps some likeness to it, which shows whether its rows were
gathered by token id or, as one exporter does (lightseekorg/TorchSpec: tools/convert_to_hf.py), by the map's
raw offsets. The second is refused: such a head drafts other tokens than it means. A head that resembles
neither was trained from scratch and proves nothing. A few rows are compared, so the target's weights are
hardly touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import VocabMapError
from .tensor import TensorSource

__all__ = ["HeadRows", "check_head"]

_N_SAMPLES = 64
_CLEARLY = 0.3  # mean cosine; unrelated rows of a few hundred values or more stay below 0.1

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class HeadRows:
    """The target's output head: its shape `[V, Ht]` and a function from token id to that row, float32."""

    shape: tuple[int, int]
    row: Callable[[int], F32]


def check_head(head: TensorSource, ids: npt.NDArray[np.int64], target: HeadRows) -> str:
    """A note about the likeness, or an empty string when nothing can be compared.

    head: `[Vd, H]`. ids: absolute target ids `[Vd]`. Raises VocabMapError for a head gathered by offsets.
    """
    if head.shape[1] != target.shape[1] or not head.is_float:
        return ""
    offsets = ids - np.arange(ids.size)
    usable = np.flatnonzero(offsets != ids)  # where the two readings name different target rows
    if usable.size < _N_SAMPLES:
        return ""
    sample = usable[:: max(1, usable.size // _N_SAMPLES)][:_N_SAMPLES]
    rows = [head.read_rows(int(i), int(i) + 1)[0] for i in sample]
    by_id = _mean_cosine(rows, [target.row(int(ids[i])) for i in sample])
    by_offset = _mean_cosine(rows, [target.row(int(offsets[i])) for i in sample])
    if by_offset > _CLEARLY and by_offset > 2 * abs(by_id):
        raise VocabMapError(
            f"lm_head.weight does not match d2t: its rows resemble the target's head at rows d2t[i] (cosine "
            f"{by_offset:.2f}) instead of i + d2t[i] ({by_id:.2f}); the exporter gathered them by offsets. "
            "Export the "
            "drafter again with rows i + d2t[i]"
        )
    return f"the draft head resembles the target's (cosine {by_id:.2f})" if by_id > _CLEARLY else ""


def _mean_cosine(left: list[F32], right: list[F32]) -> float:
    def cosine(a: F32, b: F32) -> float:
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(np.dot(a, b)) / norm if norm else 0.0

    return float(np.mean([cosine(a, b) for a, b in zip(left, right, strict=True)]))
