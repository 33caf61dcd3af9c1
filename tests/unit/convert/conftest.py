# SPDX-License-Identifier: MIT
"""One tiny target for all converter tests, and a short way to convert a checkpoint against it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.convert import ConvertReport, convert_checkpoint
from helpers.tiny import TinyTarget


@pytest.fixture
def convert(target: TinyTarget, tmp_path: Path) -> Callable[..., ConvertReport]:
    """`convert(checkpoint, **options)` against the tiny target, F32 unless said otherwise."""

    def run(checkpoint: Path, **options: Any) -> ConvertReport:
        options = {"target": target.gguf, "out": tmp_path / "out.gguf", "type": "F32", **options}
        return convert_checkpoint(checkpoint, **options)

    return run
