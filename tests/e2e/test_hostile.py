# SPDX-License-Identifier: MIT
"""Runs commands in a real terminal, on a model that has escape sequences in each of its texts."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("pexpect", reason="pseudo-terminals are not for Windows")

from helpers.command import COMMAND
from helpers.hostile import EVIL, raw_controls, write_hostile_target
from helpers.models import Models
from helpers.terminal import Terminal

SHORT = ("-n", "3", "--temp", "0", "--ctx-size", "256", "-t", "1")


def check(folder: Path, commands: Iterable[tuple[str | Path, ...]], *, fails: bool = False) -> None:
    """Checks that the terminal receives only plain text, and that `owned` appears only inside the model's own
    strings.
    """
    for command in commands:
        words = command if fails else (COMMAND, *command)
        with Terminal([str(word) for word in words], folder) as terminal:
            assert (terminal.wait_for_end() != 0) is fails, (command, terminal.raw)
        assert raw_controls(terminal.raw) == [], (command, terminal.raw)
        assert fails or "owned" in terminal.raw or command[0] in ("create", "inspect"), command


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hostile_target(tmp_path_factory.mktemp("hostile") / "target.gguf")


def test_the_answer_of_a_hostile_model_is_shown_as_text(hostile: Path, tmp_path: Path) -> None:
    commands = (
        ("generate", hostile, "-p", "ab", *SHORT),
        ("generate", hostile, "-p", "ab", "--json", *SHORT),
        ("run", hostile, "hello", *SHORT),
        ("run", hostile, "hello", "--verbose", *SHORT),
    )
    check(tmp_path, commands)


def test_the_metadata_of_a_hostile_model_are_shown_as_text(hostile: Path, tmp_path: Path) -> None:
    words = EVIL.replace("\r", "")  # a "\r" would end a line of the Modelfile
    (tmp_path / "Modelfile").write_text(
        f"FROM {hostile}\nTEMPLATE {words}{{{{ .Prompt }}}}\nSYSTEM {words}\nLICENSE {words}\n"
        f"PARAMETER stop {words}\nMESSAGE user {words}\nMESSAGE assistant {words}\n",
        encoding="utf-8",
    )
    commands = (
        ("create", "evil"),
        ("show", "evil"),
        ("show", "evil", "--modelfile"),
        ("show", "evil", "--json"),
        ("inspect", hostile),
        ("inspect", hostile, "--json"),
        ("run", "evil", "hello", *SHORT),
    )
    check(tmp_path, commands)


def test_errors_about_a_hostile_model_are_text(models: Models, tmp_path: Path) -> None:
    """Tests that errors and tracebacks, which quote the faulty value, are plain text."""
    odd = write_hostile_target(tmp_path / "odd.gguf", architecture=f"odd{EVIL}")
    template = "{% if x %}{{ raise_exception('" + EVIL.replace("\r", "") + "') }}"
    broken = write_hostile_target(tmp_path / "broken.gguf", template=template)
    raising = write_hostile_target(tmp_path / "raising.gguf", template=template.removeprefix("{% if x %}"))
    commands = (
        (COMMAND, "generate", odd, "-p", "ab", *SHORT),
        (COMMAND, "--debug", "generate", odd, "-p", "ab", *SHORT),
        (COMMAND, "--log-level", "debug", "generate", odd, "-p", "ab", *SHORT),
        (COMMAND, "run", broken, "hello", *SHORT),
        (COMMAND, "--debug", "run", raising, "hello", *SHORT),
        (COMMAND, "show", EVIL),
        (COMMAND, "generate", models.target, "--draft", odd, "-p", "ab", *SHORT),
        (COMMAND, "--debug", "generate", models.target, "--draft", odd, "-p", "ab", *SHORT),
        (COMMAND, "convert", tmp_path, "--target", odd),
        (sys.executable, "-P", "-m", "eaglecpp.convert", tmp_path / f"missing{EVIL}", "--target", odd),
    )
    check(tmp_path, commands, fails=True)
