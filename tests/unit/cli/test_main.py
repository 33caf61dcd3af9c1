# SPDX-License-Identifier: MIT
"""Tests the common parts of all commands: exit codes, one-line errors, the table of commands."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from eaglecpp import cli
from eaglecpp.errors import GgufError, InvalidValueError
from helpers.models import Models


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


LONG = "word" * 100


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("srve", "did you mean `eaglecpp serve`?"),
        ("push mine", "no such command: push (see"),
        ("help srve", "did you mean `eaglecpp serve`?"),
        ("run smollm2 --tmp 0", "did you mean --temp?"),
        ("bench m.gguf --host", "no such option: --host (see `eaglecpp bench --help`)\n"),
        ("bench m.gguf --port", "no such option: --port (see `eaglecpp bench --help`)\n"),
        ("bench m.gguf --warmup", "no such option: --warmup (see `eaglecpp bench --help`)\n"),
        ("bench m.gguf --simple-io", "no such option: --simple-io (see `eaglecpp bench --help`)\n"),
        ("run smollm2 --draft 16", "llama.cpp's --draft 16 is --strategy chain:16"),
        ("run smollm2 --spec-type draft-mtp", "draft-mtp is not supported; use --draft mtp"),
        ("run smollm2 --spec-draft-n-max 7", "; use --strategy chain:N"),
        ("run smollm2 --draft-max 7", "; use --strategy chain:N"),
        ("run a.png", "a.png is a picture; name a model: eaglecpp run MODEL "),
        ("run 'Why is it?'", "no model is named; write: eaglecpp run smollm2 'Why is it?'"),
        ("generate", "name a model;"),
        ("generate t.gguf -p x -f y", "-f"),
        ("generate t.gguf -p x --strategy chain:3", "--strategy chain:3"),
        ("bench one -m two", "found two models, 'one' and -m 'two'"),
        ("serve --mmproj p.gguf", "--mmproj"),
        ("bench tiny --seconds nan", "'nan' is not a number (see"),
        ("run tiny --temp nan hi", "'nan' is not a number (see"),
        ("learn tiny --minutes nan", "'nan' is not a number (see"),
        ("run tiny -t 100000 hi", "100000 is not in the range 0<=x<=512"),
        ("launch", "Choose from: claude, codex, opencode (see"),
        ("run {target} ab --lora a.gguf:much", "'a.gguf:much': expected FILE, or FILE:SCALE"),
        ("run {target} ab --chat-template vicuna", "expected a template in Jinja or Go, or one of chatml"),
        ("run {target} ab --chat-template raw --chat-template-file a.png", "contradict each other"),
        ("run {target} ab --grammar x --format json", "an answer follows one grammar or schema"),
        ("run {target} hi --format {long}", "expected json, a JSON schema"),
        ("1 serve --models none.toml", "error: none.toml: No such file or directory\n"),
        ("1 run {target} ab --image a.png", "a.png: an image has an unsupported format"),
        ("1 run {target} ab --image /dev/zero", "cannot read '/dev/zero': the file is larger than 64 MB"),
        ("1 run {target} ab --grammar-file /dev/zero", "cannot read '/dev/zero': the file is larger than"),
        ("1 run {long} hi", "not a model name"),
        ("1 generate {target} --draft {long} -p x", "not a model name"),
        ("1 convert {long} --target {target}", "not a model name"),
        ("1 run ./{long}.gguf hi", "no such file"),
        *((f"1 run --continue {model}", "no saved chat") for model in ("", "{target}")),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(
    line: str,
    said: str,
    models: Models,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tests mistakes in a command. The exit code is 2, or 1 if the line begins with 1."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
    Path("a.png").write_text("no picture")
    words = shlex.split(line.format(target=models.target, long=LONG))
    assert cli.main(words[words[0] == "1" :]) == (1 if words[0] == "1" else 2)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and err.startswith("error: ") and said in err
    assert "Errno" not in err


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
