# SPDX-License-Identifier: MIT
"""Tests answers and whole conversations that the target generates for training. They are stored unchanged,
are the same after an interruption, and do not depend on the other conversations of a run.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from eaglecpp.engine.engine import Engine
from eaglecpp.engine.loops import is_looping
from eaglecpp.errors import DataError
from eaglecpp.options import ModelOptions, SamplingOptions
from eaglecpp.train.capture.batched import batch_options
from eaglecpp.train.capture.converse import ConverseSettings, Frame, converse, question
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


# Conversations in which the target writes both sides

# Turns are short, because the tiny target rarely ends a turn. Questions come from the lists, because a listed
# question always ends.
SETTINGS = ConverseSettings(
    seed=3, own_questions=0.3, follow_ups=0.8, turns=(0.3, 0.7), question_tokens=40, answer_tokens=16
)
N = 12


@pytest.fixture(scope="module")
def writer(models: Models) -> Iterator[Engine]:
    model = batch_options(ModelOptions(n_ctx=1024, n_threads=1), 4)
    with Engine.open(models.target, model=model, strategy="off") as writer:
        yield writer


@pytest.fixture(scope="module")
def written(writer: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converse") / "c.jsonl"
    converse(writer, out, N, SETTINGS)
    return out


def conversation_entries(path: Path) -> dict[int, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return {int(line["index"]): line for line in lines}


def test_every_conversation_is_written_or_left_out_for_a_reason(written: Path) -> None:
    found = conversation_entries(written)
    assert sorted(found) == list(range(N))
    assert all("tokens" in entry or entry["dropped"] for entry in found.values())
    assert sum("tokens" in entry for entry in found.values()) >= N // 3


def test_answers_are_the_targets_continuation(writer: Engine, written: Path) -> None:
    """Checks that answers are the target's continuation of the conversation. Greedy answers need no seed."""
    out = written.with_name("greedy.jsonl")
    converse(writer, out, N, replace(SETTINGS, temperatures=((0.0, 1.0),), own_questions=0.0))
    n_compared = 0
    for entry in conversation_entries(out).values():
        for begin, end in entry.get("turns", ()):
            with writer.session() as session:
                result = session.generate(entry["tokens"][:begin], max_tokens=end - begin, temperature=0.0)
            assert result.tokens == entry["tokens"][begin:end]
            n_compared += 1
    assert n_compared >= 4


def test_turns_are_in_the_templates_form(writer: Engine, written: Path) -> None:
    frame = Frame(writer)
    for entry in conversation_entries(written).values():
        for begin, end in entry.get("turns", ()):
            assert entry["tokens"][:begin][-len(frame.to_assistant) + 1 :] == frame.to_assistant[1:]
            assert 0 < end - begin <= SETTINGS.answer_tokens
        if entry.get("turns"):
            assert entry["turns"][-1][1] == len(entry["tokens"])


def test_other_conversations_and_order_change_nothing(models: Models, written: Path, tmp_path: Path) -> None:
    with Engine.open(models.target, n_ctx=1024, n_threads=1, strategy="off") as alone:
        converse(alone, tmp_path / "c.jsonl", N, SETTINGS)
    assert conversation_entries(tmp_path / "c.jsonl") == conversation_entries(written)


def test_more_conversations_can_be_added_later(writer: Engine, written: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.jsonl"
    out.write_bytes(written.read_bytes()[:-200])
    converse(writer, out, N, SETTINGS)
    assert conversation_entries(out) == conversation_entries(written)
    out.write_bytes(written.read_bytes())
    steps: list[tuple[int, int, int]] = []
    report = converse(writer, out, N + 3, SETTINGS, lambda *step: steps.append(step))
    # Before the first conversation is finished, the run reports tokens of unfinished conversations.
    assert max(n_tokens for n_done, _, n_tokens in steps if n_done == N) > 0
    assert report.n_before == sum("tokens" in entry for entry in conversation_entries(written).values())
    assert out.read_bytes().startswith(written.read_bytes())
    assert sorted(conversation_entries(out)) == list(range(N + 3))


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_files_are_private_under_any_umask(writer: Engine, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        converse(writer, tmp_path / "a" / "b" / "c.jsonl", 1, SETTINGS)
    finally:
        os.umask(before)
    made = [*(tmp_path / "a").rglob("*")]
    assert len(made) >= 2 and not [path for path in made if path.stat().st_mode & 0o022]


def test_only_the_assistants_tokens_are_learnt(writer: Engine, written: Path) -> None:
    read = data.load([written], writer, 1024)
    good = [entry for entry in conversation_entries(written).values() if "tokens" in entry]
    by_tokens = {tuple(entry["tokens"]): entry for entry in good}
    assert read.report.conversations + sum(read.report.dropped.values()) == len(good)
    for one in read.conversations:
        entry = by_tokens[tuple(one.tokens.tolist())]
        for number, (begin, end) in enumerate(entry["turns"], 1):
            assert (one.turns[begin:end] == number).all()
        assert np.count_nonzero(one.turns) == sum(end - begin for begin, end in entry["turns"])


def test_a_repeated_question_is_learnt_once(writer: Engine, tmp_path: Path) -> None:
    lines = [
        {"tokens": [5, 6, 7, 8, 9, 10], "turns": [[3, 6]]},
        {"tokens": [5, 6, 7, 9, 9, 11], "turns": [[3, 6]]},
        {"index": 3, "dropped": "the answer loops"},
    ]
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = data.load([path], writer, 64)
    assert [one.tokens.tolist() for one in read.conversations] == [lines[0]["tokens"]]
    assert read.report.dropped == {"questions that were already asked": 1}


@pytest.mark.parametrize("turns", ["[[3, 9]]", "[[4, 3]]", "[]", "[[1]]", "3", "[[0, 2], [1, 3]]"])
def test_impossible_turns_are_named(writer: Engine, tmp_path: Path, turns: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(f'{{"tokens": [5, 6, 7, 8], "turns": {turns}}}\n')
    with pytest.raises(DataError, match=r'c\.jsonl:1: "turns": expected \[begin, end\]'):
        data.load([path], writer, 64)


def test_repetition_is_detected() -> None:
    rng = random.Random(1)
    text = [rng.randrange(100) for _ in range(200)]
    assert not is_looping(text)
    for period in (1, 7, 48, 64):
        assert is_looping(text[:50] + text[:period] * max(4, -(-48 // period)))
        assert not is_looping(text[:50] + text[:period] * 2)
    assert not is_looping([])


def test_questions_are_of_many_kinds() -> None:
    asked = [question(random.Random(n)) for n in range(300)]
    assert len(set(asked)) > 280
    assert any("def " in text for text in asked)
    assert any(len(text) > 2000 for text in asked)
    assert asked == [question(random.Random(n)) for n in range(300)]
