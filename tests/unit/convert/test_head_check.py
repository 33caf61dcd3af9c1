# SPDX-License-Identifier: MIT
"""Tests that a draft head with wrong rows is detected by comparing it with the target's head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from eaglecpp.convert import errors
from helpers.checkpoints import Convert, write_checkpoint
from helpers.random_drafter import DraftShape
from helpers.tiny import TinyTarget


def with_head(
    tmp_path: Path, target: TinyTarget, rows: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Path:
    """Returns a drafter whose head consists of the rows `rows(offsets, ids)` of the target's head, plus a
    little noise, as after training.
    """
    shape = DraftShape()
    offsets = shape.weights()["d2t"]
    head = target.weights["lm_head.weight"][rows(offsets, offsets + np.arange(shape.n_draft_vocab))]
    noise = np.random.default_rng(2).normal(0, 0.2 * head.std(), head.shape)
    add = {"lm_head.weight": (head + noise).astype(np.float32)}
    return write_checkpoint(tmp_path / "in", "torchspec", shape, add=add)


def test_rows_gathered_by_offsets_are_refused(convert: Convert, target: TinyTarget, tmp_path: Path) -> None:
    checkpoint = with_head(tmp_path, target, lambda offsets, ids: offsets)
    with pytest.raises(errors.VocabMapError, match="The exporter used offsets as ids"):
        convert(checkpoint)


def test_rows_gathered_by_id_are_confirmed(convert: Convert, target: TinyTarget, tmp_path: Path) -> None:
    report = convert(with_head(tmp_path, target, lambda offsets, ids: ids))
    assert any("the draft head resembles the target's" in note for note in report.notes)


def test_a_head_trained_from_scratch_proves_nothing(convert: Convert, tmp_path: Path) -> None:
    report = convert(write_checkpoint(tmp_path / "in", "torchspec"))
    assert not any("resembles" in note for note in report.notes)


def test_an_end_of_text_that_can_never_be_drafted_is_noted(convert: Convert, tmp_path: Path) -> None:
    shape = DraftShape()
    assert not shape.weights()["t2d"][1], "the drafter must not be able to draft token 1"
    report = convert(write_checkpoint(tmp_path / "in", "torchspec", shape))
    assert "the target's end-of-sequence token 1 is outside the draft vocabulary" in report.notes
