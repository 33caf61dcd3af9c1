# SPDX-License-Identifier: MIT
"""A file with a Modelfile of its own, as something that was found; options of a model by field name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eaglecpp.modelfile import Modelfile
from eaglecpp.opening.find import ModelFiles


def found_file(target: Path, text: str, draft: Path | None = None) -> ModelFiles:
    """`target` with the lines of a Modelfile behind its FROM, and a drafter that nobody asked for."""
    modelfile = Modelfile.from_text(f"FROM {target}\n{text}")
    return ModelFiles("store", target, modelfile, draft, draft_origin="a test")


def options_of(model: ModelFiles) -> dict[str, Any]:
    """What its Modelfile says, by field name; empty for a bare path."""
    return {key.rpartition(".")[2]: value for key, value in model.modelfile.engine_options().items()}
