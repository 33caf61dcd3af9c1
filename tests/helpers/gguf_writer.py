# SPDX-License-Identifier: MIT
"""Finishes a GGUF file, and reads keys and tensors from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes the header, the keys and the tensors, and closes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors_of(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the tensors by name, in their stored layout."""
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def key_of(path: Path, name: str) -> Any:
    """Returns the value of a key."""
    return gguf.GGUFReader(path).fields[name].contents()


def check_same_tensors(path: Path, other: Path, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Fails with the tensor's name if two files differ."""
    found, expected = tensors_of(path), tensors_of(other)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol, atol, err_msg=name)
