# SPDX-License-Identifier: MIT
"""`--read-as`: a copy of the target in a type that this machine multiplies faster, to write and read with.

Weights of few bits are made for one row at a time; a training reads thousands of rows. On a CPU with
AVX512-BF16 a 4-bit target is read several times as fast as BF16 (docs/train.md has the figures, and how far
the copy's states are from the target's). The drafter still is one for the target: only what it learns from
was computed in other roundings.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

from eaglecpp.errors import EagleError
from eaglecpp.store.files import replace_bytes
from eaglecpp.store.quantize import target_types
from eaglecpp.train.identity import identify

__all__ = ["COPY_TYPES", "fast_copy"]

COPY_TYPES = ("BF16", "F16", "Q8_0")


def fast_copy(target: Path, type: str, folder: Path) -> Path:
    """The copy of `target` as `type` in `folder`, made if it is not there.

    Raises ValueError for another type, EagleError when llama.cpp cannot make it.
    """
    import llama_cpp

    import eaglecpp._extension  # noqa: F401 - installs the log sink, which llama.cpp's messages go to
    from eaglecpp.log import drain

    if type not in COPY_TYPES:
        raise ValueError(f"read_as: expected one of {', '.join(COPY_TYPES)}, found {type}")
    out, note = folder / f"target-{type}.gguf", folder / f"target-{type}.json"
    facts = {"target": identify(target).target_sha256, "type": type}
    if out.is_file() and note.is_file() and json.loads(note.read_bytes()) == facts:
        return out
    folder.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = target_types()[type]
    params.allow_requantize = True  # to more bits: nothing is lost that the target has
    try:
        failed = llama_cpp.llama_model_quantize(
            str(target).encode(), str(part).encode(), ctypes.byref(params)
        )
    finally:
        drain()
    if failed:
        part.unlink(missing_ok=True)
        raise EagleError(f"{target}: llama.cpp cannot write it as {type}; leave out --read-as")
    note.unlink(missing_ok=True)
    part.replace(out)
    replace_bytes(note, json.dumps(facts).encode())
    return out
