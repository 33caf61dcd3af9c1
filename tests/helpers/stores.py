# SPDX-License-Identifier: MIT
"""Types of the fixtures that tests of stores share (tests/unit/store/conftest.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OllamaModel", "Tiny"]

OllamaModel = Callable[..., Path]
"""`ollama("library/llama3.2/3b", {"model": data, ...})`: puts a model into an Ollama store made by hand."""


@dataclass(frozen=True)
class Tiny:
    """A tiny target, its drafter as GGUF and as checkpoint, and a target that it does not fit."""

    target: Path
    draft: Path
    checkpoint: Path
    other: Path
