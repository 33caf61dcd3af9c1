# SPDX-License-Identifier: MIT
"""Helpers that build a `ModelFiles` from a Modelfile, and read a model's options by field name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eaglecpp.modelfile import Modelfile
from eaglecpp.modelfile.parameters import parameter_options
from eaglecpp.opening.find import ModelFiles


def found_file(target: Path, text: str, draft: Path | None = None) -> ModelFiles:
    """Returns the files of a model whose Modelfile has `target` in FROM and then these lines. The drafter is
    chosen automatically.
    """
    modelfile = Modelfile.from_text(f"FROM {target}\n{text}")
    return ModelFiles("store", target, modelfile, draft, draft_origin="a test")


def options_of(model: ModelFiles) -> dict[str, Any]:
    """Returns the options of the model's Modelfile by field name. The result is empty for a bare path."""
    return {key.rpartition(".")[2]: value for key, value in options_in(model.modelfile).items()}


def options_in(modelfile: Modelfile) -> dict[str, Any]:
    """Returns the options that a Modelfile sets, and Ollama's defaults for the others, by "group.field"."""
    return parameter_options(modelfile.parameters) | modelfile.settings.options
