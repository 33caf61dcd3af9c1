# SPDX-License-Identifier: MIT
"""Tests answers that the target generates for training. They are stored unchanged, and are the same after an
interruption.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from eaglecpp.engine.engine import Engine
from eaglecpp.errors import DataError
from eaglecpp.options import SamplingOptions
from eaglecpp.train.capture.generate import generate
from eaglecpp.train.data import texts as data
from helpers.models import Models

SAMPLING = SamplingOptions(max_tokens=24, temperature=0.9, seed=7)
PROMPTS = ["how old are you", "who let the man in", "and now", "how old are you"]


@pytest.fixture(scope="module")
def engine(models: Models) -> Iterator[Engine]:
    # `engine.chat` takes one sequence. Answers take the other sequence, so they come in the order of the
    # prompts.
    with Engine.open(models.target, n_ctx=256, n_threads=1, n_sequences=2) as engine:
        yield engine


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n\n".join(PROMPTS) + "\n", encoding="utf-8")
    return path


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_answers_equal_the_engines(engine: Engine, prompts: Path, tmp_path: Path) -> None:
    report = generate(engine, tmp_path / "a.jsonl", [prompts], SAMPLING)
    assert (report.n_good, report.n_before, report.dropped) == (4, 0, {})
    _, *answers = entries(tmp_path / "a.jsonl")
    for index, answer in enumerate(answers):
        engine.clear()
        expected = engine.chat(
            [{"role": "user", "content": PROMPTS[index]}], sampling=SAMPLING, seed=7 + index
        )
        assert answer["prompt_tokens"] == expected.prompt_tokens
        assert answer["answer_tokens"] == expected.tokens
        assert (answer["index"], answer["finish"]) == (index, expected.finish_reason)
    read = data.load([tmp_path / "a.jsonl"], engine, 256)
    for one, answer in zip(read.conversations, answers, strict=True):
        n_prompt, n_answer = len(answer["prompt_tokens"]), len(answer["answer_tokens"])
        assert one.tokens.tolist() == answer["prompt_tokens"] + answer["answer_tokens"]
        assert one.turns.tolist() == [0] * n_prompt + [1] * n_answer
    assert answers[0]["prompt_tokens"] == answers[3]["prompt_tokens"]
    assert answers[0]["answer_tokens"] != answers[3]["answer_tokens"], "each position must have its own seed"


@pytest.mark.parametrize(
    ("n_cut", "half"),
    [(1, b""), (40, b""), (300, b""), (100_000, b""), (1, b'\n{"index":3,"a":[' + b"1," * 5000)],
)
def test_a_run_continues_after_a_partial_line(
    engine: Engine, prompts: Path, tmp_path: Path, n_cut: int, half: bytes
) -> None:
    """Tests that a run continues after the partial line of a killed run. The partial line may be longer than
    the line that replaces it.
    """
    out = tmp_path / "a.jsonl"
    generate(engine, out, [prompts], SAMPLING)
    whole = out.read_bytes()
    whole_lines = whole.rindex(b'{"index":3') if half else max(len(whole) - n_cut, 0)
    out.write_bytes(whole[:whole_lines] + half.lstrip())
    n_before = max(out.read_bytes().count(b"\n") - 1, 0)
    report = generate(engine, out, [prompts], SAMPLING)
    assert out.read_bytes() == whole
    assert (report.n_before, report.n_good) == (n_before, 4)


def test_chats_are_answered_after_their_last_question(engine: Engine, tmp_path: Path) -> None:
    turns = [("user", "how"), ("assistant", "so"), ("user", "and who"), ("assistant", "the old answer")]
    messages = [{"role": role, "content": content} for role, content in turns]
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"messages": messages}) + '\n{"prompt": "and who"}\n', encoding="utf-8")
    generate(engine, tmp_path / "a.jsonl", [path], SAMPLING)
    _, chat, prompt = entries(tmp_path / "a.jsonl")
    assert chat["prompt_tokens"] == engine.chat_prompt(messages[:3])
    assert prompt["prompt_tokens"] == engine.chat_prompt([{"role": "user", "content": "and who"}])


def test_prompts_that_fill_the_context_are_left_out(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("how\n" + "the man " * 200 + "\n", encoding="utf-8")
    report = generate(engine, tmp_path / "a.jsonl", [path], SAMPLING)
    assert (report.n_good, report.dropped) == (1, {"longer than the context of 256 tokens": 1})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"messages": [{"role": "system", "content": "x"}]}', ":1: expected messages that end in a user"),
        ('{"text": "x"}', ':1: expected "messages" or "prompt"'),
        ("{", ":1: expected JSON"),
    ],
)
def test_a_bad_prompt_is_named(engine: Engine, tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=says):
        generate(engine, tmp_path / "a.jsonl", [path], SAMPLING)
    assert not (tmp_path / "a.jsonl").exists()


# Prompts that are refused


def test_other_options_are_refused(engine: Engine, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    generate(engine, out, [prompts], SAMPLING)
    before = out.read_bytes()
    with pytest.raises(DataError, match=r"temperature: expected 0\.5, found 0\.9"):
        generate(engine, out, [prompts], SamplingOptions(max_tokens=24, temperature=0.5, seed=7))
    assert out.read_bytes() == before


def test_other_prompts_are_refused(engine: Engine, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    generate(engine, out, [prompts], SAMPLING)
    prompts.write_text("something else\n" + prompts.read_text(), encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.jsonl:2: expected an answer to prompt 0 .* have changed"):
        generate(engine, out, [prompts], SAMPLING)


@pytest.mark.parametrize("text", ['{"messages": []}\n', "my notes, not a line of it ended"])
def test_another_file_is_not_changed(engine: Engine, prompts: Path, tmp_path: Path, text: str) -> None:
    out = tmp_path / "a.jsonl"
    out.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="no recorded answers"):
        generate(engine, out, [prompts], SAMPLING)
    assert out.read_text() == text


def test_two_runs_do_not_write_one_file(engine: Engine, prompts: Path, tmp_path: Path) -> None:
    with FileLock(tmp_path / "a.jsonl.lock"), pytest.raises(DataError, match="another process is writing"):
        generate(engine, tmp_path / "a.jsonl", [prompts], SAMPLING)
