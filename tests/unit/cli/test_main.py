# SPDX-License-Identifier: MIT
"""Tests the common parts of all commands: exit codes, one-line errors, the table of commands."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest

from eaglecpp import cli
from eaglecpp.errors import GgufError, InvalidValueError


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """Runs a command that raises the given exception, and returns the command's exit code."""

    def run(error: BaseException) -> int:
        @click.command()
        def boom() -> None:
            raise error

        monkeypatch.setattr(cli.group, "get_command", lambda ctx, name: boom)
        return cli.main(["boom"])

    return run


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (GgufError("x.gguf: not a GGUF"), 1, "error: x.gguf: not a GGUF\n"),
        (FileNotFoundError(2, "No such file", "x"), 1, "error: x: No such file\n"),
        (InvalidValueError("too long"), 1, "error: too long\n"),
        (TypeError("no"), 1, "error: internal error: TypeError('no'); see `eaglecpp --debug ...`\n"),
        (SystemExit("text"), 1, ""),
        (
            InvalidValueError("n_ctx 9: leave out n_ctx; /a/n_ctx.gguf"),
            1,
            "error: -c 9: leave out -c; /a/n_ctx.gguf\n",
        ),
        (click.UsageError("give a prompt"), 2, "error: give a prompt (see `eaglecpp boom --help`)\n"),
        (click.ClickException("cannot"), 1, "error: cannot\n"),
        (KeyError("k"), 1, "error: internal error: KeyError('k'); see `eaglecpp --debug ...`\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: Exception,
    code: int,
    text: str,
    failing: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert failing(error) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", text)


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--debug", "generate", "missing.gguf", "-p", "x"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: target 'missing.gguf'")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("bench tiny --seconds nan", "'nan' is not a number (see"),
        ("run tiny --temp nan hi", "'nan' is not a number (see"),
        ("learn tiny --minutes nan", "'nan' is not a number (see"),
        ("run tiny -t 100000 hi", "100000 is not in the range 0<=x<=512"),
        ("launch", "Choose from: claude, codex, opencode (see"),
        ("serve --models none.toml", "error: none.toml: No such file or directory\n"),
    ],
)
def test_wrong_arguments_are_one_line(line: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(line.split()) in (1, 2)
    err = capsys.readouterr().err
    assert text in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("doct", "plain,doctor\n"),
        ("run mi", "plain,mine:little\n"),
        ("run none", "file,none\n"),
        ("run --hideth", "plain,--hidethinking\n"),
    ],
)
def test_tab_completes_in_a_shell(
    typed: str, offered: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("eaglecpp.cli.command.stored_names", lambda: ["mine:little"])
    monkeypatch.setenv("_EAGLECPP_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"eaglecpp {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    assert cli.main([]) == 0
    assert capsys.readouterr().out == offered
