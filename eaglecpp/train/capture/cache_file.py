# SPDX-License-Identifier: MIT
"""Captures in an append-only file with an index, in a form that survives a kill at any moment.

`data.bin` holds one block per token list, `index.bin` one record per block. A record is written only after
its block has reached the disk, so every block that the index names is complete; what comes after those is
left from a killed run and is cut off when writing goes on. The same captures in the same order give the same
bytes. Features are bf16, or int8 with an fp16 scale for each row and layer: their relative error is 0.2 %
and 1 %. Labels are ids and fp16 log-probabilities. Knows nothing of targets: `capture.cache` decides what
belongs in which folder.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from eaglecpp.errors import DataError
from eaglecpp.train.capture.features import Capture
from eaglecpp.train.capture.files import open_behind

__all__ = ["CacheFile", "FeatureType", "Layout"]

FeatureType = Literal["bf16", "int8"]
_ALIGN = 64
_RECORD = np.dtype(
    {
        "names": ["offset", "n_tokens", "crc", "hash", "own_crc"],
        "formats": ["<u8", "<u4", "<u4", "V16", "<u4"],
        "itemsize": 40,
    }
)
_FLUSH_BYTES = 64 << 20


@dataclass(frozen=True)
class Layout:
    """How a capture of S tokens lies in its block: label ids and f16 log-probabilities [S, n_top], for int8
    the scales f16 [n_layers, S], then the features [n_layers, S, n_embd].
    """

    n_layers: int
    n_embd: int
    n_vocab: int
    n_top: int
    feature_type: FeatureType = "bf16"

    def n_bytes(self, n_tokens: int) -> int:
        """Size of a block, padded."""
        n = sum(np.dtype(kind).itemsize * int(np.prod(shape)) for _, kind, shape in self._parts(n_tokens))
        return -(-n // _ALIGN) * _ALIGN

    def pack(self, captured: Capture) -> bytes:
        """The block of a capture."""
        arrays: dict[str, NDArray[Any]] = {"ids": captured.label_ids, "logp": captured.label_logp}
        if self.feature_type == "bf16":
            arrays["features"] = _to_bf16(captured.features)
        else:
            arrays["scales"], arrays["features"] = _to_int8(captured.features)
        n_tokens = len(captured.label_ids)
        data = b"".join(
            arrays[name].astype(kind, copy=False).tobytes() for name, kind, _ in self._parts(n_tokens)
        )
        return data.ljust(self.n_bytes(n_tokens), b"\0")

    def unpack(self, block: memoryview, n_tokens: int) -> Capture:
        """The capture of a block, as f32 and i32 copies."""
        arrays, at = {}, 0
        for name, kind, shape in self._parts(n_tokens):
            n = int(np.prod(shape))
            arrays[name] = np.frombuffer(block, kind, n, at).reshape(shape)
            at += n * np.dtype(kind).itemsize
        if self.feature_type == "bf16":
            features = _from_bf16(arrays["features"])
        else:
            features = arrays["features"].astype(np.float32)
            features *= arrays["scales"].astype(np.float32)[:, :, None]
        return Capture(features, arrays["ids"].astype(np.int32), arrays["logp"].astype(np.float32))

    def _parts(self, n_tokens: int) -> list[tuple[str, str, tuple[int, ...]]]:
        labels = (n_tokens, self.n_top)
        parts: list[tuple[str, str, tuple[int, ...]]] = [
            ("ids", "<u2" if self.n_vocab <= 1 << 16 else "<i4", labels),
            ("logp", "<f2", labels),
        ]
        if self.feature_type == "int8":
            parts.append(("scales", "<f2", (self.n_layers, n_tokens)))
        kind = "<u2" if self.feature_type == "bf16" else "<i1"
        return [*parts, ("features", kind, (self.n_layers, n_tokens, self.n_embd))]


class CacheFile:
    """The blocks of one folder by token hash (16 bytes). Reading maps the file; nothing is kept in memory."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.layout = layout
        self._data_path, self._index_path = folder / "data.bin", folder / "index.bin"
        self._map: mmap.mmap | None = None
        self._records = self._read_index()
        self._rows = {bytes(record["hash"]): row for row, record in enumerate(self._records)}

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, token_hash: bytes) -> bool:
        return token_hash in self._rows

    def read(self, token_hash: bytes) -> Capture:
        """One capture. Raises DataError when its bytes are not those that were written."""
        record = self._records[self._rows[token_hash]]
        n_tokens, begin = int(record["n_tokens"]), int(record["offset"])
        if self._map is None:
            with self._data_path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with memoryview(self._map) as whole:
            block = whole[begin : begin + self.layout.n_bytes(n_tokens)]
            if zlib.crc32(block) != int(record["crc"]):
                raise DataError(
                    f"{self._data_path}: the bytes at {begin} differ from those that were written; the "
                    "disk or another program changed them. Delete the cache folder and create it again"
                )
            return self.layout.unpack(block, n_tokens)

    @contextmanager
    def appending(self) -> Iterator[_Appender]:
        """Writes go behind what the index names; the torn tail of a killed run is cut off first. One process
        at a time, which is the caller's to see to.
        """
        self.close()
        end = self._end(self._records)
        with (
            open_behind(self._data_path, end) as data,
            open_behind(self._index_path, self._n_index()) as index,
        ):
            appender = _Appender(self.layout, data, index, end)
            try:
                yield appender
            finally:
                appender.flush()
        self._records = self._read_index()
        self._rows = {bytes(record["hash"]): row for row, record in enumerate(self._records)}

    def close(self) -> None:
        """Lets go of the file. Reading opens it again."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def _n_index(self) -> int:
        return len(self._records) * _RECORD.itemsize

    def _end(self, records: NDArray[Any]) -> int:
        """Bytes of data that the records name."""
        if not len(records):
            return 0
        return int(records[-1]["offset"]) + self.layout.n_bytes(int(records[-1]["n_tokens"]))

    def _read_index(self) -> NDArray[Any]:
        """The records up to the first that is torn or names data that is not there."""
        if not self._index_path.exists():
            return np.empty(0, _RECORD)
        raw = self._index_path.read_bytes()
        records = np.frombuffer(raw[: len(raw) // _RECORD.itemsize * _RECORD.itemsize], _RECORD)
        n_data, end, n_good = self._data_path.stat().st_size if self._data_path.exists() else 0, 0, 0
        for record in records:
            begin, end = end, end + self.layout.n_bytes(int(record["n_tokens"]))
            if int(record["offset"]) != begin or end > n_data or _own_crc(record) != int(record["own_crc"]):
                break
            n_good += 1
        return records[:n_good]


class _Appender:
    """Writes blocks, and their records once the blocks are on the disk."""

    def __init__(self, layout: Layout, data: BinaryIO, index: BinaryIO, end: int) -> None:
        self._layout, self._data, self._index, self._end = layout, data, index, end
        self._waiting: list[NDArray[Any]] = []
        self._n_waiting = 0

    def append(self, token_hash: bytes, captured: Capture) -> None:
        """Adds one capture; it can be read after `appending` ends."""
        block = self._layout.pack(captured)
        record = np.zeros((), _RECORD)
        record["offset"], record["n_tokens"] = self._end, len(captured.label_ids)
        record["crc"], record["hash"] = zlib.crc32(block), np.void(token_hash)
        record["own_crc"] = _own_crc(record)
        self._data.write(block)
        self._end += len(block)
        self._n_waiting += len(block)
        self._waiting.append(record)
        if self._n_waiting >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Puts everything on the disk, data first."""
        for stream, content in ((self._data, []), (self._index, self._waiting)):
            stream.write(b"".join(record.tobytes() for record in content))
            stream.flush()
            os.fsync(stream.fileno())
        self._waiting, self._n_waiting = [], 0


def _own_crc(record: Any) -> int:
    return zlib.crc32(b"".join(record[name].tobytes() for name in ("offset", "n_tokens", "crc", "hash")))


def _to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper half of each f32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits >> 16) & 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    return rounded.astype(np.uint16)


def _from_bf16(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    bits = values.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _to_int8(values: NDArray[np.float32]) -> tuple[NDArray[np.float16], NDArray[np.int8]]:
    """Scales f16 [n_layers, S] and whole numbers from -127 to 127. The scale is rounded first, so that it is
    the one that reading multiplies by.
    """
    largest = np.abs(values).max(axis=2)
    scales = np.minimum(largest / 127, np.finfo(np.float16).max).astype(np.float16)
    scales = np.maximum(scales, np.finfo(np.float16).tiny)
    whole = np.rint(values / scales.astype(np.float32)[:, :, None])
    return scales, np.clip(whole, -127, 127).astype(np.int8)
