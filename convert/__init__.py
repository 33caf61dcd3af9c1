# SPDX-License-Identifier: MIT
"""EAGLE drafter checkpoints to GGUF.

    from eaglecpp.convert import convert_checkpoint
    report = convert_checkpoint("checkpoint_dir", target="target.gguf", out="draft.gguf", type="Q8_0")

A leaf package: it imports nothing else from eaglecpp and needs no compiled extension.
Errors are subclasses of `errors.EagleError`. docs/gguf-format.md describes the files.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors, files
    from .gguf_file import GgufFile, read_gguf, read_rows, read_tensor, type_name
    from .gguf_head import read_keys
    from .inspection import inspect_file
    from .pipeline import (
        ConvertReport,
        DraftCheckpoint,
        Progress,
        convert_checkpoint,
        open_choices,
        open_drafter,
    )
    from .quantize import TypePlan, as_stored, parse_type
    from .readings import Choice, Reading
    from .rope import rope_divisors, unpair_rows
    from .spec import DraftSpec, LatentSpec, RopeSpec
    from .stream import TensorReport

_HOMES = {
    name: home
    for home, names in {
        "gguf_file": ("GgufFile", "read_gguf", "read_rows", "read_tensor", "type_name"),
        "gguf_head": ("read_keys",),
        "inspection": ("inspect_file",),
        "pipeline": (
            *("ConvertReport", "DraftCheckpoint", "Progress"),
            *("convert_checkpoint", "open_choices", "open_drafter"),
        ),
        "quantize": ("TypePlan", "as_stored", "parse_type"),
        "readings": ("Choice", "Reading"),
        "rope": ("rope_divisors", "unpair_rows"),
        "spec": ("DraftSpec", "LatentSpec", "RopeSpec"),
        "stream": ("TensorReport",),
    }.items()
    for name in names
}
__all__ = [
    "Choice",
    "ConvertReport",
    "DraftCheckpoint",
    "DraftSpec",
    "GgufFile",
    "LatentSpec",
    "Progress",
    "Reading",
    "RopeSpec",
    "TensorReport",
    "TypePlan",
    "as_stored",
    "convert_checkpoint",
    "errors",
    "files",
    "inspect_file",
    "open_choices",
    "open_drafter",
    "parse_type",
    "read_gguf",
    "read_keys",
    "read_rows",
    "read_tensor",
    "rope_divisors",
    "type_name",
    "unpair_rows",
]


def __getattr__(name: str) -> Any:
    """Names load on first use: whoever reads the head of a file needs neither numpy nor gguf."""
    if name in ("errors", "files"):
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
