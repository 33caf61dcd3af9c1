# SPDX-License-Identifier: MIT
"""Helpers that build a `ModelFiles` from a Modelfile, and read a model's options by field name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eaglecpp.modelfile import Modelfile
from eaglecpp.modelfile.parameters import parameter_options
from eaglecpp.opening.find import ModelFiles


def found_file(target: Path, text: str, draft: Path | None = None) -> ModelFiles:
    """Returns the files of `target`, with these Modelfile lines after FROM and an automatically chosen
    drafter.
    """
    modelfile = Modelfile.from_text(f"FROM {target}\n{text}")
    return ModelFiles("store", target, modelfile, draft, draft_origin="a test")


def options_of(model: ModelFiles) -> dict[str, Any]:
    """Returns the options of the model's Modelfile by field name; empty for a bare path."""
    return {key.rpartition(".")[2]: value for key, value in options_in(model.modelfile).items()}


def options_in(modelfile: Modelfile) -> dict[str, Any]:
    """Returns the options that a Modelfile sets, and Ollama's defaults, by "group.field"."""
    return parameter_options(modelfile.parameters) | modelfile.settings.options
