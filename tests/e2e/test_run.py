# SPDX-License-Identifier: MIT
"""`eaglecpp run` and `doctor` as processes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Models

Cli = Callable[..., subprocess.CompletedProcess[str]]
SHORT = ("-n", "12", "--temp", "0", "-c", "512", "-t", "1")


def test_the_answer_is_on_stdout_and_one_line_of_figures_on_stderr(cli: Cli, models: Models) -> None:
    from eaglecpp import Engine

    done = cli("run", models.target, "hello", "there", "--draft", models.draft, *SHORT)
    assert done.returncode == 0
    with Engine.open(models.target, n_ctx=512) as engine:
        messages = [{"role": "user", "content": "hello there"}]
        assert done.stdout == engine.chat(messages, max_tokens=12, temperature=0.0).text + "\n"
    assert re.fullmatch(
        r"\[ 12 tokens · [0-9.]+ tokens/s · acceptance length [0-9.]+ · "
        r"[0-9]+% of [0-9]+ drafted tokens accepted \]\n",
        done.stderr,
    )


def test_without_drafting_the_line_says_so(cli: Cli, models: Models) -> None:
    for options in ((), ("--draft", models.draft, "--no-draft")):
        done = cli("run", models.target, "hello", *options, *SHORT)
        assert done.stderr.endswith("no drafter ]\n")


def test_piped_input_goes_before_the_prompt(cli: Cli, models: Models) -> None:
    piped = cli("run", models.target, "hello", *SHORT, input="a file\n")
    whole = cli("run", models.target, "a file\n\nhello", *SHORT)
    assert piped.stdout == whole.stdout
    alone = cli("run", models.target, *SHORT, input="hello\n")
    assert alone.stdout == cli("run", models.target, "hello", *SHORT).stdout


def test_no_prompt_at_all_is_wrong_usage(cli: Cli, models: Models) -> None:
    done = cli("run", models.target, *SHORT)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no prompt" in done.stderr


def test_a_base_model_completes_and_is_told_so(cli: Cli, base_model: Path) -> None:
    done = cli("run", base_model, "ab cd", *SHORT)
    assert done.returncode == 0
    assert "has no chat template" in done.stderr.splitlines()[0]
    assert done.stdout == cli("generate", base_model, "-p", "ab cd", *SHORT).stdout


def test_verbose_shows_ollamas_lines(cli: Cli, models: Models) -> None:
    done = cli("run", models.target, "hello", "--verbose", "--draft", models.draft, *SHORT)
    names = [line.split(":")[0] for line in done.stderr.splitlines() if ":" in line]
    assert names[:2] == ["total duration", "load duration"]
    assert {"prompt eval count", "eval count", "eval rate", "acceptance length"} <= set(names)


@pytest.mark.parametrize("reference", ["llama3.2:3b", "org/repo", "missing.gguf"])
def test_a_model_that_is_no_path_is_one_clear_line(cli: Cli, reference: str) -> None:
    done = cli("run", reference, "hello")
    assert (done.returncode, done.stdout) == (1, "")
    assert reference in done.stderr
    assert "path of a GGUF file" in done.stderr or "no such file" in done.stderr
    assert done.stderr.count("\n") == 1


def test_doctor_finds_this_installation_in_order(cli: Cli) -> None:
    done = cli("doctor", "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["problems"]) == (0, [])
    assert facts["llama"]["built_for"] == facts["llama"]["llama_cpp_python"]
    assert facts["devices"]
    assert set(facts["cpu"]["amx"]) == {"claimed", "works"}
    assert all(package["ok"] for package in facts["packages"])
    text = cli("doctor")
    assert text.returncode == 0
    assert text.stdout.endswith("all good\n")
    assert text.stderr == ""


def test_doctor_names_what_is_broken(cli: Cli, tmp_path: Path) -> None:
    import os

    done = cli("doctor", "--json", env={**os.environ, "LLAMA_CPP_LIB_PATH": str(tmp_path)})
    assert done.returncode == 1
    assert any(
        "llama-cpp-python cannot be loaded" in problem for problem in json.loads(done.stdout)["problems"]
    )


def test_python_dash_m_is_the_same_command(tmp_path: Path) -> None:
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "eaglecpp", "nonsense"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
