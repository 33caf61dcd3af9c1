# SPDX-License-Identifier: MIT
"""`eaglecpp check`: what `create` would refuse, and what Ollama would, without making anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eaglecpp.cli import main
from helpers.stores import rename_token

if TYPE_CHECKING:
    from conftest import Models

Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Check:
    """`check("SYSTEM s", "--ollama")`: exit code and stdout for the tiny target with these lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EAGLECPP_MODELS", str(tmp_path / "models"))

    def run(lines: str, *flags: Any) -> tuple[int, str]:
        Path("Modelfile").write_text(f"FROM {models.target}\n{lines}\n", encoding="utf-8")
        code = main(["check", *flags])
        assert not Path("models").exists()
        return code, capsys.readouterr().out

    return run


def test_a_sound_file_has_no_problems(check: Check, models: Models) -> None:
    assert check(f"DRAFT {models.draft}") == (0, "no problems\n")
    assert check("PARAMETER mirostat 1") == (
        0,
        "note: Modelfile:2: parameter mirostat is deprecated and ignored\n",
    )


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("RUN x", "problem: Modelfile:2:1: command must be one of"),
        ("TEMPLATE {{ if }}", "problem: template"),
        ("DRAFT ./nothing.gguf", "no such file"),
        ("ADAPTER BASE", "expected a LoRA"),
    ],
)
def test_what_create_would_refuse(lines: str, text: str, check: Check, base_model: Path) -> None:
    code, out = check(lines.replace("BASE", str(base_model)))
    assert (code, out.count("\n")) == (1, 1)
    assert text in out


def test_a_small_model_may_draft(check: Check, base_model: Path, tmp_path: Path) -> None:
    assert check(f"DRAFT {base_model}") == (0, "no problems\n")
    code, out = check(f"DRAFT {rename_token(base_model, tmp_path / 'other.gguf', 300)}")
    assert code == 1
    assert "1 tokens differ, the first is 300" in out


def test_what_ollama_would_not_do(check: Check, models: Models) -> None:
    code, out = check(f"DRAFT {models.draft}", "--ollama", "--json")
    assert code == 1
    (problem,) = json.loads(out)["problems"]
    assert "Ollama starts every drafter GGUF" in problem
    assert check(f"#eaglecpp: draft {models.draft}", "--ollama") == (0, "no problems\n")


def test_strict_is_ollamas_reading(check: Check) -> None:
    assert check("PARAMETER tfs_z 1")[0] == 0
    code, out = check("PARAMETER tfs_z 1", "--strict")
    assert (code, "Modelfile:2: unknown parameter 'tfs_z'" in out) == (1, True)
