# SPDX-License-Identifier: MIT
"""Tests that a conversion either replaces the output completely, or leaves all files unchanged."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from eaglecpp.convert import Progress, errors, writer
from helpers.checkpoints import Convert, write_checkpoint
from helpers.tiny import TinyTarget

posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals, links and permissions")


def test_two_writers_of_the_same_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with writer.replace_file(out) as first:
        first.write_bytes(b"first")
        with writer.replace_file(out) as second:
            second.write_bytes(b"second")
            assert first.exists()
        assert out.read_bytes() == b"second"
    assert out.read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def _interrupt(progress: Progress) -> None:
    if progress.done:
        raise KeyboardInterrupt


def test_an_error_or_interrupt_leaves_only_the_old_file(convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "out.gguf").write_bytes(b"the old drafter")
    late = {"layers.0.mlp.down_proj.weight": np.full((64, 96), np.nan, np.float32)}
    with pytest.raises(errors.TensorError, match="NaN"):
        convert(write_checkpoint(tmp_path / "in", drop=list(late), add=late))
    with pytest.raises(KeyboardInterrupt):
        convert(write_checkpoint(tmp_path / "in"), progress=_interrupt)
    assert (tmp_path / "out.gguf").read_bytes() == b"the old drafter"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.gguf"]


@posix
@pytest.mark.parametrize("which", ["source", "target"])
def test_an_input_file_is_never_overwritten(
    which: str, convert: Convert, target: TinyTarget, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "in")
    victim = checkpoint / "model.safetensors" if which == "source" else target.gguf
    before = victim.read_bytes()
    link = tmp_path / "link.gguf"
    link.symlink_to(victim)
    for out in (victim, link):
        with pytest.raises(errors.WriteError, match="the conversion reads this file"):
            convert(checkpoint, out=out)
    assert victim.read_bytes() == before


def test_unwritable_folders(convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in")
    with pytest.raises(errors.WriteError, match="does not exist"):
        convert(checkpoint, out=tmp_path / "none" / "x.gguf")
    with pytest.raises(errors.WriteError, match="is a directory"):
        convert(checkpoint, out=tmp_path)


@posix
def test_the_result_has_ordinary_permissions_and_keeps_old_ones(convert: Convert, tmp_path: Path) -> None:
    checkpoint, out = write_checkpoint(tmp_path / "in"), tmp_path / "out.gguf"
    before = os.umask(0)
    try:
        convert(checkpoint)
    finally:
        os.umask(before)
    assert out.stat().st_mode & 0o777 == 0o644, "the mode must not depend on the umask"
    out.chmod(0o640)
    convert(checkpoint)
    assert out.stat().st_mode & 0o777 == 0o640


@posix
def test_a_link_is_followed(convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "real.gguf").write_bytes(b"old")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "real.gguf")
    convert(write_checkpoint(tmp_path / "in"), out=tmp_path / "link.gguf")
    assert (tmp_path / "link.gguf").is_symlink()
    assert (tmp_path / "real.gguf").read_bytes().startswith(b"GGUF")


def test_the_default_name_is_the_sources_with_the_type(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = convert(write_checkpoint(tmp_path / "my-draft"), out=None, type="q4_0")
    assert report.out == Path("my-draft-Q4_0.gguf")
    assert report.size == (tmp_path / "my-draft-Q4_0.gguf").stat().st_size


def test_progress_reaches_the_total(convert: Convert, tmp_path: Path) -> None:
    seen: list[Progress] = []
    report = convert(write_checkpoint(tmp_path / "in"), progress=seen.append)
    assert seen[-1].done == seen[-1].total == sum(tensor.n_bytes for tensor in report.tensors)
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert {tensor.name for tensor in report.tensors} <= {p.what for p in seen}
