# SPDX-License-Identifier: MIT
"""Tests that a Modelfile and a directory are resolved into files and references."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest

from eaglecpp.modelfile import Modelfile, ModelfileError, ModelName, Resolved
from helpers.gguf_writer import finish

SAME = "DRAFT must not reference the same local path as FROM"


def write_gguf(path: Path, architecture: str = "llama", kind: str = "target") -> Path:
    """Writes a GGUF with only a header, from which the kind of the file can be recognised."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    if kind == "target":
        writer.add_block_count(2)
    else:
        writer.add_type(kind)
    finish(writer)
    return path


def write_checkpoint(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    return path


def plan(directory: Path, text: str) -> Resolved:
    return Resolved(Modelfile.from_text(text, file="Modelfile"), directory)


def refusal(directory: Path, text: str) -> str:
    with pytest.raises(ModelfileError) as caught:
        plan(directory, text)
    return str(caught.value)


@pytest.fixture
def directory(models: Any, tmp_path: Path) -> Path:
    """Creates a folder with the files of a real pair, target.gguf and head.gguf."""
    shutil.copy(models.target, tmp_path / "target.gguf")
    shutil.copy(models.draft, tmp_path / "head.gguf")
    return tmp_path


@pytest.mark.parametrize("text", ["me/m", "hf.co/u/Repo-GGUF:IQ3_M"])
def test_references_that_are_resolved_later(directory: Path, text: str) -> None:
    found = plan(directory, f"FROM {text}\nDRAFT {text}\n")
    assert found.target == found.draft == ModelName.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM ./absent.gguf\n", "Modelfile:1: no such file: {}/absent.gguf"),
        ("FROM ~/nothing/here\n", "Modelfile:1: no such file: "),
        ("FROM a\n\nDRAFT ./absent\n", "Modelfile:3: no such file: {}/absent"),
        ("FROM a\nADAPTER lora.gguf\n", "Modelfile:2: no such file: {}/lora.gguf"),
        ("FROM a b\n", "Modelfile:1: 'a b' is not a model name; model"),
        ("FROM gpt-oss:120b-cloud\n", "Modelfile:1: 'gpt-oss:120b-cloud' runs in Ollama's cloud"),
        ("FROM \n", "Modelfile:1: FROM needs a value"),
        (f"FROM sha256:{'a' * 64}\n", "Modelfile:1: sha256:aaa"),
        ("FROM ./target.gguf\nDRAFT target.gguf\n", f"Modelfile:2: {SAME}: {{}}/target.gguf"),
        ("FROM ./target.gguf\nDRAFT link.gguf\n", f"Modelfile:2: {SAME}: {{}}/link.gguf"),
        ("FROM ./damaged\n", "Modelfile:1: {}/damaged/bad.gguf"),
        ("FROM ./text.gguf\n", "Modelfile:1: {}/text.gguf: not a GGUF file"),
        ("FROM ./hf\n", "Modelfile:1: FROM ./hf: expected a GGUF, found a Hugging Face checkpoint"),
        ("FROM ./head.gguf\n", "Modelfile:1: FROM ./head.gguf: found no target GGUF (name one GGUF; a"),
        ("FROM ./empty\n", "Modelfile:1: no GGUF files in {}/empty"),
    ],
)
def test_refusals_name_line_and_path(directory: Path, text: str, message: str) -> None:
    (directory / "text.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    write_checkpoint(directory / "hf")
    (directory / "empty").mkdir()
    (directory / "link.gguf").symlink_to(directory / "target.gguf")
    write_gguf(directory / "damaged" / "sound.gguf")
    (directory / "damaged" / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 64)
    assert refusal(directory, text).startswith(message.format(directory))


def test_a_directory_is_sorted_by_the_kind_of_its_files(directory: Path) -> None:
    write_gguf(directory / "mmproj.gguf", "clip", "mmproj")
    write_gguf(directory / "lora.gguf", "llama", "adapter")
    for text in ("FROM .\n", "".join(f"FROM ./{file.name}\n" for file in sorted(directory.iterdir()))):
        found = plan(directory, text)
        assert found.target == (directory / "target.gguf",)
        assert found.draft == directory / "head.gguf"
        assert found.projectors == [directory / "mmproj.gguf"]
        assert found.adapters == [directory / "lora.gguf"]
    write_gguf(directory / "z-dflash.gguf", "dflash")
    found = plan(directory, "FROM .\n")
    assert found.draft == directory / "z-dflash.gguf"
    assert not found.notices


def test_shards_are_one_target_and_other_files_are_several(tmp_path: Path) -> None:
    files = [write_gguf(tmp_path / f"m-0000{n}-of-00003.gguf") for n in (1, 2, 3)]
    assert plan(tmp_path, "FROM .\n").target == tuple(files)
    files[1].unlink()
    assert refusal(tmp_path, "FROM .\n").startswith(
        f"Modelfile:1: FROM gives 2 targets: {files[0]}, {files[2]}"
    )


def test_a_name_beats_paths(directory: Path) -> None:
    found = plan(directory, "FROM ./target.gguf\nFROM llama3\nFROM qwen3\n")
    assert found.target == ModelName("qwen3")
    assert [str(notice) for notice in found.notices] == ["Modelfile:3: several FROM lines; using qwen3"]


def test_a_drafter_checkpoint(directory: Path) -> None:
    checkpoint = write_checkpoint(directory / "eagle")
    found = plan(directory, "FROM ./target.gguf\nDRAFT ./eagle\n")
    assert found.draft == checkpoint
    file = plan(directory, "FROM ./target.gguf\nDRAFT ./eagle/model.safetensors\n").draft
    assert file == checkpoint / "model.safetensors"


def test_a_draft_directory_needs_one_gguf(directory: Path) -> None:
    write_gguf(directory / "drafts" / "a.gguf", "eagle3")
    found = plan(directory, "FROM ./target.gguf\nDRAFT ./drafts\n")
    assert found.draft == directory / "drafts" / "a.gguf"
    write_gguf(directory / "drafts" / "b.gguf", "eagle3")
    assert "several GGUF files: a.gguf, b.gguf" in refusal(directory, "FROM ./target.gguf\nDRAFT ./drafts\n")


def test_the_pragma_beats_draft(directory: Path) -> None:
    found = plan(directory, "FROM ./target.gguf\nDRAFT ./head.gguf\n#eaglecpp: draft hf.co/u/eagle\n")
    assert isinstance(found.draft, ModelName) and found.draft.is_hub
    assert "lines; using hf.co/u/eagle" in str(found.notices[0])


@pytest.mark.skipif(os.name == "nt", reason="without named pipes")
@pytest.mark.parametrize("line", ["DRAFT ./pipe.gguf", "ADAPTER ./pipe.gguf", "#eaglecpp: draft ./pipe.bin"])
def test_a_pipe_is_not_a_file(directory: Path, line: str) -> None:
    for suffix in ("gguf", "bin"):
        os.mkfifo(directory / f"pipe.{suffix}")
    for text in ("FROM ./pipe.gguf\n", f"FROM ./target.gguf\n{line}\n"):
        assert "expected a file, found a named pipe" in refusal(directory, text)


def test_outside_files_are_insecure(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = write_gguf(tmp_path_factory.mktemp("outside") / "x.gguf")
    inner = directory / "inner"
    inner.mkdir()
    (inner / "x.gguf").symlink_to(outside)
    assert "insecure path: ../" in refusal(directory, "FROM ./inner\n")
