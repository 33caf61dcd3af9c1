# SPDX-License-Identifier: MIT
"""Helpers that finish writing a GGUF file, and read keys and tensors from a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np


def finish(
    writer: gguf.GGUFWriter, tensors: Mapping[str, np.ndarray[Any, Any]] = MappingProxyType({})
) -> None:
    """Adds tensors to a GGUF file, writes its header, keys and tensors, and closes it."""
    for name, data in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors_of(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the tensors of a GGUF file by name, in their stored layout."""
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def key_of(path: Path, name: str) -> Any:
    """Returns the value of a key of a GGUF file."""
    return gguf.GGUFReader(path).fields[name].contents()


def check_same_tensors(path: Path, other: Path) -> None:
    """Compares the tensors of two files, and fails with the name of a tensor that differs."""
    found, expected = tensors_of(path), tensors_of(other)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
