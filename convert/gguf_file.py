# SPDX-License-Identifier: MIT
"""Reads the head of any GGUF file: keys and tensor places, never tensor data.

Written for files that may be truncated or hostile: every length is checked against what is left of the file
before anything is allocated, and every defect is one GgufError. (`gguf.GGUFReader` trusts counts and builds
a numpy array per string, which takes seconds on a 128k vocabulary.) Strings stay bytes, so that a tokenizer
can be copied unchanged. Format: ggml-org/ggml: docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.gguf_writer import GGUFValue

from .errors import GgufError

__all__ = ["Field", "GgufFile", "TensorInfo", "field_of", "read_gguf", "type_name"]

_SCALARS: dict[GGUFValueType, str] = {
    GGUFValueType.UINT8: "<u1", GGUFValueType.INT8: "<i1", GGUFValueType.BOOL: "<u1",
    GGUFValueType.UINT16: "<u2", GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4", GGUFValueType.INT32: "<i4", GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.UINT64: "<u8", GGUFValueType.INT64: "<i8", GGUFValueType.FLOAT64: "<f8",
}  # fmt: skip
_MAX_STRING = 256 << 20
_MAX_ARRAY = 1 << 26
_MAX_DIMS = 4


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
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _Reader(path, file, size).read()
    except OSError as error:
        raise GgufError(f"{path}: cannot be read: {error.strerror or error}") from error


class _Reader:
    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.file, self.size, self.pos = path, file, size, 0

    def read(self) -> GgufFile:
        magic = self.take(4, "magic")
        if magic != b"GGUF":
            raise self.error(f"not a GGUF file: expected magic 'GGUF', found {magic!r}")
        version = self.u32("version")
        if version not in (2, 3):
            hint = " (a big-endian file?)" if version & 0xFFFF == 0 else ""
            raise self.error(f"GGUF version: expected 2 or 3, found {version}{hint}")
        n_tensors, n_fields = self.u64("tensor count"), self.u64("key count")
        self.check_count(n_fields, 13, "key count")
        self.check_count(n_tensors, 24, "tensor count")
        fields: dict[str, Field] = {}
        for _ in range(n_fields):
            field = self.field()
            if field.name in fields:
                raise self.error(f"key {field.name} appears twice")
            fields[field.name] = field
        tensors = self.tensor_infos(n_tensors, self.alignment(fields))
        return GgufFile(self.path, version, self.size, fields, tensors)

    def error(self, text: str) -> GgufError:
        return GgufError(f"{self.path}: {text}")

    def take(self, n: int, what: str) -> bytes:
        data = self.file.read(n) if n <= self.size - self.pos else b""
        if len(data) != n:
            raise self.error(f"truncated: {what} needs {n} bytes at {self.pos}, the file has {self.size}")
        self.pos += n
        return data

    def u32(self, what: str) -> int:
        return int(struct.unpack("<I", self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(struct.unpack("<Q", self.take(8, what))[0])

    def check_count(self, count: int, min_bytes: int, what: str) -> None:
        if count > (self.size - self.pos) // min_bytes:
            raise self.error(
                f"{what} is {count}, more than fits in the remaining {self.size - self.pos} bytes"
            )

    def string(self, what: str) -> bytes:
        length = self.u64(what)
        if length > _MAX_STRING:
            raise self.error(f"{what}: string of {length} bytes; at most {_MAX_STRING} are accepted")
        return self.take(length, what)

    def name(self, what: str) -> str:
        try:
            return self.string(what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8") from error

    def value_type(self, what: str) -> GGUFValueType:
        number = self.u32(what)
        try:
            return GGUFValueType(number)
        except ValueError as error:
            raise self.error(f"{what}: unknown value type {number}") from error

    def field(self) -> Field:
        name = self.name("a key name")
        kind = self.value_type(f"key {name}")
        if kind is not GGUFValueType.ARRAY:
            return Field(name, kind, None, self.values(name, kind, 1)[0])
        sub = self.value_type(f"key {name}")
        count = self.u64(f"key {name}")
        if count > _MAX_ARRAY:
            raise self.error(f"key {name}: array of {count} values; at most {_MAX_ARRAY} are accepted")
        return Field(name, kind, sub, self.values(name, sub, count))

    def values(self, name: str, kind: GGUFValueType, count: int) -> list[Any]:
        if kind is GGUFValueType.STRING:
            self.check_count(count, 8, f"key {name}: string count")
            return [self.string(f"key {name}") for _ in range(count)]
        if kind not in _SCALARS:
            raise self.error(f"key {name}: nested arrays are not supported")
        dtype = np.dtype(_SCALARS[kind])
        array = np.frombuffer(self.take(count * dtype.itemsize, f"key {name}"), dtype)
        values: list[Any] = (array != 0).tolist() if kind is GGUFValueType.BOOL else array.tolist()
        return values

    def alignment(self, fields: dict[str, Field]) -> int:
        field = fields.get("general.alignment")
        if field is None:
            return 32
        if field.type is not GGUFValueType.UINT32 or field.value < 1 or field.value & (field.value - 1):
            raise self.error(f"general.alignment: expected a power of two, found {field.text}")
        return int(field.value)

    def tensor_infos(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        heads = [self.tensor_head() for _ in range(count)]
        start = -(-self.pos // alignment) * alignment
        infos: dict[str, TensorInfo] = {}
        ends = sorted({start + offset for *_, offset in heads} | {self.size})
        for name, shape, number, offset in heads:
            if name in infos:
                raise self.error(f"tensor {name} appears twice")
            if offset % alignment:
                raise self.error(
                    f"tensor {name}: offset {offset} is not a multiple of the alignment {alignment}"
                )
            n_bytes = self.tensor_bytes(name, shape, number)
            if n_bytes is None:  # a type newer than our table: its bytes reach to the next tensor
                n_bytes = (
                    min((e for e in ends if e > start + offset), default=start + offset) - start - offset
                )
            if start + offset + n_bytes > self.size:
                raise self.error(
                    f"truncated: tensor {name} needs bytes {start + offset} to {start + offset + n_bytes}, "
                    f"the file has {self.size}"
                )
            infos[name] = TensorInfo(name, shape, number, start + offset, n_bytes)
        return infos

    def tensor_head(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.name("a tensor name")
        n_dims = self.u32(f"tensor {name}")
        if not 1 <= n_dims <= _MAX_DIMS:
            raise self.error(f"tensor {name}: expected 1 to {_MAX_DIMS} dimensions, found {n_dims}")
        ne = [self.u64(f"tensor {name}") for _ in range(n_dims)]
        return name, tuple(reversed(ne)), self.u32(f"tensor {name}"), self.u64(f"tensor {name}")

    def tensor_bytes(self, name: str, shape: tuple[int, ...], number: int) -> int | None:
        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(number)]
        except (ValueError, KeyError):
            return None
        if shape[-1] % block:
            raise self.error(f"tensor {name}: rows of {shape[-1]} do not divide into blocks of {block}")
        return math.prod(shape) // int(block) * int(block_bytes)
