# SPDX-License-Identifier: MIT
"""Index of a .safetensors file: name, shape, dtype and position of every tensor.

The safetensors library validates the header (sizes, overlaps, dtypes). The library does not return byte
offsets, so this module reads the header once more. `TensorSource` reads the tensor data, because the
library's numpy reader does not support bfloat16.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from .errors import CheckpointError
from .files import open_regular
from .tensor import DTYPE_BYTES, TensorSource

# Maximum bytes of a header. A header has some hundred bytes per tensor, and takes ten times as much memory
# once it is parsed.
_MAX_HEADER_BYTES = 16 << 20


def read_index(path: Path) -> dict[str, TensorSource]:
    """Returns all tensors of the file by name.

    Raises CheckpointError for a malformed file or an unsupported dtype.
    """
    try:
        with open_regular(path) as file:
            size = int.from_bytes(file.read(8), "little")
        if size > _MAX_HEADER_BYTES:
            raise ValueError(f"expected a header of at most {_MAX_HEADER_BYTES} bytes, found {size}")
        with safe_open(path, framework="numpy"):
            pass
        with path.open("rb") as file:
            header: dict[str, Any] = json.loads(file.read(8 + size)[8:])
    except (SafetensorError, OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: not a readable safetensors file: {why}") from error
    sources: dict[str, TensorSource] = {}
    header.pop("__metadata__", None)
    for name, entry in header.items():
        dtype = str(entry["dtype"])
        if dtype not in DTYPE_BYTES:
            raise CheckpointError(
                f"{path}: tensor {name}: expected dtype {', '.join(DTYPE_BYTES)}, found {dtype}; use the "
                "original bf16, fp16 or fp32 checkpoint"
            )
        sources[name] = TensorSource(
            name, tuple(entry["shape"]), dtype, path, 8 + size + entry["data_offsets"][0]
        )
    return sources
