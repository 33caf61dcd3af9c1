# SPDX-License-Identifier: MIT
"""A tensor in a checkpoint file that is not read yet.

`TensorSource` is a name, a shape, a dtype and a position (file, byte offset). Data are read on demand, a
range of rows at a time, with ordinary reads. Memory maps are avoided, because their pages count as resident
memory, and a conversion must stay small next to an 8B model. Floats are returned as float32. Integers and
bools are returned in their stored type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .errors import CheckpointError

NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16, "I64": "<i8", "I32": "<i4",
        "I16": "<i2", "I8": "<i1", "U8": "<u1", "BOOL": "<u1",
    }.items()
}  # fmt: skip
"""numpy types by safetensors' name of the type. Tensors of .bin files have the same names of types."""
DTYPE_BYTES: dict[str, int] = {name: dtype.itemsize for name, dtype in NUMPY_TYPES.items()}
FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True)
class TensorSource:
    """A tensor in a checkpoint file, row-major and contiguous.

    shape: slowest axis first, as in PyTorch. dtype: a key of DTYPE_BYTES. offset: bytes into the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: Path
    offset: int

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def n_rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOAT_DTYPES

    def read_rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Reads rows [start, stop) along the slowest axis: floats as float32, integers in their stored type.

        Raises CheckpointError if the file ends early or cannot be read.
        """
        row = math.prod(self.shape[1:])
        count = (stop - start) * row
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset + start * row * DTYPE_BYTES[self.dtype])
                raw = np.fromfile(file, dtype=NUMPY_TYPES[self.dtype], count=count)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot read tensor {self.name}: {error}") from error
        if raw.size != count:
            raise CheckpointError(
                f"{self.path}: tensor {self.name} ends early: expected {count} values, found {raw.size}; "
                "the file is truncated, download or copy it again"
            )
        values: npt.NDArray[Any] = raw.astype(np.float32) if self.is_float else raw
        return values.reshape(stop - start, *self.shape[1:])

    def read(self) -> npt.NDArray[Any]:
        """Reads the whole tensor. For small tensors such as vocabulary maps."""
        return self.read_rows(0, self.n_rows).reshape(self.shape)


def rows_of(source: TensorSource, start: int, stop: int) -> TensorSource:
    """Returns a tensor that consists of rows [start, stop) of another tensor in a file."""
    row = math.prod(source.shape[1:]) * DTYPE_BYTES[source.dtype]
    return replace(source, shape=(stop - start, *source.shape[1:]), offset=source.offset + start * row)


def computed(
    source: TensorSource,
    rows: Callable[[int, int], npt.NDArray[Any]],
    shape: tuple[int, ...] | None = None,
) -> TensorSource:
    """Returns a tensor like `source`, whose rows are computed. rows: function that replaces
    `TensorSource.read_rows`; shape: None = the shape of `source`.
    """
    return _Computed(source.name, shape or source.shape, source.dtype, source.path, source.offset, rows)


@dataclass(frozen=True)
class _Computed(TensorSource):
    rows: Callable[[int, int], npt.NDArray[Any]]

    def read_rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self.rows(start, stop)


def stacked(sources: Sequence[TensorSource]) -> TensorSource:
    """Returns a tensor that stacks tensors of the same shape. Each of its rows is one of these tensors."""

    def rows(start: int, stop: int) -> npt.NDArray[Any]:
        return np.stack([part.read() for part in sources[start:stop]])

    return computed(sources[0], rows, (len(sources), *sources[0].shape))
