# SPDX-License-Identifier: MIT
"""EAGLE drafter checkpoints to GGUF.

    from eaglecpp.convert import convert_checkpoint
    report = convert_checkpoint("checkpoint_dir", target="target.gguf", out="draft.gguf", type="Q8_0")

A leaf package: it imports nothing else of eaglecpp and works from a bare checkout (`python -m convert`).
Errors are subclasses of `ConvertError`. What the files hold is described in docs/gguf-format.md.
"""

from __future__ import annotations

from . import errors
from .errors import ConvertError
from .gguf_file import GgufFile, read_gguf, type_name
from .gguf_weights import read_tensor
from .inspection import inspect_file
from .pipeline import ConvertReport, DraftCheckpoint, Progress, convert_checkpoint, open_drafter
from .quantize import parse_type
from .rope import rope_divisors
from .spec import DraftSpec, RopeSpec
from .stream import TensorReport

__all__ = [
    "ConvertError",
    "ConvertReport",
    "DraftCheckpoint",
    "DraftSpec",
    "GgufFile",
    "Progress",
    "RopeSpec",
    "TensorReport",
    "convert_checkpoint",
    "errors",
    "inspect_file",
    "open_drafter",
    "parse_type",
    "read_gguf",
    "read_tensor",
    "rope_divisors",
    "type_name",
]
