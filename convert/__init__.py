# SPDX-License-Identifier: MIT
"""EAGLE drafter checkpoints to GGUF.

    from eaglecpp.convert import convert_checkpoint
    report = convert_checkpoint("checkpoint_dir", target="target.gguf", out="draft.gguf", type="Q8_0")

A leaf package: it imports nothing else from eaglecpp and works in a bare checkout (`python -m convert`).
Errors are subclasses of `errors.EagleError`. docs/gguf-format.md describes the files.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors
    from .gguf_file import GgufFile, read_gguf, type_name
    from .gguf_head import read_keys
    from .gguf_weights import read_rows, read_tensor
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
    from .readings import Choice
    from .rope import rope_divisors, unpair_rows
    from .spec import DraftSpec, LatentSpec, RopeSpec
    from .stream import TensorReport

_HOMES = {
    "Choice": "readings",
    "ConvertReport": "pipeline",
    "DraftCheckpoint": "pipeline",
    "DraftSpec": "spec",
    "GgufFile": "gguf_file",
    "LatentSpec": "spec",
    "Progress": "pipeline",
    "RopeSpec": "spec",
    "TensorReport": "stream",
    "TypePlan": "quantize",
    "as_stored": "quantize",
    "convert_checkpoint": "pipeline",
    "inspect_file": "inspection",
    "open_choices": "pipeline",
    "open_drafter": "pipeline",
    "parse_type": "quantize",
    "read_gguf": "gguf_file",
    "read_keys": "gguf_head",
    "read_rows": "gguf_weights",
    "read_tensor": "gguf_weights",
    "rope_divisors": "rope",
    "type_name": "gguf_file",
    "unpair_rows": "rope",
}
__all__ = [
    "Choice",
    "ConvertReport",
    "DraftCheckpoint",
    "DraftSpec",
    "GgufFile",
    "LatentSpec",
    "Progress",
    "RopeSpec",
    "TensorReport",
    "TypePlan",
    "as_stored",
    "convert_checkpoint",
    "errors",
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
    if name == "errors":
        return importlib.import_module(".errors", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
