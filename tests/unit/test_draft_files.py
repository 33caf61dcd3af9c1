# SPDX-License-Identifier: MIT
"""Tests drafter files of EAGLE-1 and 2, which are read back as written and fit only one target.
tests/native/gguf tests malformed files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import eaglecpp
from eaglecpp.convert import convert_checkpoint
from eaglecpp.errors import MismatchError
from eaglecpp.lowlevel import DraftFile
from helpers.checkpoints import write_checkpoint
from helpers.random_block import BlockShape
from helpers.random_drafter import EAGLE1, DraftShape
from helpers.tiny import TargetSpec, TinyTarget, make_target
from helpers.tiny_split import rewrite


def converted(folder: Path, target: TinyTarget, shape: DraftShape) -> Path:
    checkpoint = write_checkpoint(folder / "in", shape=shape)
    return convert_checkpoint(checkpoint, target.gguf, folder / "draft.gguf", type="F32").out


def test_an_eagle_file_is_read_back(target: TinyTarget, tmp_path: Path) -> None:
    path = converted(tmp_path, target, EAGLE1)
    info = DraftFile(str(rewrite(path, tmp_path / "again.gguf"))).info
    assert info == DraftFile(str(path)).info
    assert (info["arch"], info["fuses_embedding"], info["target_layers"]) == ("eagle", True, [9])
    assert (info["n_aux"], info["has_head"], info["norm_output"]) == (1, False, False)


def test_a_target_of_another_depth_does_not_fit(target: TinyTarget, tmp_path: Path) -> None:
    path = converted(tmp_path, target, EAGLE1)
    other = make_target(tmp_path / "other", TargetSpec(n_layers=6))
    with pytest.raises(MismatchError, match="id of the final norm's output: drafter 9, target 7"):
        eaglecpp.Engine.open(other.gguf, draft=path)


def test_unused_keys_are_named_at_opening(
    target: TinyTarget, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = converted(tmp_path, target, EAGLE1)
    changed = {"eagle.attention.sinks": 4, "eagle.rope.twice": False}
    draft = rewrite(path, tmp_path / "other.gguf", changed=changed)
    for file, n in ((path, 0), (draft, 1)):
        with eaglecpp.Engine.open(target.gguf, draft=file):
            assert caplog.text.count("unknown keys: eagle.attention.sinks = 4; ") == n
    assert "rope.twice" not in caplog.text


def test_a_block_drafter_without_a_head_causes_a_warning_at_opening(
    target: TinyTarget, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tests the warning for a block drafter without a head. Files of llama.cpp's converter for DeepSpec's
    drafter have no head. With an untied target, such a file once drafted noise without a warning.
    """
    caplog.set_level("WARNING", "eaglecpp.native")  # another test may have changed the log level
    path = convert_checkpoint(
        BlockShape("dspark").write(tmp_path / "in"), target.gguf, tmp_path / "whole.gguf", type="F32"
    ).out
    for file, n in ((path, 0), (rewrite(path, tmp_path / "cut.gguf", lambda t: t.pop("output.weight")), 1)):
        with eaglecpp.Engine.open(target.gguf, draft=file):
            assert caplog.text.count("has no output head, so its embeddings") == n
