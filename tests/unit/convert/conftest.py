# SPDX-License-Identifier: MIT
"""Fixtures for the converter's tests: a tiny target, and a function that converts a checkpoint for this
target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eaglecpp.convert import ConvertReport, convert_checkpoint
from helpers.checkpoints import Convert, write_checkpoint
from helpers.tiny import TinyTarget

# The arguments of `write_checkpoint`.
WRITTEN = ("family", "shape", "edit", "add", "drop", "save")


@pytest.fixture
def convert(target: TinyTarget, tmp_path: Path) -> Convert:
    """Returns a function `convert(checkpoint, **options)` that converts for the tiny target, to F32 by
    default.
    """

    def run(checkpoint: Path, **options: Any) -> ConvertReport:
        options = {"target": target.gguf, "out": tmp_path / "out.gguf", "type": "F32", **options}
        return convert_checkpoint(checkpoint, **options)

    return run


@pytest.fixture
def converted(convert: Convert, tmp_path: Path) -> Convert:
    """Returns a function `converted(family, shape, edit=..., **options)` that writes a checkpoint with these
    arguments of `write_checkpoint`, and converts it.
    """

    def run(*shape: Any, **given: Any) -> ConvertReport:
        edits = {name: given.pop(name) for name in WRITTEN if name in given}
        return convert(write_checkpoint(tmp_path / "in", *shape, **edits), **given)

    return run
