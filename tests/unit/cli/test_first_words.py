# SPDX-License-Identifier: MIT
"""Tests the help that a new user gets, for example after mistyping a command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import eaglecpp
from eaglecpp.cli import COMMANDS, group, main
from eaglecpp.cli.doctor import native_facts
from helpers.models import Models


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
