# SPDX-License-Identifier: MIT
"""Every option of the engine: declared once (`declared`), checked (`checked`), and as types for keyword
arguments (`typed`, generated). `Strategy` says how to draft.
"""

from __future__ import annotations

from eaglecpp.options.checked import LARGEST_INT, Option
from eaglecpp.options.declared import (
    HEAD,
    MAX_SEQUENCES,
    TEXT,
    DraftOptions,
    ModelOptions,
    SamplingOptions,
    describe,
    split,
)
from eaglecpp.options.strategy import Strategy

__all__ = [
    "HEAD",
    "LARGEST_INT",
    "MAX_SEQUENCES",
    "TEXT",
    "DraftOptions",
    "ModelOptions",
    "Option",
    "SamplingOptions",
    "Strategy",
    "describe",
    "split",
]
