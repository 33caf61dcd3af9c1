# SPDX-License-Identifier: MIT
"""A tensor that still lies in its checkpoint file.

`TensorSource` is a name, a shape, a dtype and a place (file, byte offset); data is read when asked for, a
range of rows at a time, with plain reads. Memory maps are avoided on purpose: their pages count as resident
memory, and a conversion has to stay small next to an 8B model. Floats come back as float32, integers and
bools as stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import CheckpointError

__all__ = ["DTYPE_BYTES", "FLOAT_DTYPES", "TensorSource"]

# safetensors' dtype names, also used for .bin files. BF16 has no numpy dtype: it is read as uint16,
# 8-bit floats as bytes.
_NUMPY: dict[str, str] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
    "I16": "<i2", "I8": "<i1", "U8": "<u1", "BOOL": "<u1", "F8_E4M3": "<u1",
}  # fmt: skip
DTYPE_BYTES: dict[str, int] = {name: np.dtype(code).itemsize for name, code in _NUMPY.items()}
FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""Of numbers that mean what they say; those of 8 bits mean nothing without a scale (`quantised`)."""


def _e4m3() -> npt.NDArray[np.float32]:
    """Value of each byte: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinities, two NaNs."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, (byte & 7) / 8.0
    value = np.where(exponent == 0, mantissa * 2.0**-6, (1.0 + mantissa) * 2.0 ** (exponent - 7.0))
    value[(byte & 127) == 127] = np.nan
    return np.where(byte < 128, value, -value).astype(np.float32)


_E4M3 = _e4m3()


@dataclass(frozen=True)
class TensorSource:
    """One tensor in a checkpoint file, row-major and contiguous.

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
        """Rows [start, stop) along the slowest axis: float32 for floats, the stored integer dtype otherwise.

        Raises CheckpointError when the file ends early or cannot be read.
        """
        row = math.prod(self.shape[1:])
        count = (stop - start) * row
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset + start * row * DTYPE_BYTES[self.dtype])
                raw = np.fromfile(file, dtype=_NUMPY[self.dtype], count=count)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot read tensor {self.name}: {error}") from error
        if raw.size != count:
            raise CheckpointError(
                f"{self.path}: tensor {self.name} ends early: expected {count} values, found {raw.size}; "
                "the file is truncated, download or copy it again"
            )
        return self._decode(raw).reshape(stop - start, *self.shape[1:])

    def read(self) -> npt.NDArray[Any]:
        """The whole tensor; meant for small ones (vocabulary maps)."""
        return self.read_rows(0, self.n_rows).reshape(self.shape)

    def _decode(self, raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.dtype == "F8_E4M3":
            values: npt.NDArray[Any] = _E4M3[raw]
            return values
        if self.dtype == "BF16":
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return raw.astype(np.float32) if self.is_float else raw
