# SPDX-License-Identifier: MIT
"""Tests that a conversion either replaces the output completely, or leaves all files unchanged. Also tests
the output and the exit codes of the converter's commands.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner, Result

from eaglecpp.cli.convert import convert as convert_command
from eaglecpp.cli.show import inspect
from eaglecpp.convert import Progress, errors, read_gguf, writer
from helpers.checkpoints import Convert, write_checkpoint
from helpers.random_drafter import DraftShape
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


def test_an_error_or_interrupt_leaves_only_the_old_file(convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "out.gguf").write_bytes(b"the old drafter")
    late = {"layers.0.mlp.down_proj.weight": np.full((64, 96), np.nan, np.float32)}
    with pytest.raises(errors.TensorError, match="NaN"):
        convert(write_checkpoint(tmp_path / "in", drop=list(late), add=late))
    with pytest.raises(KeyboardInterrupt):
        convert(write_checkpoint(tmp_path / "in"), progress=Mock(side_effect=[None, None, KeyboardInterrupt]))
    for out, text in ((tmp_path / "none" / "x.gguf", "does not exist"), (tmp_path, "is a directory")):
        with pytest.raises(errors.WriteError, match=text):
            convert(tmp_path / "in", out=out)
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


@posix
def test_the_result_has_ordinary_permissions_and_keeps_old_ones_and_links(
    convert: Convert, tmp_path: Path
) -> None:
    checkpoint, out = write_checkpoint(tmp_path / "in"), tmp_path / "out.gguf"
    before = os.umask(0)
    try:
        convert(checkpoint)
    finally:
        os.umask(before)
    assert out.stat().st_mode & 0o777 == 0o644, "the mode must not depend on the umask"
    out.write_bytes(b"old")
    out.chmod(0o640)
    (tmp_path / "link.gguf").symlink_to(out)
    convert(checkpoint, out=tmp_path / "link.gguf")
    assert out.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "link.gguf").is_symlink() and out.read_bytes().startswith(b"GGUF")


def test_the_default_name_is_the_sources_with_the_type_and_progress_reaches_the_total(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[Progress] = []
    report = convert(write_checkpoint(tmp_path / "my-draft"), out=None, type="q4_0", progress=seen.append)
    assert report.out == Path("my-draft-Q4_0.gguf")
    assert report.size == (tmp_path / "my-draft-Q4_0.gguf").stat().st_size
    assert seen[-1].done == seen[-1].total == sum(tensor.n_bytes for tensor in report.tensors)
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert {tensor.name for tensor in report.tensors} <= {p.what for p in seen}


# The converter's commands


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "draft", "torchspec", DraftShape(fc_norm=True, norm_output=True))


def run_convert(checkpoint: Path, target: TinyTarget, *args: str) -> Result:
    return CliRunner().invoke(convert_command, [str(checkpoint), "--target", str(target.gguf), *args])


def test_convert_reports_the_recognised_drafter(checkpoint: Path, target: TinyTarget, tmp_path: Path) -> None:
    (checkpoint / "README.md").write_text("---\nlicense: 5\ntags: [2024, eagle]\n---\n")
    result = run_convert(checkpoint, target, "-o", str(tmp_path / "x.gguf"))
    assert result.exit_code == 0
    assert read_gguf(tmp_path / "x.gguf").fields["general.tags"].value == [b"2024", b"eagle"]
    assert result.stderr.startswith("to use it: `eaglecpp run ")
    for text in ("TorchSpec", "eagle31", "fc_norm, norm_output", "R_2, R_4, R_5", "160 of 367", "fc.weight"):
        assert text in result.stdout


def test_options_reach_the_conversion(checkpoint: Path, target: TinyTarget, tmp_path: Path) -> None:
    options = ["--aux-layers", "1,3,6", "--reading", "layer_ids=post", "--reading", "feed=pre"]
    options += ["--type", "f16"]
    report = json.loads(
        run_convert(checkpoint, target, "-o", str(tmp_path / "x.gguf"), "--json", *options).stdout
    )
    assert report["spec"]["aux_layers"] == [2, 4, 7]
    assert report["spec"]["norm_output"] is False
    assert (report["type"], report["architecture"]) == ("F16", "eagle31")
    assert {t["name"] for t in report["tensors"]} >= {"fc.weight", "d2t"}
    assert all(t["rel_rms_error"] >= 0 for t in report["tensors"])


@pytest.mark.parametrize(
    "args",
    [["x"], ["x", "--target", "y", "--type", "Q9"], ["x", "--target", "y", "--aux-layers", "2,a"],
     ["x", "--target", "y", "--reading", "layer_ids=middle"], ["x", "--target", "y", "--nonsense"]],
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(args: list[str]) -> None:
    assert CliRunner().invoke(convert_command, args).exit_code == 2


def test_inspect_a_drafter_and_its_target(checkpoint: Path, target: TinyTarget, tmp_path: Path) -> None:
    run_convert(checkpoint, target, "-o", str(tmp_path / "x.gguf"))
    assert "fc_norm yes, norm_output yes" in CliRunner().invoke(inspect, [str(tmp_path / "x.gguf")]).stdout
    facts = json.loads(CliRunner().invoke(inspect, [str(tmp_path / "x.gguf"), "--json"]).stdout)
    assert (facts["kind"], facts["aux_layers"], facts["layer_ids"]) == ("drafter", [2, 4, 5], "post+1")
    assert (facts["vocab_size"], facts["draft_vocab_size"]) == (367, 160)
    assert facts["runs_in_llama_cpp"] is False
    assert facts["switches"]["norm_before_fc"] is False
    assert (facts["fits"]["hidden_size"], facts["fits"]["n_layers"]) == (64, 8)
    assert sum(t["tensors"] for t in facts["types"].values()) == facts["n_tensors"]
    theirs = json.loads(CliRunner().invoke(inspect, [str(target.gguf), "--json"]).stdout)
    assert (theirs["kind"], theirs["n_layers"]) == ("target", 8)
    assert theirs["fits"]["target_hidden_size"] == facts["fits"]["hidden_size"]
    assert theirs["fits"]["tokens_sha256"] == facts["fits"]["tokens_sha256"]
