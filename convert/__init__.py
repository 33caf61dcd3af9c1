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
    from . import errors, files, inspection, keys
    from .gguf_file import GgufFile, read_gguf, read_rows, read_tensor
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
    from .quantize import TYPES, TypePlan, as_stored, parse_type
    from .readings import Choice, Reading, checked_readings
    from .report import facts_text, report_text
    from .rope import rope_divisors, unpair_rows
    from .spec import BlockSpec, DraftSpec, RopeSpec

# where the names are, modules that need least before those that need more
_HOMES = (
    "gguf_head",
    "spec",
    "readings",
    "rope",
    "gguf_file",
    "inspection",
    "quantize",
    "pipeline",
    "report",
)
__all__ = [
    "TYPES",
    "BlockSpec",
    "Choice",
    "ConvertReport",
    "DraftCheckpoint",
    "DraftSpec",
    "GgufFile",
    "Progress",
    "Reading",
    "RopeSpec",
    "TypePlan",
    "as_stored",
    "checked_readings",
    "convert_checkpoint",
    "errors",
    "facts_text",
    "files",
    "inspect_file",
    "inspection",
    "keys",
    "open_choices",
    "open_drafter",
    "parse_type",
    "read_gguf",
    "read_keys",
    "read_rows",
    "read_tensor",
    "report_text",
    "rope_divisors",
    "unpair_rows",
]


def __getattr__(name: str) -> Any:
    """Names load on first use: whoever reads the head of a file needs neither numpy nor gguf."""
    if name in ("errors", "files", "inspection", "keys"):
        return importlib.import_module(f".{name}", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = (importlib.import_module(f".{home}", __name__) for home in _HOMES)
    value = next(getattr(module, name) for module in modules if hasattr(module, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
