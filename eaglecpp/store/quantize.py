# SPDX-License-Identifier: MIT
"""`create -q TYPE`: a target GGUF in F32, F16 or BF16 to a smaller type, by llama.cpp's own quantiser."""

from __future__ import annotations

import ctypes
from pathlib import Path

from eaglecpp.errors import EagleError, InvalidValueError, UnsupportedError
from eaglecpp.store.errors import Report, Status
from eaglecpp.store.facts import Facts

__all__ = ["quantize_target", "target_types"]

_SOURCES = ("F32", "F16", "BF16")
_PREFIX = "LLAMA_FTYPE_MOSTLY_"


def target_types() -> dict[str, int]:
    """llama.cpp's number of every type a target can be quantised to, by name (Q4_K_M ...)."""
    import llama_cpp

    return {
        name.removeprefix(_PREFIX): int(getattr(llama_cpp, name))
        for name in dir(llama_cpp)
        if name.startswith(_PREFIX) and isinstance(getattr(llama_cpp, name), int)
    }


def quantize_target(source: Path, facts: Facts, type: str, out: Path, report: Report) -> None:
    """Writes `source` to `out` in another type.

    Raises ValueError for an unknown type, UnsupportedError for a source that is quantised already, EagleError
    when llama.cpp fails.
    """
    import llama_cpp

    import eaglecpp._extension  # noqa: F401 - installs the log sink, which llama.cpp's messages go to
    from eaglecpp.log import drain

    types = target_types()
    if type.upper() not in types:
        raise InvalidValueError(f"unknown type {type!r}; expected one of {', '.join(sorted(types))}")
    if facts.file_type not in _SOURCES:
        raise UnsupportedError(
            f"{source}: already {facts.file_type}; quantising twice loses quality, so start from F32 or F16"
        )
    report(Status(f"quantizing {facts.file_type} model to {type.upper()}"))
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = types[type.upper()]
    try:
        failed = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params))
    finally:
        drain()
    if failed:
        raise EagleError(
            f"{source}: llama.cpp cannot quantise it to {type.upper()} (`eaglecpp --log-level info create` "
            "shows why)"
        )
