# SPDX-License-Identifier: MIT
"""The head of a GGUF file in the gguf package's terms: typed keys, and where every tensor lies.

`gguf_head` reads it; here types get their names, and tensors are checked against the sizes of ggml's types.
(`gguf.GGUFReader` trusts counts and builds a numpy array per string, which takes seconds on a 128k
vocabulary.)
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.gguf_writer import GGUFValue

from .errors import GgufError
from .gguf_head import Head, TensorHead, read_head

__all__ = ["Field", "GgufFile", "TensorInfo", "field_of", "read_gguf", "type_name"]


@dataclass(frozen=True)
class Field:
    """One metadata entry.

    value: int, float, bool, bytes, or a list of these (`sub_type` names the elements).
    """

    name: str
    type: GGUFValueType
    sub_type: GGUFValueType | None
    value: Any

    @property
    def text(self) -> str:
        return (
            self.value.decode("utf-8", errors="replace") if isinstance(self.value, bytes) else str(self.value)
        )


def field_of(name: str, entry: GGUFValue) -> Field:
    """The Field of an entry made by the gguf package, which leaves the element type of arrays open."""
    sub = entry.sub_type
    if entry.type is GGUFValueType.ARRAY and sub is None:
        sub = GGUFValueType.get_type(entry.value[0])
    return Field(name, entry.type, sub, entry.value)


@dataclass(frozen=True)
class TensorInfo:
    """Place of one tensor.

    shape: slowest axis first (ggml's `ne` reversed); offset: from the start of the file.
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
    version: int
    size: int
    fields: dict[str, Field]
    tensors: dict[str, TensorInfo]

    @property
    def architecture(self) -> str:
        return self.text("general.architecture", "")

    def get(self, name: str, default: Any = None) -> Any:
        """Value of a key as stored (strings are bytes), or the default."""
        field = self.fields.get(name)
        return default if field is None else field.value

    def text(self, name: str, default: str) -> str:
        """A string key decoded, or the default. Raises GgufError when the key holds something else."""
        field = self.fields.get(name)
        if field is None:
            return default
        if field.type is not GGUFValueType.STRING:
            raise GgufError(f"{self.path}: key {name}: expected a string, found {field.type.name}")
        return field.text

    def integer(self, name: str) -> int | None:
        """An integer key, or None when absent. Raises GgufError when the key holds something else."""
        value = self.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise GgufError(f"{self.path}: key {name}: expected an integer, found {type(value).__name__}")


def type_name(number: int) -> str:
    """ggml's name of a tensor type, or `type-<n>` for one this gguf package does not know."""
    try:
        return str(GGMLQuantizationType(number).name)
    except ValueError:
        return f"type-{number}"


def read_gguf(path: Path) -> GgufFile:
    """Read and check the head of a GGUF file. Raises GgufError."""
    head = read_head(path)
    fields = {
        entry.name: Field(
            entry.name,
            GGUFValueType(entry.kind),
            None if entry.sub is None else GGUFValueType(entry.sub),
            entry.value,
        )
        for entry in head.entries.values()
    }
    tensors = _tensor_infos(path, head, _alignment(path, fields))
    return GgufFile(path, head.version, head.size, fields, tensors)


def _alignment(path: Path, fields: dict[str, Field]) -> int:
    field = fields.get("general.alignment")
    if field is None:
        return 32
    if field.type is not GGUFValueType.UINT32 or field.value < 1 or field.value & (field.value - 1):
        raise GgufError(f"{path}: general.alignment: expected a power of two, found {field.text}")
    return int(field.value)


def _tensor_infos(path: Path, head: Head, alignment: int) -> dict[str, TensorInfo]:
    start = -(-head.end // alignment) * alignment
    infos: dict[str, TensorInfo] = {}
    ends = sorted({start + tensor.offset for tensor in head.tensors.values()} | {head.size})
    for name, tensor in head.tensors.items():
        if tensor.offset % alignment:
            raise GgufError(
                f"{path}: tensor {name}: offset {tensor.offset} is not a multiple of the alignment "
                f"{alignment}"
            )
        first = start + tensor.offset
        n_bytes = _tensor_bytes(path, tensor)
        if n_bytes is None:  # a type newer than our table: its bytes reach to the next tensor
            after = bisect.bisect_right(ends, first)
            n_bytes = (ends[after] if after < len(ends) else first) - first
        if first + n_bytes > head.size:
            raise GgufError(
                f"{path}: truncated: tensor {name} needs bytes {first} to {first + n_bytes}, "
                f"the file has {head.size}"
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
            f"{path}: tensor {tensor.name}: rows of {tensor.ne[0]} do not divide into blocks of {block}"
        )
    return math.prod(tensor.ne) // int(block) * int(block_bytes)
