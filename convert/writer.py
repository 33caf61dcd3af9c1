# SPDX-License-Identifier: MIT
"""Writes a GGUF in one pass: first the keys and the tensor list, then the tensor data chunk by chunk. The
output is a temporary file.

`replace_file` creates the temporary file next to the destination and renames it at the end. So a failed or
killed conversion leaves the old file unchanged.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

from .errors import WriteError
from .files import replaced
from .gguf_head import Field
from .quantize import ErrorSum


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor that the writer will write.

    shape: slowest axis first. chunks: yields the tensor's encoded bytes in order, on demand, and adds the
        rounding errors to `errors`. note: why the tensor does not have the requested type, or ""
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    chunks: Callable[[], Iterator[bytes]]
    errors: ErrorSum
    note: str

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
) -> None:
    """Writes a GGUF file. progress: called with the tensor's name and the number of bytes just written."""
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
        for tensor in planned:
            _write_tensor(writer, tensor, progress)
    finally:
        writer.close()


def _write_tensor(writer: GGUFWriter, tensor: PlannedTensor, progress: Callable[[str, int], None]) -> None:
    assert writer.fout is not None
    file, written = writer.fout[0], 0
    for chunk in tensor.chunks():
        file.write(chunk)
        written += len(chunk)
        progress(tensor.name, len(chunk))
    if written != tensor.n_bytes:
        raise WriteError(f"tensor {tensor.name}: expected {tensor.n_bytes} bytes, produced {written}")
    writer.write_padding(file, written)


@contextlib.contextmanager
def replace_file(out: Path) -> Iterator[Path]:
    """Yields a temporary file next to `out`. If the `with` block succeeds, the temporary file is renamed to
    `out`, otherwise it is removed.

    Raises WriteError for operating system errors.
    """
    out = Path(os.path.realpath(out))
    try:
        with replaced(out) as temporary:
            yield temporary
    except OSError as error:
        raise WriteError(f"{out}: cannot be written: {error.strerror or error}") from error
