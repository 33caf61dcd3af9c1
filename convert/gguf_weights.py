# SPDX-License-Identifier: MIT
"""Weights of a GGUF as float32, whatever type they are stored in; decoded by ggml itself."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from . import ggml_lib
from .errors import GgufError, QuantTypeError
from .gguf_file import GgufFile, TensorInfo

__all__ = ["read_rows", "read_tensor"]

_CHUNK_VALUES = 4 << 20


def read_tensor(file: GgufFile, name: str) -> npt.NDArray[np.float32]:
    """A tensor in full, float32, slowest axis first.

    Raises KeyError for a name the file does not have, GgufError for a type this gguf package does not know or
    data that cannot be read, QuantTypeError when ggml's library is missing.
    """
    info = file.tensors[name]
    return read_rows(file, name, 0, info.shape[0] if info.shape else 1).reshape(info.shape)


def read_rows(file: GgufFile, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Rows [start, stop) of a tensor along its slowest axis; otherwise as `read_tensor`."""
    info = file.tensors[name]
    try:
        kind = GGMLQuantizationType(info.type)
    except ValueError as error:
        raise GgufError(
            f"{file.path}: tensor {name}: type {info.type} is newer than the gguf package"
        ) from error
    if len(info.shape) < 2:  # one row of ggml's, whose elements are asked for
        return _read(file, info, kind, 0, 1)[0, start:stop]
    inner = math.prod(info.shape[1:-1])
    return _read(file, info, kind, start * inner, stop * inner).reshape(stop - start, *info.shape[1:])


def _read(
    file: GgufFile, info: TensorInfo, kind: GGMLQuantizationType, first: int, last: int
) -> npt.NDArray[np.float32]:
    """ggml's rows [first, last), a chunk at a time."""
    width = info.shape[-1] if info.shape else 1
    block, block_bytes = GGML_QUANT_SIZES[kind]
    row_bytes = width // block * block_bytes
    out = np.empty((last - first, width), np.float32)
    step = max(1, _CHUNK_VALUES // width)
    try:
        with file.path.open("rb") as data:
            data.seek(info.offset + first * row_bytes)
            for start in range(0, last - first, step):
                stop = min(start + step, last - first)
                raw = np.frombuffer(data.read((stop - start) * row_bytes), np.uint8).reshape(
                    stop - start, row_bytes
                )
                out[start:stop] = _decoded(raw, kind, width)
    except (OSError, ValueError) as error:
        raise GgufError(f"{file.path}: tensor {info.name} cannot be read: {error}") from error
    except QuantTypeError as error:
        raise QuantTypeError(f"{file.path}: tensor {info.name}: {error}") from error
    return out


def _decoded(raw: npt.NDArray[np.uint8], kind: GGMLQuantizationType, width: int) -> npt.NDArray[np.float32]:
    if kind is GGMLQuantizationType.F32:  # ggml has no conversion to what it already is
        return raw.view("<f4")
    return ggml_lib.dequantize_rows(raw, kind, width)
