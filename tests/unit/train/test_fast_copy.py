# SPDX-License-Identifier: MIT
"""The copy that texts are read with: made once, made again for another target, nearly the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Models

from eaglecpp.train.fast_copy import fast_copy
from eaglecpp.train.features import TargetSource
from eaglecpp.train.samples import Conversation

TOKENS = np.arange(5, 45, dtype=np.int32)


def test_the_copy_says_nearly_what_the_target_says(models: Models, tmp_path: Path) -> None:
    copy = fast_copy(models.target, "BF16", tmp_path)
    conversation = Conversation(TOKENS, np.ones(len(TOKENS), np.int16))
    captures = []
    for path in (models.target, copy):
        source = TargetSource(path, [conversation])
        captures.append(source.sample(0))
        source.close()
    of_target, of_copy = captures
    error = np.linalg.norm(of_copy.features - of_target.features) / np.linalg.norm(of_target.features)
    assert 0 < error < 0.03
    assert np.mean(of_copy.label_ids[:, 0] == of_target.label_ids[:, 0]) > 0.8


def test_it_is_made_once_for_a_target(models: Models, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(models.target.read_bytes())
    copy = fast_copy(target, "F16", tmp_path / "state")
    made = copy.stat().st_mtime_ns
    assert fast_copy(target, "F16", tmp_path / "state").stat().st_mtime_ns == made
    target.write_bytes(_renamed(target))
    assert fast_copy(target, "F16", tmp_path / "state").stat().st_mtime_ns != made


def _renamed(target: Path) -> bytes:
    """The same model with another name in its metadata, so another file."""
    data = target.read_bytes()
    assert data.count(b"tiny-") >= 1
    return data.replace(b"tiny-", b"TINY-", 1)


def test_other_types_are_refused(models: Models, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected one of BF16, F16, Q8_0, found Q4_0"):
        fast_copy(models.target, "Q4_0", tmp_path)
