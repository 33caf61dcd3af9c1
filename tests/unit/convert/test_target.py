# SPDX-License-Identifier: MIT
"""Tests the values that the converter reads from a target's GGUF, and the files that it refuses."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from eaglecpp.convert.errors import GgufError, SourceError, TargetError
from eaglecpp.convert.target_info import open_target
from helpers.gguf_writer import finish


def head_only(path: Path, arch: str, **keys: int) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    for name, value in keys.items():
        writer.add_uint32(f"{arch}.{name}", value)
    writer.add_token_list(["a", "b"])
    finish(writer)
    return path


def test_prediction_layers_are_not_blocks_of_the_target(tmp_path: Path) -> None:
    path = head_only(
        tmp_path / "x.gguf", "glm4moe", block_count=47, nextn_predict_layers=1, embedding_length=8
    )
    assert open_target(path).block_count == 46


@pytest.mark.parametrize("arch", ["eagle3", "eagle31", "dflash", "clip"])
def test_a_drafter_or_projector_is_not_a_target(arch: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=f"expected a target model, found architecture '{arch}'"):
        open_target(head_only(tmp_path / "x.gguf", arch, block_count=1, embedding_length=8))


@pytest.mark.parametrize("keys", [{"block_count": 2}, {"block_count": 0, "embedding_length": 8}])
def test_a_target_without_sizes(keys: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="expected a positive integer"):
        open_target(head_only(tmp_path / "x.gguf", "llama", **keys))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected the target's GGUF file"):
        open_target(tmp_path / "none.gguf")
    with pytest.raises(SourceError, match="found a folder"):
        open_target(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    with pytest.raises(GgufError, match="not a GGUF file"):
        open_target(tmp_path / "x.gguf")
