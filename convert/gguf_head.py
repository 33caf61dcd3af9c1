# SPDX-License-Identifier: MIT
"""Reads the head of any GGUF file: keys and positions of tensors, never tensor data. All Python code reads
GGUF files with this module.

Files may be truncated or hostile. Before memory is allocated, every length is checked against the rest of the
file and every count against a limit. Every defect raises GgufError. The module imports only the standard
library, so that time-critical code can use it. `read_keys` skips long arrays without creating values. Strings
stay bytes, so that a tokenizer can be copied unchanged. Format: ggml-org/ggml: docs/gguf.md, versions 2 and
3, little-endian.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from .errors import GgufError
from .files import open_regular

T = TypeVar("T")
STRING, ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}
_PICTURES = {b"\x89PN": "a PNG picture", b"\xff\xd8\xff": "a JPEG picture", b"GIF": "a GIF picture"}
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 14  # maximum number of tensors, which is ten times the number in the largest models
# Maximum number of values in all arrays together. In memory, a value takes up to eight times as many bytes as
# in the file.
_MAX_VALUES = 1 << 24
_MAX_STRING = 64 << 20
_MAX_HEAD = 512 << 20
_MAX_DIMS = 4
_BLOCK = 1 << 18
# Maximum length of the arrays that `read_keys` reads. Arrays with one value per layer are shorter.
_LONG = 256
_LENGTH = struct.Struct("<Q")  # format of a string's length


@dataclass(frozen=True)
class Field:
    """An entry of a GGUF's metadata. type: GGUF's type of the value; sub_type: type of an array's elements.

    value: int, float, bool, bytes, or a list of these; None for a skipped array
    """

    name: str
    type: int
    sub_type: int | None
    value: Any

    @property
    def text(self) -> str:
        return (
            self.value.decode("utf-8", errors="replace") if isinstance(self.value, bytes) else str(self.value)
        )


@dataclass(frozen=True)
class TensorHead:
    """A tensor's entry in a GGUF. ne: sizes, fastest axis first; offset: bytes from the start of the tensor
    data.
    """

    name: str
    ne: tuple[int, ...]
    type: int
    offset: int


Head = tuple[int, int, dict[str, Field], dict[str, TensorHead]]
"""The head of a GGUF file: bytes of the file, position of the first byte after the head, keys, tensors."""


def read_head(path: Path) -> Head:
    """Reads the whole head of a GGUF file. Raises GgufError."""
    return _open(path, _HeadReader.head)


def read_keys(path: Path) -> dict[str, Any]:
    """Reads the keys of a GGUF file, without long arrays. Strings are decoded to text. Raises GgufError."""
    entries, _ = _open(path, lambda reader: reader.keys(_LONG))
    return {
        name: entry.value.decode("utf-8", "replace") if isinstance(entry.value, bytes) else entry.value
        for name, entry in entries.items()
        if entry.value is not None
    }


def _open(path: Path, read: Callable[[_HeadReader], T]) -> T:
    try:
        with open_regular(path) as file:
            return read(_HeadReader(path, file, os.fstat(file.fileno()).st_size))
    except OSError as error:
        raise GgufError(f"{path}: cannot be read: {error.strerror or error}") from error


class _HeadReader:
    """Reader of a file that keeps one block of the file in memory."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.file, self.size = path, file, size
        # block in memory, position in the block, and position of the block in the file
        self.block, self.at, self.start = b"", 0, 0
        self.n_values = 0

    @property
    def pos(self) -> int:
        return self.start + self.at

    def error(self, text: str) -> GgufError:
        return GgufError(f"{self.path}: {text}")

    # Methods that read bytes

    def need(self, n: int, what: str) -> None:
        """Makes sure that the next n bytes are in the block. what: name of these bytes for error messages."""
        if self.at + n <= len(self.block):
            return
        if n > self.size - self.pos:
            raise self.error(f"truncated: {what} needs {n} bytes at byte {self.pos} of {self.size}")
        if self.pos + n > _MAX_HEAD:
            raise self.error(f"{what}: expected a header of at most {_MAX_HEAD} bytes, found more")
        self.start, rest, self.at = self.pos, self.block[self.at :], 0
        pieces, have = [rest], len(rest)
        while have < n:
            piece = self.file.read(max(n - have, _BLOCK))
            if not piece:
                raise self.error(f"truncated: {what} needs {n} bytes at byte {self.pos} of {self.size}")
            pieces.append(piece)
            have += len(piece)
        self.block = b"".join(pieces)

    def take(self, n: int, what: str) -> bytes:
        self.need(n, what)
        self.at += n
        return self.block[self.at - n : self.at]

    def number(self, code: str, what: str) -> Any:
        n = struct.calcsize(f"<{code}")
        self.need(n, what)
        self.at += n
        return struct.unpack_from(f"<{code}", self.block, self.at - n)[0]

    def string(self, what: str) -> bytes:
        length = self.number("Q", what)
        if length > _MAX_STRING:
            raise self.error(f"{what}: expected a string of at most {_MAX_STRING} bytes, found {length}")
        return self.take(length, what)

    def name(self, what: str) -> str:
        try:
            return self.string(what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8") from error

    def check_count(self, count: int, min_bytes: int, limit: int, what: str) -> None:
        left = self.size - self.pos
        if count > left // min_bytes:
            raise self.error(f"{what} is {count}, more than fits in the remaining {left} bytes")
        if count > limit:
            raise self.error(f"{what} is {count}; the maximum is {limit}")

    # Methods that read the head's contents

    def head(self) -> Head:
        entries, n_tensors = self.keys(None)
        tensors: dict[str, TensorHead] = {}
        for _ in range(n_tensors):
            tensor = self.tensor()
            if tensor.name in tensors:
                raise self.error(f"tensor {tensor.name} appears twice")
            tensors[tensor.name] = tensor
        return self.size, self.pos, entries, tensors

    def keys(self, longest: int | None) -> tuple[dict[str, Field], int]:
        """Returns the keys with their values, and the number of tensors. longest: arrays with more values are
        skipped; None = skip no array.
        """
        magic = self.take(4, "magic")
        if magic != b"GGUF":
            found = _PICTURES.get(magic[:3], repr(magic))
            raise self.error(f"not a GGUF file: expected magic 'GGUF', found {found}")
        version = int(self.number("I", "version"))
        if version not in (2, 3):
            hint = " (a big-endian file?)" if version & 0xFFFF == 0 else ""
            raise self.error(f"GGUF version: expected 2 or 3, found {version}{hint}")
        n_tensors, n_keys = self.number("Q", "tensor count"), self.number("Q", "key count")
        self.check_count(n_keys, 13, _MAX_KEYS, "key count")
        self.check_count(n_tensors, 24, _MAX_TENSORS, "tensor count")
        entries: dict[str, Field] = {}
        for _ in range(n_keys):
            entry = self.entry(longest)
            if entry.name in entries:
                raise self.error(f"key {entry.name} appears twice")
            entries[entry.name] = entry
        return entries, n_tensors

    def entry(self, longest: int | None) -> Field:
        name = self.name("a key name")
        kind = self.kind(name)
        if kind != ARRAY:
            return Field(name, kind, None, self.scalar(name, kind))
        sub, count = self.kind(name), self.number("Q", f"key {name}")
        if sub == ARRAY:
            raise self.error(f"key {name}: nested arrays are not supported")
        if longest is not None and count > longest:
            self.skip(name, sub, count)
            return Field(name, kind, sub, None)
        self.n_values += count
        if self.n_values > _MAX_VALUES:
            raise self.error(f"key {name}: array of {count} values; all arrays may have {_MAX_VALUES} in all")
        return Field(name, kind, sub, self.values(name, sub, count))

    def kind(self, name: str) -> int:
        kind = int(self.number("I", f"key {name}"))
        if kind not in _SCALARS and kind not in (STRING, ARRAY):
            raise self.error(f"key {name}: unknown value type {kind}")
        return kind

    def scalar(self, name: str, kind: int) -> Any:
        if kind == STRING:
            return self.string(f"key {name}")
        value = self.number(_SCALARS[kind], f"key {name}")
        return value != 0 if kind == _BOOL else value

    def values(self, name: str, kind: int, count: int) -> list[Any]:
        what = f"key {name}"
        if kind == STRING:
            self.check_count(count, 8, _MAX_VALUES, f"{what}: string count")
            return [self.string(what) for _ in range(count)]
        # The mark "?" decodes each byte that is not 0 as True.
        code = f"<{count}{'?' if kind == _BOOL else _SCALARS[kind]}"
        return list(struct.unpack(code, self.take(struct.calcsize(code), what)))

    def skip(self, name: str, kind: int, count: int) -> None:
        what = f"key {name}"
        if kind != STRING:
            n_bytes = struct.calcsize(f"<{_SCALARS[kind]}")
            self.check_count(count, n_bytes, _MAX_HEAD, f"{what}: count")
            self.jump(count * n_bytes, what)
            return
        self.check_count(count, 8, _MAX_VALUES, f"{what}: string count")
        # Local variables are faster, and a vocabulary has over 100,000 strings.
        block, at = self.block, self.at
        last, read = len(block) - 8, _LENGTH.unpack_from
        for _ in range(count):
            if at > last:
                if at > len(block):
                    self.at = len(block)
                    self.jump(at - len(block), what)
                else:
                    self.at = at
                self.need(8, what)
                block, at = self.block, self.at
                last = len(block) - 8
            at += 8 + read(block, at)[0]
        if at > len(block):
            self.at = len(block)
            self.jump(at - len(block), what)
        else:
            self.at = at

    def jump(self, n: int, what: str) -> None:
        if n > self.size - self.pos:
            raise self.error(f"truncated: {what} needs {n} bytes at byte {self.pos} of {self.size}")
        if self.at + n <= len(self.block):
            self.at += n
            return
        self.start, self.block, self.at = self.pos + n, b"", 0
        self.file.seek(self.start)

    def tensor(self) -> TensorHead:
        name = self.name("a tensor name")
        what = f"tensor {name}"
        n_dims = self.number("I", what)
        if not 1 <= n_dims <= _MAX_DIMS:
            raise self.error(f"{what}: expected 1 to {_MAX_DIMS} dimensions, found {n_dims}")
        ne = tuple(self.number("Q", what) for _ in range(n_dims))
        return TensorHead(name, ne, self.number("I", what), self.number("Q", what))
