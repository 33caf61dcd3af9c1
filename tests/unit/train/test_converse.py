# SPDX-License-Identifier: MIT
"""Tests conversations in which the target writes both sides. A conversation does not depend on the other
conversations of a run.
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

from eaglecpp.engine.engine import Engine
from eaglecpp.engine.loops import is_looping
from eaglecpp.errors import DataError
from eaglecpp.options import ModelOptions
from eaglecpp.train.capture.batched import batch_options
from eaglecpp.train.capture.converse import ConverseSettings, Frame, converse, question
from eaglecpp.train.data import texts as data
from helpers.models import Models

# Turns are short, because the tiny target rarely ends a turn. Questions come from the lists, because a listed
# question always ends.
SETTINGS = ConverseSettings(
    seed=3, own_questions=0.3, follow_ups=0.8, turns=(0.3, 0.7), question_tokens=40, answer_tokens=16
)
N = 12


@pytest.fixture(scope="module")
def engine(models: Models) -> Iterator[Engine]:
    model = batch_options(ModelOptions(n_ctx=1024, n_threads=1), 4)
    with Engine.open(models.target, model=model, strategy="off") as engine:
        yield engine


@pytest.fixture(scope="module")
def written(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converse") / "c.jsonl"
    converse(engine, out, N, SETTINGS)
    return out


def entries(path: Path) -> dict[int, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return {int(line["index"]): line for line in lines}


def test_every_conversation_is_written_or_left_out_for_a_reason(written: Path) -> None:
    found = entries(written)
    assert sorted(found) == list(range(N))
    assert all("tokens" in entry or entry["dropped"] for entry in found.values())
    assert sum("tokens" in entry for entry in found.values()) >= N // 3


def test_answers_are_the_targets_continuation(engine: Engine, written: Path) -> None:
    """Checks that answers are the target's continuation of the conversation. Greedy answers need no seed."""
    out = written.with_name("greedy.jsonl")
    converse(engine, out, N, replace(SETTINGS, temperatures=((0.0, 1.0),), own_questions=0.0))
    n_compared = 0
    for entry in entries(out).values():
        for begin, end in entry.get("turns", ()):
            with engine.session() as session:
                result = session.generate(entry["tokens"][:begin], max_tokens=end - begin, temperature=0.0)
            assert result.tokens == entry["tokens"][begin:end]
            n_compared += 1
    assert n_compared >= 4


def test_turns_are_in_the_templates_form(engine: Engine, written: Path) -> None:
    frame = Frame(engine)
    for entry in entries(written).values():
        for begin, end in entry.get("turns", ()):
            assert entry["tokens"][:begin][-len(frame.to_assistant) + 1 :] == frame.to_assistant[1:]
            assert 0 < end - begin <= SETTINGS.answer_tokens
        if entry.get("turns"):
            assert entry["turns"][-1][1] == len(entry["tokens"])


def test_other_conversations_and_order_change_nothing(models: Models, written: Path, tmp_path: Path) -> None:
    with Engine.open(models.target, n_ctx=1024, n_threads=1, strategy="off") as alone:
        converse(alone, tmp_path / "c.jsonl", N, SETTINGS)
    assert entries(tmp_path / "c.jsonl") == entries(written)


def test_more_conversations_can_be_added_later(engine: Engine, written: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.jsonl"
    out.write_bytes(written.read_bytes()[:-200])
    converse(engine, out, N, SETTINGS)
    assert entries(out) == entries(written)
    out.write_bytes(written.read_bytes())
    steps: list[tuple[int, int, int]] = []
    report = converse(engine, out, N + 3, SETTINGS, lambda *step: steps.append(step))
    # Before the first conversation is finished, the run reports tokens of unfinished conversations.
    assert max(n_tokens for n_done, _, n_tokens in steps if n_done == N) > 0
    assert report.n_before == sum("tokens" in entry for entry in entries(written).values())
    assert out.read_bytes().startswith(written.read_bytes())
    assert sorted(entries(out)) == list(range(N + 3))


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_files_are_private_under_any_umask(engine: Engine, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        converse(engine, tmp_path / "a" / "b" / "c.jsonl", 1, SETTINGS)
    finally:
        os.umask(before)
    made = [*(tmp_path / "a").rglob("*")]
    assert len(made) >= 2 and not [path for path in made if path.stat().st_mode & 0o022]


def test_only_the_assistants_tokens_are_learnt(engine: Engine, written: Path) -> None:
    read = data.load([written], engine, 1024)
    good = [entry for entry in entries(written).values() if "tokens" in entry]
    by_tokens = {tuple(entry["tokens"]): entry for entry in good}
    assert read.report.conversations + sum(read.report.dropped.values()) == len(good)
    for one in read.conversations:
        entry = by_tokens[tuple(one.tokens.tolist())]
        for number, (begin, end) in enumerate(entry["turns"], 1):
            assert (one.turns[begin:end] == number).all()
        assert np.count_nonzero(one.turns) == sum(end - begin for begin, end in entry["turns"])


def test_a_repeated_question_is_learnt_once(engine: Engine, tmp_path: Path) -> None:
    lines = [
        {"tokens": [5, 6, 7, 8, 9, 10], "turns": [[3, 6]]},
        {"tokens": [5, 6, 7, 9, 9, 11], "turns": [[3, 6]]},
        {"index": 3, "dropped": "the answer loops"},
    ]
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = data.load([path], engine, 64)
    assert [one.tokens.tolist() for one in read.conversations] == [lines[0]["tokens"]]
    assert read.report.dropped == {"questions that were already asked": 1}


@pytest.mark.parametrize("turns", ["[[3, 9]]", "[[4, 3]]", "[]", "[[1]]", "3", "[[0, 2], [1, 3]]"])
def test_impossible_turns_are_named(engine: Engine, tmp_path: Path, turns: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(f'{{"tokens": [5, 6, 7, 8], "turns": {turns}}}\n')
    with pytest.raises(DataError, match=r'c\.jsonl:1: "turns": expected \[begin, end\]'):
        data.load([path], engine, 64)


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
