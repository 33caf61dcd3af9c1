# SPDX-License-Identifier: MIT
"""A file with a Modelfile of its own, as something that was found."""

from __future__ import annotations

from pathlib import Path

from eaglecpp.modelfile import Modelfile
from eaglecpp.opening.find import Found
from eaglecpp.store.resolve import ResolvedModel

__all__ = ["found_file"]


def found_file(target: Path, text: str, draft: Path | None = None) -> Found:
    """`target` with the lines of a Modelfile behind its FROM, and a drafter that nobody asked for."""
    modelfile = Modelfile.from_text(f"FROM {target}\n{text}")
    return Found(ResolvedModel(str(target), "path", target, modelfile=modelfile), draft, "a test")
