# SPDX-License-Identifier: MIT
"""`write_split`: a GGUF as several files, named and marked as llama.cpp's gguf-split does it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf

__all__ = ["write_split"]


def write_split(file: Path, stem: Path, n_parts: int) -> list[Path]:
    """Writes `<stem>-00001-of-0000N.gguf` and so on; all keys are in the first part, tensors are spread."""
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
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        parts.append(path)
    return parts


def copy_keys(
    reader: gguf.GGUFReader, writer: gguf.GGUFWriter, changed: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """All keys; changed: with these values instead."""
    for name, entry in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        sub_type = entry.types[1] if len(entry.types) > 1 else None
        writer.add_key_value(name, changed.get(name, entry.contents()), entry.types[0], sub_type)
