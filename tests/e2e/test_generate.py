# SPDX-License-Identifier: MIT
"""Tests `eaglecpp generate` as a process on real GGUF files."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

from helpers.command import Cli, Start
from helpers.models import Models

ONE_THREAD = ("-c", "512", "-t", "1")  # several threads would wait for each other on a busy machine
GREEDY = ("--temp", "0", *ONE_THREAD)


def as_json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_json_is_one_object_of_four_keys_and_text_ends_with_one_newline(cli: Cli, models: Models) -> None:
    same = ("generate", models.target, "--draft", models.draft, "-p", "ab cd", "-n", 16, *GREEDY)
    done = cli(*same, "--json")
    result = as_json(done)
    assert list(result) == ["text", "tokens", "finish_reason", "timings"]
    assert (len(result["tokens"]), result["finish_reason"]) == (16, "length")
    assert result["timings"]["plan"]["strategy"] == "auto" and done.stderr == ""
    # The strategy is fixed, because the drafts of `auto` depend on the clock.
    drafted = as_json(cli(*same, "--json", "--strategy", "chain:3"))
    assert drafted["timings"]["draft_n"] > 0 and drafted["tokens"] == result["tokens"]
    done = cli(*same)
    assert (done.stdout, done.stderr) == (result["text"] + "\n", "")


def test_the_prompt_comes_from_argument_file_or_stdin(cli: Cli, models: Models, tmp_path: Path) -> None:
    prompt = "ab \u00fc cd\n"
    (tmp_path / "prompt.txt").write_bytes(prompt.encode())
    same = ("generate", models.target, "-n", 8, "--json", *GREEDY)
    results = [
        as_json(cli(*same, "-p", prompt)),
        as_json(cli(*same, "-f", "prompt.txt")),
        as_json(cli(*same, "-p", "-", input=prompt)),
        as_json(cli(*same, "-f", "-", input=prompt)),
    ]
    assert len({tuple(result["tokens"]) for result in results}) == 1
    assert len({result["timings"]["prompt_n"] for result in results}) == 1


def test_stop_and_grammar_options(cli: Cli, models: Models, tmp_path: Path) -> None:
    same = ("generate", models.target, "-p", "ab cd", "-n", 24, "--json", *GREEDY)
    text = as_json(cli(*same))["text"]
    stopped = as_json(cli(*same, "--stop", text[6:8], "--stop", "never this"))
    assert (stopped["text"], stopped["finish_reason"]) == (text[: text.index(text[6:8])], "stop")
    (tmp_path / "digits.gbnf").write_text("root ::= [0-9]+", encoding="utf-8")
    assert as_json(cli(*same, "--grammar-file", "digits.gbnf"))["text"].isdigit()


def test_ctrl_c_prints_the_partial_answer(start: Start, cli: Cli, models: Models) -> None:
    files = (models.target, "--draft", models.draft)
    options = ("generate", *files, "-p", "ab cd", "--ignore-eos", "--temp", "0", "-c", "16384", "-t", "1")
    with start(*options) as process:
        assert process.stdout is not None
        head = process.stdout.read(40)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert re.fullmatch(rb"note: -c is 16384, but the model was trained for 2048 tokens; .*\n", err)
    text = (head + out).decode()
    assert text.endswith("\n")
    assert as_json(cli(*options, "-n", len(text), "--json"))["text"].startswith(text[:-1])


def test_a_closed_pipe_is_not_an_error(start: Start, models: Models) -> None:
    with start("generate", models.target, "-p", "ab cd", "-n", "400", "--ignore-eos", *GREEDY) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (1, b"")
