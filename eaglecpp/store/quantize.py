# SPDX-License-Identifier: MIT
"""`create -q TYPE`: a target GGUF in F32, F16 or BF16 to a smaller type, by llama.cpp's own quantiser."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from eaglecpp.errors import EagleError, InvalidValueError, UnsupportedError
from eaglecpp.store.errors import Report, Status
from eaglecpp.store.facts import FILE_TYPES, Facts

_SOURCES = ("F32", "F16", "BF16")


def quantize_target(files: Sequence[Path], facts: Facts, type: str, out: Path, report: Report) -> None:
    """Writes the target of these files to `out` in another type.

    Raises ValueError for an unknown type, UnsupportedError for what is split or quantised already, OSError
    when the disk is full, EagleError when llama.cpp fails.
    """
    import llama_cpp

    import eaglecpp._extension  # noqa: F401 - installs the log sink, which llama.cpp's messages go to
    from eaglecpp.log import drain

    number = FILE_TYPES.get(type.upper())
    if number is None:
        raise InvalidValueError(f"unknown type {type!r}; expected one of {', '.join(sorted(FILE_TYPES))}")
    source = files[0]
    if len(files) > 1:
        raise UnsupportedError(
            f"{source}: a split GGUF cannot be quantised; merge it first (llama-gguf-split --merge)"
        )
    if facts.file_type not in _SOURCES:
        raise UnsupportedError(
            f"{source}: already {facts.file_type}; quantising twice loses quality, so start from F32 or F16"
        )
    report(Status(f"quantizing {facts.file_type} model to {type.upper()}"))
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = number
    try:
        failed = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params))
    finally:
        drain()
    if failed:
        with out.open("ab") as stream:  # llama.cpp does not say whether it was the disk: the system does
            stream.write(bytes(1 << 20))
        raise EagleError(
            f"{source}: llama.cpp cannot quantise it to {type.upper()} (`eaglecpp --log-level info create` "
            "shows why)"
        )
