# SPDX-License-Identifier: MIT
"""Tests that `eaglecpp train` refuses invalid options before it writes any file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from eaglecpp.cli import main
from helpers.models import Models


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the day that this new man can see " * 20, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("more", "message", "code"),
    [
        (("--data", "nothing.txt"), "does not exist", 2),
        (("--aux-layers", "1,x"), "expected numbers separated by commas", 2),
        *((("--aux-layers", ids), "expected ascending ids from 1 to 8", 1) for ids in ("1,9", "0,8", "2,2")),
        (("--draft-vocab", "1"), "expected a size of at least", 1),
        (("--resume",), "there is no training to resume", 1),
        (("--finetune", "nowhere"), "nowhere", 1),
        (("--finetune", "x", "--family", "eagle3"), "remove --family", 2),
        (("--share-head", "--draft-vocab", "300"), "remove --draft-vocab", 2),
        (("--family", "eagle1", "--draft-vocab", "9"), "remove --draft-vocab", 2),
        (("--finetune", "x", "--draft-vocab", "9"), "remove --draft-vocab", 2),
        (("--block-size", "4"), "remove --block-size", 2),
        (("--cache-type", "int8"), "--cache-type needs --cache", 2),
        (("--temp", "0"), "need --generate", 2),
        (("--generate",), "--generate answers the prompts in --data", 2),
        (("--type", "Q9"), "Q9", 1),
        (("-c", "5000"), "--n-ctx 5000: expected at most 2048", 1),
    ],
)
def test_bad_input_is_one_line(
    more: tuple[str, ...],
    message: str,
    code: int,
    models: Models,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    data = [] if more == ("--generate",) else ["--data", str(text)]
    args = ["train", "--target", str(models.target), *data, "-o", str(out), "--steps", "1"]
    assert main([*args, "-t", "1", *more]) == code
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1]
    assert captured.out == ""
    assert not list(tmp_path.glob("out/*"))


def test_a_folder_with_a_training_is_not_overwritten_and_parallel_processes_are_refused(
    models: Models,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    args = ["train", "--target", str(models.target), "--data", str(text), "-t", "1", "-o"]
    assert main([*args, str(tmp_path)]) == 1
    assert "already contains a training (config.json)" in capsys.readouterr().err
    assert sys.float_info.min / 2 > 0, "denormal numbers must stay enabled"
    assert (tmp_path / "config.json").read_text() == "{}"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([*args, str(tmp_path / "out")]) == 1
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else real(name, *a)
    )
    assert main([*args, str(tmp_path / "out")]) == 1
    assert "pip install torch" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
