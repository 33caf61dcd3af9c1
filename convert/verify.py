# SPDX-License-Identifier: MIT
"""Reads the written file back and compares it with what was intended: keys, tensors, every tensor's bytes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFValueType

from .errors import GgufError, VerifyError
from .gguf_file import Field, TensorInfo, read_gguf
from .writer import PlannedTensor

__all__ = ["verify_file"]

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
    expected = {**fields, "general.architecture": _architecture(architecture)}
    _same("keys", set(expected), set(file.fields))
    for name, field in expected.items():
        found = file.fields[name]
        if (found.type, found.sub_type) != (
            field.type,
            field.sub_type if field.type is GGUFValueType.ARRAY else None,
        ):
            raise VerifyError(f"key {name}: expected {field.type.name}, read back {found.type.name}")
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


def _architecture(name: str) -> Field:
    return Field("general.architecture", GGUFValueType.STRING, None, name.encode())


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
