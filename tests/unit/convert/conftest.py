# SPDX-License-Identifier: MIT
"""Fixtures for the converter's tests: a tiny target, and a function that converts a checkpoint for this
target.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.convert import ConvertReport, convert_checkpoint
from helpers.tiny import TinyTarget


@pytest.fixture
def convert(target: TinyTarget, tmp_path: Path) -> Callable[..., ConvertReport]:
    """Returns a function `convert(checkpoint, **options)` that converts for the tiny target, to F32 by
    default.
    """

    def run(checkpoint: Path, **options: Any) -> ConvertReport:
        options = {"target": target.gguf, "out": tmp_path / "out.gguf", "type": "F32", **options}
        return convert_checkpoint(checkpoint, **options)

    return run
