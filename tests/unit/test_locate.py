# SPDX-License-Identifier: MIT
"""Tests that a model reference either finds a file or raises a clear error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.errors import ModelNotFoundError
from eaglecpp.opening.find import find_drafter, find_target
from helpers.models import Models


def test_a_file_is_found_by_path_and_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.bin").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_target(tmp_path / "model.bin").target == tmp_path / "model.bin"
    assert find_target("~/model.bin").target == tmp_path / "model.bin"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("missing.gguf", "no such file; GGUF files next to it: here.gguf"),
        ("nowhere/missing.gguf", "no such file; check the path"),
        (".", "is a directory; give one of its GGUF files: here.gguf"),
        ("hf", "is a directory; convert it to GGUF"),
    ],
)
def test_the_message_names_nearby_files(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "here.gguf").touch()
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").touch()
    with pytest.raises(ModelNotFoundError, match="drafter") as caught:
        find_drafter(tmp_path / name)
    assert text in str(caught.value)


def test_a_folder_hides_no_stored_name(models: Models, tmp_path: Path, create: Callable[..., Any]) -> None:
    (tmp_path / "tiny").mkdir()
    with pytest.raises(ModelNotFoundError, match="target 'tiny' is a directory"):
        find_target("tiny")
    create(f"FROM {models.target}\n")
    assert find_target("tiny").target.read_bytes() == models.target.read_bytes()
    with pytest.raises(ModelNotFoundError, match="is a directory"):
        find_target("./tiny/")
