# SPDX-License-Identifier: MIT
"""Runs `eaglecpp run`, `generate` and `doctor` and the examples as processes. The examples must stay short
enough to read.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.cli.doctor import report
from helpers.command import Cli, Start
from helpers.lora import write_lora
from helpers.models import Models
from helpers.tiny_projector import N_ROWS, make_image, make_projector

CHAIN = ("--strategy", "chain:3")  # a fixed strategy, because the drafts of `auto` depend on the clock
SHORT = ("-n", "12", "--temp", "0", "--ctx-size", "512", "-t", "1")


def test_piped_input_comes_first_and_stats_go_to_stderr(cli: Cli, models: Models) -> None:
    from eaglecpp import Engine

    same = ("run", models.target, "and", "there", "--draft", models.draft, *CHAIN, *SHORT)
    done = cli(*same, input="hello\nyou\n")
    assert done.returncode == 0
    with Engine.open(models.target, n_ctx=512) as engine:
        messages = [{"role": "user", "content": "hello\nyou\n\nand there"}]
        assert done.stdout == engine.chat(messages, max_tokens=12, temperature=0.0).text + "\n"
    assert re.fullmatch(r"\[ 12 tokens · [0-9.]+ tokens/s( · the answer repeats itself)? \]\n", done.stderr)
    quiet = cli(*same, "-q", input="hello\nyou\n")
    assert (quiet.stdout, quiet.stderr) == (done.stdout, "")


def test_a_model_without_template_gets_its_vocabularys_format_with_a_note(cli: Cli, base_model: Path) -> None:
    done = cli("run", base_model, "ab cd", *SHORT)
    assert done.returncode == 0
    assert "no chat template" in done.stderr.splitlines()[0]
    prompt = "<|im_start|>user\nab cd<|im_end|>\n<|im_start|>assistant\n"
    raw = cli("generate", base_model, "-p", prompt, "--min-p", "0", "--top-p", "0.9", *SHORT)
    assert done.stdout == raw.stdout


def test_json_is_one_object_and_stderr_is_empty(cli: Cli, models: Models) -> None:
    done = cli("run", models.target, "hello", "--json", "--draft", models.draft, *CHAIN, *SHORT)
    result = json.loads(done.stdout)
    assert list(result) == ["text", "thinking", "tokens", "finish_reason", "timings"]
    assert (len(result["tokens"]), result["finish_reason"], result["thinking"]) == (12, "length", "")
    assert result["timings"]["draft_n"] > 0
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert result["text"] + "\n" == cli("run", models.target, "hello", *SHORT).stdout


def test_an_answer_in_a_format_follows_it_and_is_drafted(cli: Cli, models: Models, tmp_path: Path) -> None:
    schema = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    (tmp_path / "schema.json").write_text(schema, encoding="utf-8")
    same = ("run", models.target, "hello", "--json", "--draft", models.draft, "--seed", "3", *SHORT[2:])
    by_text, by_file = (json.loads(cli(*same, "--format", form).stdout) for form in (schema, "schema.json"))
    assert list(json.loads(by_text["text"])) == ["n"] and by_text["timings"]["rounds"] > 0
    assert by_file["tokens"] == by_text["tokens"]
    wrong = cli(*same, "--format", "xml")
    assert (wrong.returncode, wrong.stdout) == (2, "") and "xml" in wrong.stderr


def test_invalid_utf8_is_replaced_with_a_note(cli: Cli, models: Models) -> None:
    done = cli("run", models.target, "ab\udcff", *SHORT)
    assert done.returncode == 0
    assert "not valid UTF-8" in done.stderr


def test_ctrl_c_ends_the_answer_and_sets_the_exit_status(start: Start, models: Models) -> None:
    options = ("--ignore-eos", "--temp", "0", "--ctx-size", "2048", "-t", "1")
    with start("run", models.target, "hello", "--draft", models.draft, *CHAIN, *options) as process:
        assert process.stdout is not None
        head = b""
        while len(head) < 40:
            head += process.stdout.read(40)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert (head + out).endswith(b"\n")
    assert err.startswith(b"[ ") and b" tokens" in err


QUICK = [["list"], ["show", "tiny", "--modelfile"], ["cp", "tiny", "b"], ["rm", "b"], ["ps"]]
SLOW = {"gguf", "llguidance", "huggingface_hub", "requests", "tqdm"}
"""Modules that take long to load; llama_cpp itself loads numpy and jinja2."""


@pytest.mark.parametrize(
    ("commands", "slow"),
    [
        (QUICK, SLOW | {"numpy", "llama_cpp", "eaglecpp._core"}),
        # The model of this command has a Jinja template.
        (
            [["run", "tiny", "hello", *SHORT]],
            SLOW
            | {"prompt_toolkit", "safetensors", "torch", "eaglecpp.chat.go_template"}
            | {"asyncio", "ssl", "urllib.request"},
        ),
    ],
)
def test_a_command_loads_only_what_it_needs(
    commands: list[list[str]], slow: set[str], cli: Cli, models: Models, tmp_path: Path
) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {models.target}\nDRAFT {models.draft}\n")
    assert cli("create", "tiny").returncode == 0
    script = (
        f"import sys\nfrom eaglecpp.cli import main\ncodes = [main(one) for one in {commands}]\n"
        f"print({slow} & set(sys.modules) or 'none', sum(codes))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "none 0", done.stderr


def test_doctor_names_the_fault_of_a_broken_installation(cli: Cli, tmp_path: Path) -> None:
    done = cli("doctor", "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["problems"]) == (0, [])
    assert facts["llama"]["built_for"] == facts["llama"]["llama_cpp_python"]
    assert facts["devices"] and set(facts["cpu"]["amx"]) == {"claimed", "works"}
    library = tmp_path / "libggml-some.so"
    library.write_text("not a library")
    done = cli("doctor", env={**os.environ, "GGML_BACKEND_PATH": str(library)})
    assert done.returncode == 0 and done.stdout.startswith("all good") and done.stderr == ""
    (note,) = (line for line in done.stdout.splitlines() if line.startswith("note: llama.cpp reports:"))
    assert "failed to load" in note and library.name in note
    done = cli("doctor", "--json", env={**os.environ, "LLAMA_CPP_LIB_PATH": str(tmp_path)})
    (problem,) = json.loads(done.stdout)["problems"]
    assert done.returncode == 1 and "llama-cpp-python cannot be loaded" in problem


def test_doctor_predicts_or_measures_drafting_and_lists_exact_sizes(cli: Cli, models: Models) -> None:
    same = ("doctor", models.target, "--draft", models.draft, "--json", "--ctx-size", "512", "-t", "1")
    predicted = json.loads(cli(*same).stdout)
    model = predicted["model"]
    assert model["verdict"]["greedy"] is None and "Drafting should" in model["verdict"]["text"]
    assert "exact_rows" not in model and "--measure measures it" in report(predicted)
    assert cli("doctor", "--measure").returncode == 2
    done = cli(*same, "--measure")
    measured = json.loads(done.stdout)
    model = measured["model"]
    assert (done.returncode, model["target"], model["draft"]) == (0, str(models.target), str(models.draft))
    assert model["measured_steps"] > 17 and model["exact_rows"].startswith("1")
    assert bool(model["exact_reason"]) == (model["exact_rows"] == "1")
    said = model["verdict"]["text"]
    assert ("Not measured" if model["verdict"]["is_busy"] else "Drafting") in said, "wrong kind of verdict"
    text = report(measured)
    assert re.search(r"^exact +(always target-only decoding: |chains and trees in batches of 1)", text, re.M)
    assert text.startswith(said)
    text = cli("doctor", models.target, "-t", "1").stdout
    assert "context           2048 tokens, everything the model was trained for\n" in text
    assert "all decoding is target-only" in text and "Drafting" not in text


def test_an_image_argument_is_shown_to_the_model(cli: Cli, models: Models, tmp_path: Path) -> None:
    picture, projector = tmp_path / "a picture.PNG", make_projector(tmp_path / "mmproj.gguf", 64)
    picture.write_bytes(make_image(1))
    words = ("run", models.target, picture, "what", "is it?", "--json", "-n", "8", "--temp", "0")
    with_it = cli(*words, "--mmproj", projector)
    assert with_it.returncode == 0, with_it.stderr
    named = cli(*words[:2], *words[3:], "--mmproj", projector, "--image", f"{picture},{picture}")
    n_named, n_with_it = (json.loads(done.stdout)["timings"]["prompt_n"] for done in (named, with_it))
    assert n_named >= n_with_it + N_ROWS["gemma3"], "--image must accept several files, as in llama.cpp"
    assert json.loads(with_it.stdout)["timings"]["prompt_n"] > N_ROWS["gemma3"]
    without = cli(*words)
    assert without.returncode == 1 and "--mmproj" in without.stderr
    wrong = cli(*words, "--mmproj", models.target)
    assert wrong.returncode == 1 and "is not a projector for" in wrong.stderr


def test_images_in_the_prompt_are_attached_or_noted(cli: Cli, models: Models, tmp_path: Path) -> None:
    picture, projector = tmp_path / "a picture.png", make_projector(tmp_path / "mmproj.gguf", 64)
    picture.write_bytes(make_image(1))
    escaped = str(picture).replace(" ", "\\ ")

    def asked(prompt: str, *words: object) -> tuple[int, str]:
        done = cli("run", models.target, prompt, *words, "--json", "-n", "4", "--temp", "0")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["timings"]["prompt_n"], done.stderr

    sees = ("--mmproj", projector)
    separate, _ = asked("What is it?", picture, *sees)
    for named, path in (
        (f"What is it? {picture}", picture),
        (f"What is it? {escaped}", picture),
        ("What is it? './a picture.png'", "a picture.png"),
    ):
        assert asked(named, *sees) == (separate, f"Added image '{path}'\n")
    assert f"{picture} is not attached: " in asked(f"What is it? {picture}")[1]
    for extra in (sees, ()):
        assert (
            "note: no such file: cat.png; the model sees only the name"
            in asked("cat.png", "What?", *extra)[1]
        )
    assert "cat.png" not in asked("Why is cat.png a file?")[1], "without a projector, names must stay text"
    picture.write_text("no picture")
    assert "an image has an unsupported format" in cli("run", models.target, f"What? {picture}", *sees).stderr


def test_llama_cpps_options_for_adapters_templates_forms(cli: Cli, models: Models, tmp_path: Path) -> None:
    def text(*options: object) -> str:
        done = cli("run", models.target, "ab cd", *SHORT, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    lora, template, schema = tmp_path / "a.gguf", tmp_path / "t.jinja", tmp_path / "s.json"
    write_lora(lora, models.target, size=3.0)
    template.write_text("{{ messages[0].content }} ef")
    schema.write_text('{"const": 7}')
    plain = text()
    assert text("--lora", lora) == text("--lora-scaled", f"{lora}:1.0") != plain
    assert text("--lora", f"{lora}:0") == plain
    raw = cli("generate", models.target, "-p", "ab cd ef", "--min-p", "0", "--top-p", "0.9", *SHORT).stdout
    assert text("--chat-template-file", template) == text("--chat-template", template.read_text()) == raw
    for form in (("-j", schema.read_text()), ("-jf", schema), ("--grammar", 'root ::= "7"')):
        assert text(*form) == "7\n"


# `eaglecpp generate`

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


# Examples

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["complete.py", "stream.py", "llama_dropin.py"])
def test_an_example_runs(name: str, models: Models, tmp_path: Path) -> None:
    script = EXAMPLES / name
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60
    done = subprocess.run(
        [sys.executable, script, models.target, models.draft],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr.startswith(("plain", "\n")) or "tokens" in done.stderr
