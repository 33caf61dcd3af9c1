# SPDX-License-Identifier: MIT
"""`write_split` writes a GGUF as several files, with the names and keys that llama.cpp's gguf-split would
give them. `rewrite` copies a GGUF with changed keys and tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from helpers.gguf_writer import finish

Tensors = dict[str, NDArray[np.generic]]


def write_split(file: Path, stem: Path, n_parts: int) -> list[Path]:
    """Writes the files `<stem>-00001-of-0000N.gguf` and so on. The first file has all keys, and the tensors
    are spread over all files.
    """
    reader = gguf.GGUFReader(file)
    arch = str(reader.fields["general.architecture"].contents())
    parts = []
    for number in range(n_parts):
        path = stem.with_name(f"{stem.name}-{number + 1:05}-of-{n_parts:05}.gguf")
        writer = gguf.GGUFWriter(path, arch)
        if number == 0:
            copy_keys(reader, writer)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", n_parts)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::n_parts]:
            writer.add_tensor(tensor.name, tensor.data)
        finish(writer)
        parts.append(path)
    return parts


def copy_keys(
    reader: gguf.GGUFReader, writer: gguf.GGUFWriter, changed: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Copies all keys of a GGUF. changed: values to replace or add; None leaves a key out."""
    kept = {name: entry.contents() for name, entry in reader.fields.items() if not name.startswith("GGUF.")}
    for name, value in (kept | dict(changed)).items():
        if name == "general.architecture" or value is None or value == []:
            continue
        if type(value) is type(kept.get(name)):
            kind, *inner = reader.fields[name].types
        else:
            kind, inner = gguf.GGUFValueType.get_type(value), []
            kind = gguf.GGUFValueType.UINT32 if kind is gguf.GGUFValueType.INT32 else kind
        writer.add_key_value(name, value, kind, inner[-1] if inner else None)


def rewrite(
    file: Path,
    out: Path,
    change: Callable[[Tensors], object] = lambda tensors: None,
    changed: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Copies a GGUF. change: called with the file's tensors, in their stored layout. changed: changes of
    keys, as in `copy_keys`.
    """
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    copy_keys(reader, writer, changed)
    before = {tensor.name: tensor for tensor in reader.tensors}
    tensors: Tensors = {name: np.array(tensor.data) for name, tensor in before.items()}
    same = dict(tensors)
    change(tensors)
    for name, data in tensors.items():
        kind = before[name].tensor_type if data is same.get(name) else None
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)
    finish(writer)
    return out
