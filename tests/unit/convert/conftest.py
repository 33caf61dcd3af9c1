# SPDX-License-Identifier: MIT
"""One tiny target for all converter tests, and a short way to convert a checkpoint against it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.convert import ConvertReport, convert_checkpoint
from helpers.tiny import TargetSpec, TinyTarget, make_target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    """8 blocks, 64 wide, 367 tokens: what `DraftShape()` is made for."""
    return make_target(tmp_path_factory.mktemp("target"), TargetSpec(chat_template=True))


@pytest.fixture
def convert(target: TinyTarget, tmp_path: Path) -> Callable[..., ConvertReport]:
    """`convert(checkpoint, **options)` against the tiny target, F32 unless said otherwise."""

    def run(checkpoint: Path, **options: Any) -> ConvertReport:
        options = {"target": target.gguf, "out": tmp_path / "out.gguf", "type": "F32", **options}
        return convert_checkpoint(checkpoint, **options)

    return run
