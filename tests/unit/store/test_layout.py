# SPDX-License-Identifier: MIT
"""Names to paths and back, as Ollama does it; every row of the reference table, both directions."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglecpp.references.names import ModelName
from eaglecpp.store import StoreError
from eaglecpp.store.layout import (
    blob_path,
    canonical,
    default_root,
    find_manifest,
    manifest_path,
    manifests,
    partial_path,
)

ROWS = [
    ("llama3.2:3b", "registry.ollama.ai/library/llama3.2/3b"),
    ("llama3.2", "registry.ollama.ai/library/llama3.2/latest"),
    ("me/m", "registry.ollama.ai/me/m/latest"),
    (
        "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF/Q4_K_M",
    ),
    ("hf.co/u/r:file.gguf", "hf.co/u/r/file.gguf"),
    ("huggingface.co/u/r", "hf.co/u/r/latest"),
    ("ollama.com/library/m:t", "registry.ollama.ai/library/m/t"),
    ("localhost:5000/ns/m:t", "localhost:5000/ns/m/t"),
    ("http://h/ns/m:t", "h/ns/m/t"),
]


@pytest.mark.parametrize(("text", "path"), ROWS)
def test_a_name_is_a_path_and_the_path_is_the_name(text: str, path: str, tmp_path: Path) -> None:
    name = ModelName.parse(text)
    file = manifest_path(tmp_path, name)
    assert file == tmp_path / "manifests" / path
    file.parent.mkdir(parents=True)
    file.touch()
    assert find_manifest(tmp_path, name) == file
    assert [found.parts for found, _ in manifests(tmp_path)] == [canonical(name).parts]


def test_case_on_disk_does_not_matter_and_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "manifests" / "registry.ollama.ai" / "Library" / "LLaMA3.2" / "3B"
    file.parent.mkdir(parents=True)
    file.touch()
    assert find_manifest(tmp_path, ModelName.parse("llama3.2:3b")) == file
    assert [str(name) for name, _ in manifests(tmp_path)] == ["Library/LLaMA3.2:3B"]


def test_newer_ollama_names_its_manifests_elsewhere(tmp_path: Path) -> None:
    old = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "m" / "t"
    new = tmp_path / "manifests-v2" / "ollama.com" / "library" / "m" / "t"
    for file in (old, new):
        file.parent.mkdir(parents=True)
        file.touch()
    assert find_manifest(tmp_path, ModelName.parse("m:t")) == new
    assert [(str(name), path) for name, path in manifests(tmp_path)] == [("m:t", new)]


def test_what_cannot_be_a_name_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "m"
    folder.mkdir(parents=True)
    for name in (".latest.abc.tmp", "-x", "t"):
        (folder / name).touch()
    assert [str(name) for name, _ in manifests(tmp_path)] == ["m:t"]
    assert find_manifest(tmp_path, ModelName.parse("absent:t")) is None


def test_digests_are_checked_before_they_become_paths(tmp_path: Path) -> None:
    digest = "sha256:" + "A" * 64
    assert blob_path(tmp_path, digest) == tmp_path / "blobs" / f"sha256-{'a' * 64}"
    assert partial_path(tmp_path, digest).name == f"sha256-{'a' * 64}-partial"
    for bad in ("sha256:../../etc/passwd", "sha256:" + "a" * 63, "md5:" + "a" * 64, ""):
        with pytest.raises(StoreError, match="is not a digest"):
            blob_path(tmp_path, bad)


def test_the_store_is_where_the_user_says(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_root() == home / ".local" / "share" / "eaglecpp" / "models"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_root() == tmp_path / "data" / "eaglecpp" / "models"
    monkeypatch.setenv("EAGLECPP_MODELS", "~/with blanks")
    assert default_root() == home / "with blanks"
