# SPDX-License-Identifier: MIT
"""Tests the output and the exit codes of the converter's commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eaglecpp.cli.convert import convert
from eaglecpp.cli.show import inspect
from helpers.checkpoints import write_checkpoint
from helpers.random_drafter import DraftShape
from helpers.tiny import TinyTarget


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "draft", "torchspec", DraftShape(fc_norm=True, norm_output=True))


def run(checkpoint: Path, target: TinyTarget, *args: str) -> Result:
    return CliRunner().invoke(convert, [str(checkpoint), "--target", str(target.gguf), *args])


def test_convert_reports_the_recognised_drafter(checkpoint: Path, target: TinyTarget, tmp_path: Path) -> None:
    result = run(checkpoint, target, "-o", str(tmp_path / "x.gguf"))
    assert result.exit_code == 0
    assert result.stderr.startswith("to use it: `eaglecpp run ")
    for text in ("TorchSpec", "eagle31", "fc_norm, norm_output", "R_2, R_4, R_5", "160 of 367", "fc.weight"):
        assert text in result.stdout


def test_options_reach_the_conversion(checkpoint: Path, target: TinyTarget, tmp_path: Path) -> None:
    options = ["--aux-layers", "1,3,6", "--reading", "layer_ids=post", "--reading", "feed=pre"]
    options += ["--type", "f16"]
    report = json.loads(run(checkpoint, target, "-o", str(tmp_path / "x.gguf"), "--json", *options).stdout)
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
    assert CliRunner().invoke(convert, args).exit_code == 2


def test_inspect_a_drafter(checkpoint: Path, target: TinyTarget, tmp_path: Path) -> None:
    run(checkpoint, target, "-o", str(tmp_path / "x.gguf"))
    assert "fc_norm yes, norm_output yes" in CliRunner().invoke(inspect, [str(tmp_path / "x.gguf")]).stdout
    facts = json.loads(CliRunner().invoke(inspect, [str(tmp_path / "x.gguf"), "--json"]).stdout)
    assert (facts["kind"], facts["aux_layers"], facts["layer_ids"]) == ("drafter", [2, 4, 5], "post+1")
    assert (facts["vocab_size"], facts["draft_vocab_size"]) == (367, 160)
    assert facts["runs_in_llama_cpp"] is False
    assert facts["switches"]["norm_before_fc"] is False
    assert facts["fits"]["hidden_size"] == 64
    assert facts["fits"]["n_layers"] == 8
    assert sum(t["tensors"] for t in facts["types"].values()) == facts["n_tensors"]


def test_inspecting_a_target_shows_its_drafters(checkpoint: Path, target: TinyTarget, tmp_path: Path) -> None:
    run(checkpoint, target, "-o", str(tmp_path / "x.gguf"))
    theirs = json.loads(CliRunner().invoke(inspect, [str(target.gguf), "--json"]).stdout)
    ours = json.loads(CliRunner().invoke(inspect, [str(tmp_path / "x.gguf"), "--json"]).stdout)
    assert (theirs["kind"], theirs["n_layers"]) == ("target", 8)
    assert theirs["fits"]["target_hidden_size"] == ours["fits"]["hidden_size"]
    assert theirs["fits"]["tokens_sha256"] == ours["fits"]["tokens_sha256"]
