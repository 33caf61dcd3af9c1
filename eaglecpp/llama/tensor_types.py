# SPDX-License-Identifier: MIT
"""ggml's names of tensor types, which llama_cpp gives as numbers."""

from __future__ import annotations

__all__ = ["type_name", "type_number"]


def type_number(kind: int | str | None) -> int | None:
    """ggml's number of a tensor type."""
    if isinstance(kind, str) and kind != "auto":
        from gguf import GGMLQuantizationType

        return int(GGMLQuantizationType[kind.upper()])
    return kind if isinstance(kind, int) else None


def type_name(kind: int | str | None) -> str:
    """ggml's name of a tensor type given as ggml's number, as a name, or as None (the default)."""
    if isinstance(kind, int):
        from gguf import GGMLQuantizationType

        return str(GGMLQuantizationType(kind).name).lower()
    return kind or "auto"
