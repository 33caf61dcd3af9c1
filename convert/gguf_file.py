# SPDX-License-Identifier: MIT
"""A GGUF file in the gguf package's terms: typed keys, positions of tensors, and values as float32.

`gguf_head` parses the file. This module converts types to the gguf package's types, and checks the tensors
against the sizes of ggml's types. (`gguf.GGUFReader` trusts counts and builds a numpy array per string, which
takes seconds for a vocabulary of 128k tokens.)
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from . import ggml_lib
from .errors import GgufError, QuantTypeError
from .gguf_head import Field, Head, TensorHead, read_head
from .tensor import FLOAT_DTYPES, NUMPY_TYPES


@dataclass(frozen=True)
class TensorInfo:
    """Name, type, shape and position of a tensor in a GGUF file.

    shape: slowest axis first (ggml's `ne` reversed); offset: from the start of the file
    """

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    n_bytes: int

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GgufFile:
    """The head of a GGUF file."""

    path: Path
    size: int
    fields: dict[str, Field]
    tensors: dict[str, TensorInfo]

    @property
    def architecture(self) -> str:
        return self.text("general.architecture", "")

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of a key as stored (strings are bytes), or the default."""
        field = self.fields.get(name)
        return default if field is None else field.value

    def text(self, name: str, default: str) -> str:
        """Returns a decoded string key, or the default. Raises GgufError for a key of another type."""
        field = self.fields.get(name)
        if field is None:
            return default
        if field.type != GGUFValueType.STRING:
            kind = GGUFValueType(field.type).name
            raise GgufError(f"{self.path}: key {name}: expected a string, found {kind}")
        return field.text

    def integer(self, name: str) -> int | None:
        """Returns an integer key, or None if absent. Raises GgufError for a key of another type."""
        value = self.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise GgufError(f"{self.path}: key {name}: expected an integer, found {type(value).__name__}")


def type_name(number: int) -> str:
    """Returns ggml's name of a tensor type, or `type-<n>` for a type that the gguf package does not know."""
    try:
        return str(GGMLQuantizationType(number).name)
    except ValueError:
        return f"type-{number}"


def read_gguf(path: Path) -> GgufFile:
    """Reads and checks the head of a GGUF file. Raises GgufError."""
    head = read_head(path)
    size, _, fields, _ = head
    return GgufFile(path, size, fields, _tensor_infos(path, head))


def _alignment(path: Path, fields: dict[str, Field]) -> int:
    field = fields.get("general.alignment")
    if field is None:
        return 32
    if field.type != GGUFValueType.UINT32 or field.value < 1 or field.value & (field.value - 1):
        raise GgufError(f"{path}: general.alignment: expected a power of two, found {field.text}")
    return int(field.value)


def _tensor_infos(path: Path, head: Head) -> dict[str, TensorInfo]:
    size, end, fields, tensors = head
    alignment = _alignment(path, fields)
    start = -(-end // alignment) * alignment
    infos: dict[str, TensorInfo] = {}
    ends = sorted({start + tensor.offset for tensor in tensors.values()} | {size})
    for name, tensor in tensors.items():
        if not tensor.ne[0]:
            raise GgufError(f"{path}: broken file: tensor {name}: expected rows of 1 value or more, found 0")
        if tensor.offset % alignment:
            raise GgufError(
                f"{path}: tensor {name}: offset {tensor.offset} is not a multiple of the alignment "
                f"{alignment}"
            )
        first = start + tensor.offset
        n_bytes = _tensor_bytes(path, tensor)
        if n_bytes is None:  # for an unknown type, a tensor's data end where the next tensor begins
            after = bisect.bisect_right(ends, first)
            n_bytes = (ends[after] if after < len(ends) else first) - first
        if first + n_bytes > size:
            raise GgufError(
                f"{path}: truncated: tensor {name} needs bytes {first} to {first + n_bytes}, but the file "
                f"has {size} bytes"
            )
        infos[name] = TensorInfo(name, tuple(reversed(tensor.ne)), tensor.type, first, n_bytes)
    return infos


def _tensor_bytes(path: Path, tensor: TensorHead) -> int | None:
    try:
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.type)]
    except (ValueError, KeyError):
        return None
    if tensor.ne[0] % block:
        raise GgufError(
            f"{path}: tensor {tensor.name}: rows of {tensor.ne[0]} are not divisible into blocks of {block}"
        )
    return math.prod(tensor.ne) // int(block) * int(block_bytes)


_CHUNK_VALUES = 4 << 20


def read_tensor(file: GgufFile, name: str) -> npt.NDArray[np.float32]:
    """Reads a whole tensor as float32, slowest axis first.

    Raises KeyError for an unknown name, GgufError for an unknown type or unreadable data, QuantTypeError if
    ggml's library is missing.
    """
    info = file.tensors[name]
    return read_rows(file, name, 0, info.shape[0] if info.shape else 1).reshape(info.shape)


def read_rows(file: GgufFile, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Reads rows [start, stop) of a tensor along its slowest axis as float32. Raises the errors of
    `read_tensor`.
    """
    info = file.tensors[name]
    try:
        kind = GGMLQuantizationType(info.type)
    except ValueError as error:
        raise GgufError(
            f"{file.path}: tensor {name}: the gguf package does not know type {info.type}; upgrade gguf"
        ) from error
    if len(info.shape) < 2:  # a tensor with one axis is a single row for ggml, so the range selects elements
        return _read(file, info, kind, 0, 1)[0, start:stop]
    inner = math.prod(info.shape[1:-1])
    return _read(file, info, kind, start * inner, stop * inner).reshape(stop - start, *info.shape[1:])


def _read(
    file: GgufFile, info: TensorInfo, kind: GGMLQuantizationType, first: int, last: int
) -> npt.NDArray[np.float32]:
    """Reads the tensor's rows [first, last), in ggml's order of axes, chunk by chunk."""
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
    if kind.name in FLOAT_DTYPES:
        return raw.view(NUMPY_TYPES[kind.name]).astype(np.float32, copy=False)
    return ggml_lib.dequantize_rows(raw, kind, width)
