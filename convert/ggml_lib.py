# SPDX-License-Identifier: MIT
"""ggml's own quantiser, through ctypes: `libggml-base` from the installed llama_cpp package.

The package llama_cpp is never imported, because importing it would load a whole inference engine. Only its
library file is located. The library is loaded on first use, so F32, F16 and BF16 conversions and `inspect` do
not need the library.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from .errors import QuantTypeError

_F32 = npt.NDArray[np.float32]
_U8 = npt.NDArray[np.uint8]
_LIBRARY = {"win32": "ggml-base.dll", "darwin": "libggml-base.dylib"}.get(sys.platform, "libggml-base.so")


def quantize_rows(rows: _F32, kind: GGMLQuantizationType) -> _U8:
    """Quantises `[n_rows, n]` float32 to `[n_rows, row bytes]`. n must be a multiple of the type's block
    size, and all values finite.

    Releases the GIL. Rows are independent, so callers may distribute rows over threads.
    """
    n_rows, n = rows.shape
    block, block_bytes = GGML_QUANT_SIZES[kind]
    out = np.empty((n_rows, n // block * block_bytes), dtype=np.uint8)
    written = _library().ggml_quantize_chunk(int(kind), rows.ctypes.data, out.ctypes.data, 0, n_rows, n, None)
    if written != out.nbytes:
        raise QuantTypeError(
            f"type {kind.name}: expected {out.nbytes} bytes from ggml, got {written}; the installed ggml "
            "does not match the gguf package"
        )
    return out


def dequantize_rows(data: _U8, kind: GGMLQuantizationType, n: int) -> _F32:
    """Dequantises `[n_rows, row bytes]` to `[n_rows, n]` float32. Raises QuantTypeError for a type that does
    not store quantised floats.
    """
    name = f"dequantize_row_{kind.name.lower().replace('_k', '_K')}"
    to_float = getattr(_library(), name, None)
    if to_float is None:
        raise QuantTypeError(f"type {kind.name}: ggml cannot convert this type to floats")
    to_float.restype, to_float.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    out = np.empty((data.shape[0], n), dtype=np.float32)
    to_float(data.ctypes.data, out.ctypes.data, out.size)
    return out


@functools.cache
def _library() -> Any:
    spec = importlib.util.find_spec("llama_cpp")
    folders = list(spec.submodule_search_locations or []) if spec else []
    path = next((p for p in (Path(folder) / "lib" / _LIBRARY for folder in folders) if p.is_file()), None)
    if path is None:
        raise QuantTypeError(
            f"{_LIBRARY} of llama-cpp-python was not found; it contains ggml's quantiser. Install "
            "llama-cpp-python, or convert to F32, F16 or BF16"
        )
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise QuantTypeError(f"{path}: cannot be loaded: {error}") from error
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = (
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,  # type, source, destination
        # start, number of rows, row length, importance matrix
        ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    )  # fmt: skip
    return lib
