# SPDX-License-Identifier: MIT
"""Tests the common syntax of names of models, checkpoints and data sets. A reference either finds a file or
raises a clear error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.errors import ModelNotFoundError
from eaglecpp.opening.find import find_drafter, find_target
from eaglecpp.references import (
    ModelName,
    ModelNameError,
    hub_text,
    is_checkpoint,
    is_path_text,
    read_name,
    read_reference,
)
from helpers.models import Models


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("hf.co/o/n", "hub", "hf.co/o/n:latest"),
        ("hf://o/n:Q4_K_M", "hub", "hf.co/o/n:Q4_K_M"),
        ("huggingface.co/o/n:file.gguf", "hub", "hf.co/o/n:file.gguf"),
        ("HF.co/o/n", "hub", "HF.co/o/n:latest"),
        ("qwen3", "name", "qwen3:latest"),
        ("owner/name", "name", "owner/name:latest"),
        ("localhost:5000/o/n:t", "name", "localhost:5000/o/n:t"),
    ],
)
def test_what_a_text_names(text: str, kind: str, name: str, tmp_path: Path) -> None:
    found = read_reference(text, tmp_path)
    assert isinstance(found, ModelName)
    assert (str(found), found.is_hub) == (name, kind == "hub")


@pytest.mark.parametrize(
    "text", ["./x.gguf", "/a/b", "a b", "m:", "-x", "a.b/m", "a/b/c/d", "m:1:2", "", "m" * 81]
)
def test_impossible_names_are_refused(text: str) -> None:
    with pytest.raises(ModelNameError, match="is not a model name; "):
        ModelName.parse(text)


def test_an_existing_file_takes_precedence_over_a_name(tmp_path: Path) -> None:
    (tmp_path / "qwen3").write_bytes(b"GGUF")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    assert read_reference("qwen3", tmp_path) == tmp_path / "qwen3"
    assert read_reference("checkpoint", tmp_path) == tmp_path / "checkpoint"
    assert is_checkpoint(tmp_path / "checkpoint") and not is_checkpoint(tmp_path / "qwen3")
    found = read_reference("hf.co/o/qwen3", tmp_path)
    assert isinstance(found, ModelName) and found.is_hub


@pytest.mark.parametrize("text", ["./m", "../m", "/nowhere/m", "~/nowhere/m", "m.gguf", "m.safetensors", ""])
def test_text_like_a_path_is_a_path(text: str, tmp_path: Path) -> None:
    assert is_path_text(text)
    with pytest.raises(FileNotFoundError):
        read_reference(text, tmp_path)


def test_hf_puts_the_hub_before_a_reference() -> None:
    assert not is_path_text("hf.co/o/n:m.gguf")
    assert hub_text("o/n:Q4_K_M") == "hf.co/o/n:Q4_K_M"
    assert hub_text("hf://o/n") == "hf://o/n"
    with pytest.raises(ModelNameError, match=r"expected hf\.co/USER/REPO"):
        read_reference("hf.co/n")


@pytest.mark.parametrize("text", ["x/../../etc/passwd", "/etc/passwd", "./notes", "../notes", "notes"])
def test_a_requested_name_is_never_a_path(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("private")
    try:
        name = read_name(text)
    except ModelNameError:
        return
    assert not name.is_hub


# Files of a reference


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
