# SPDX-License-Identifier: MIT
"""Converts EAGLE and block drafter checkpoints to GGUF.

    from eaglecpp.convert import convert_checkpoint
    report = convert_checkpoint("checkpoint_dir", target="target.gguf", out="draft.gguf", type="Q8_0")

This package imports no other module of eaglecpp and needs no compiled extension. Its errors are subclasses of
`errors.EagleError`. docs/gguf-format.md describes the files that it writes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors as errors
    from . import files as files
    from . import inspection as inspection
    from . import keys as keys
    from .gguf_file import GgufFile as GgufFile
    from .gguf_file import read_gguf as read_gguf
    from .gguf_file import read_rows as read_rows
    from .gguf_file import read_tensor as read_tensor
    from .gguf_head import read_keys as read_keys
    from .inspection import inspect_file as inspect_file
    from .pipeline import ConvertReport as ConvertReport
    from .pipeline import DraftCheckpoint as DraftCheckpoint
    from .pipeline import Progress as Progress
    from .pipeline import convert_checkpoint as convert_checkpoint
    from .pipeline import open_choices as open_choices
    from .pipeline import open_drafter as open_drafter
    from .quantize import TYPES as TYPES
    from .quantize import TypePlan as TypePlan
    from .quantize import as_stored as as_stored
    from .quantize import parse_type as parse_type
    from .readings import Choice as Choice
    from .readings import Reading as Reading
    from .readings import checked_readings as checked_readings
    from .rope import rope_divisors as rope_divisors
    from .rope import unpair_rows as unpair_rows
    from .spec import BlockSpec as BlockSpec
    from .spec import DraftSpec as DraftSpec
    from .spec import RopeSpec as RopeSpec

_HOMES = {
    "gguf_file": ("GgufFile", "read_gguf", "read_rows", "read_tensor"),
    "gguf_head": ("read_keys",),
    "inspection": ("inspect_file",),
    "pipeline": (
        "ConvertReport",
        "DraftCheckpoint",
        "Progress",
        "convert_checkpoint",
        "open_choices",
        "open_drafter",
    ),
    "quantize": ("TYPES", "TypePlan", "as_stored", "parse_type"),
    "readings": ("Choice", "Reading", "checked_readings"),
    "rope": ("rope_divisors", "unpair_rows"),
    "spec": ("BlockSpec", "DraftSpec", "RopeSpec"),
}
_PUBLIC = {name: home for home, names in _HOMES.items() for name in names}
_SUBMODULES = ("errors", "files", "inspection", "keys")


def __getattr__(name: str) -> Any:
    """Imports a public name of the package on its first use, so that reading the head of a GGUF needs neither
    numpy nor gguf.
    """
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_SUBMODULES})
