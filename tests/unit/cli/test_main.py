# SPDX-License-Identifier: MIT
"""Tests the common parts of all commands: exit codes, one-line errors, the table of commands, and the help
that a new user gets, for example after mistyping a command.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import eaglecpp
from eaglecpp import cli
from eaglecpp.cli import COMMANDS, group, main
from eaglecpp.cli.doctor import native_facts
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


# Help for new users


def test_the_command_alone_shows_what_is_installed_and_the_next_command(
    models: Models, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("eaglecpp.store.packaged.installed", lambda: None)
    assert main([]) == 0
    first = capsys.readouterr().out
    assert re.search(r"^cpu .*cores?$", first, re.M) and re.search(r"^memory .* available$", first, re.M)
    assert "no models here yet" in first and "next: eaglecpp run smollm2" in first
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {models.target}\nDRAFT {models.draft}\n", encoding="utf-8")
    assert main(["create", "mine", "-f", str(modelfile)]) == 0
    assert main([]) == 0
    own = capsys.readouterr().out
    assert "eagle3\n" in own and "next: eaglecpp run mine\n" in own


def test_doctor_shows_the_memory_that_a_container_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglecpp._extension.core.available_memory", lambda: 123 << 20)
    assert native_facts()["memory"]["available"] == 123 << 20


def test_the_command_alone_reports_a_broken_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"eaglecpp": "0.1.0", "problems": ["the extension does not load"]}
    monkeypatch.setattr("eaglecpp.cli.greet.gather", lambda: facts)
    assert main([]) == 0
    assert capsys.readouterr().out == (
        "eaglecpp 0.1.0 cannot run: the extension does not load\n\nnext: eaglecpp doctor\n"
    )


@pytest.mark.parametrize("topic", [[], ["run"]])
def test_help_is_a_command(topic: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", *topic]) == 0
    output = capsys.readouterr().out
    assert main([*topic, "--help"]) == 0
    assert capsys.readouterr().out == output and output.startswith("Usage: eaglecpp")


def test_the_version_has_the_options_of_ollama(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-v"]) == main(["--version"]) == 0
    assert capsys.readouterr().out == f"eaglecpp {eaglecpp.__version__}\n" * 2


@pytest.mark.parametrize("said", ["--draft off", "--draft none", "--no-draft", "--strategy none"])
def test_every_spelling_that_turns_drafting_off(
    said: str, named: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", named(), "-p", "ab cd", "-n", "2", "--json", *said.split()]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["timings"]["plan"]["strategy"] == "off"
    if "--strategy" not in said:
        assert main([*words, "--strategy", "chain:2"]) == 2
        assert f"{said} and --strategy chain:2 contradict each other" in capsys.readouterr().err


def test_llama_cpps_spellings_mean_the_same() -> None:
    def parsed(name: str, *args: str) -> dict[str, Any]:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        return command.make_context(name, list(args)).params

    ours = "--flash-attn on --cache-type-k q8_0 --cache-type-v q8_0 --n-gpu-layers 9 --ubatch-size 64 "
    ours += "--threads-batch 2 --main-gpu 1 --max-tokens 5 -md d.gguf --ctx-size 64"
    theirs = "-fa on -ctk q8_0 -ctv q8_0 -ngl 9 -ub 64 -tb 2 -mg 1 --predict 5 -c 64 "
    theirs += "--spec-type draft-dflash --spec-draft-model d.gguf"
    assert parsed("generate", *ours.split(), "-p", "x") == parsed("generate", *theirs.split(), "-p", "x")
    ours, theirs = "s --target t --type f16 -o o", "s --target t --outtype f16 --outfile o"
    assert parsed("convert", *ours.split()) == parsed("convert", *theirs.split())


@pytest.mark.parametrize("name", ["run", "generate", "serve", "bench", "doctor", "train"])
def test_help_shows_the_usual_options_and_how_to_see_all(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([name, "--help"]) == 0
    usual = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    assert main([name, "--help"]) == 0
    assert not re.search("^ {40}", capsys.readouterr().out, re.M), "help must not start at column 40 of 60"
    places = [usual.index(word) for word in ("Usage:", "\nExamples:", "\nOptions:", "--help-all")]
    assert places == sorted(places)
    assert len(re.findall(r"^  -", usual[places[2] :], re.M)) in (11, 12), "expected ten options and the help"


def test_examples_come_first_and_engine_options_last(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert main([name, "--help-all" if getattr(command, "usual", ()) else "--help"]) == 0
        output = capsys.readouterr().out
        assert "<=" not in output.replace("<= off", "") and "RANGE" not in output, name
        if name in ("run", "generate", "serve", "bench", "doctor"):
            headings = ("Examples", "Options", "Model, memory and devices")
            places = [output.index(f"\n{word}:") for word in headings]
            assert places == sorted(places), name
