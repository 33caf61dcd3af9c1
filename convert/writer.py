# SPDX-License-Identifier: MIT
"""Writes a GGUF in one pass: keys, tensor list, then tensor data chunk by chunk, into an open temporary file.

`replace_file` gives that file a temporary name next to the destination and renames it only when everything
(data, verification, fsync) is done, so a conversion that fails or is killed leaves the old file unchanged.
`verify_file` reads the file back and compares it with what was intended.
"""

from __future__ import annotations

import contextlib
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter

from .errors import GgufError, VerifyError, WriteError
from .files import replaced
from .gguf_file import TensorInfo, read_gguf
from .gguf_head import Field


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to write.

    shape: slowest axis first. chunks: its encoded bytes in order, produced when asked for.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    chunks: Callable[[], Iterator[bytes]]

    @property
    def n_bytes(self) -> int:
        block, block_bytes = GGML_QUANT_SIZES[self.type]
        return math.prod(self.shape) // int(block) * int(block_bytes)


def write_gguf(
    path: Path,
    architecture: str,
    fields: Mapping[str, Field],
    tensors: Iterable[PlannedTensor],
    progress: Callable[[str, int], None],
) -> dict[str, int]:
    """Write the file; returns the CRC-32 of each tensor's bytes by name.

    progress: tensor name and bytes just written.
    """
    planned = list(tensors)
    writer = GGUFWriter(path, architecture)
    for field in fields.values():
        writer.add_key_value(field.name, field.value, field.type, field.sub_type)
    for tensor in planned:
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.n_bytes, tensor.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    file = writer.fout[0]
    try:
        writer.write_padding(file, file.tell())
        return {tensor.name: _write_tensor(writer, tensor, progress) for tensor in planned}
    finally:
        writer.close()


def _write_tensor(writer: GGUFWriter, tensor: PlannedTensor, progress: Callable[[str, int], None]) -> int:
    assert writer.fout is not None
    file, crc, written = writer.fout[0], 0, 0
    for chunk in tensor.chunks():
        file.write(chunk)
        crc = zlib.crc32(chunk, crc)
        written += len(chunk)
        progress(tensor.name, len(chunk))
    if written != tensor.n_bytes:
        raise WriteError(f"tensor {tensor.name}: expected {tensor.n_bytes} bytes, produced {written}")
    writer.write_padding(file, written)
    return crc


@contextlib.contextmanager
def replace_file(out: Path) -> Iterator[Path]:
    """A temporary file beside `out`, renamed to it when the block ends well and removed when it does not.

    Raises WriteError for every operating system error.
    """
    out = Path(os.path.realpath(out))
    try:
        with replaced(out) as temporary:
            yield temporary
    except OSError as error:
        raise WriteError(f"{out}: cannot be written: {error.strerror or error}") from error


_CHUNK = 16 << 20


def verify_file(
    path: Path,
    architecture: str,
    fields: Mapping[str, Field],
    tensors: Iterable[PlannedTensor],
    crcs: Mapping[str, int],
) -> None:
    """Raise VerifyError on the first difference between the file and the plan."""
    try:
        file = read_gguf(path)
    except GgufError as error:
        raise VerifyError(f"the written file cannot be read back: {error}") from error
    arch = Field("general.architecture", GGUFValueType.STRING, None, architecture.encode())
    expected = {**fields, arch.name: arch}
    _same("keys", set(expected), set(file.fields))
    for name, field in expected.items():
        found = file.fields[name]
        sub_type = field.sub_type if field.type == GGUFValueType.ARRAY else None
        if (found.type, found.sub_type) != (field.type, sub_type):
            raise VerifyError(f"key {name}: expected type {field.type}, read back {found.type}")
        if not _equal(field.value, found.value):
            raise VerifyError(f"key {name}: the value read back differs from the one written")
    planned = {tensor.name: tensor for tensor in tensors}
    _same("tensors", set(planned), set(file.tensors))
    with path.open("rb") as data:
        for name, tensor in planned.items():
            found_tensor = file.tensors[name]
            if (found_tensor.shape, found_tensor.type) != (tensor.shape, int(tensor.type)):
                raise VerifyError(f"tensor {name}: shape or type read back differs from the one written")
            if _crc(data, found_tensor) != crcs[name]:
                raise VerifyError(
                    f"tensor {name}: the data read back differs from the data written; failing disk?"
                )


def _same(what: str, expected: set[str], found: set[str]) -> None:
    if expected != found:
        raise VerifyError(
            f"{what} read back differ from those written: {', '.join(sorted(expected ^ found)[:8])}"
        )


def _equal(written: Any, read: Any) -> bool:
    if isinstance(written, list | tuple):
        return len(written) == len(read) and all(map(_equal, written, read))
    if isinstance(written, str):
        return bool(written.encode() == read)
    if isinstance(written, float):  # stored as float32
        return math.isclose(written, read, rel_tol=1e-6, abs_tol=1e-37)
    return bool(written == read)


def _crc(data: Any, tensor: TensorInfo) -> int:
    data.seek(tensor.offset)
    crc, left = 0, tensor.n_bytes
    while left:
        chunk = data.read(min(left, _CHUNK))
        if not chunk:
            raise VerifyError(f"tensor {tensor.name}: ends early when read back")
        crc = zlib.crc32(chunk, crc)
        left -= len(chunk)
    return crc
