# SPDX-License-Identifier: MIT
"""The pair of examples/demo_model, trained weights that every checkout has: what the engine promises."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import eaglecpp

FOLDER = Path(__file__).parents[2] / "examples" / "demo_model" / "pair"
TARGET, DRAFT = FOLDER / "demo-target.gguf", FOLDER / "demo-draft.gguf"
KNOWN = {
    "What does os.path.join do?": "Join two or more pathname components",
    "What is len?": "Return the number of items in a container.",
    "Explain math.sqrt.": "Return the square root of x.",
}
QUESTIONS = (
    *KNOWN,
    "What is in the module json?",
    "Which module is Counter in?",
    "What is collections.deque?",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[eaglecpp.Engine]:
    with eaglecpp.Engine.open(TARGET, DRAFT, n_ctx=1024) as opened:
        yield opened


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_the_files_are_what_their_provenance_says() -> None:
    provenance = json.loads((FOLDER / "MODEL.json").read_text(encoding="utf-8"))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob("*.gguf")}
    assert found == provenance["sha256"]
    assert provenance["command"] and provenance["data"] and provenance["target"]["steps"] > 0
    assert sum(path.stat().st_size for path in FOLDER.glob("*.gguf")) <= 24 * 2**20
    assert "Python Software Foundation" in (FOLDER / "NOTICE").read_text(encoding="utf-8")


@pytest.mark.parametrize(("question", "expected"), KNOWN.items())
def test_it_knows_well_known_functions(engine: eaglecpp.Engine, question: str, expected: str) -> None:
    assert expected in engine.chat(chat(question), max_tokens=100, temperature=0.0).text


def test_it_says_when_it_does_not_know(engine: eaglecpp.Engine) -> None:
    answer = engine.chat(chat("What is the capital of France?"), max_tokens=60, temperature=0.0).text
    assert answer.startswith("I do not know")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("strategy", ["chain:4", "tree:k=3,depth=4,nodes=8", "auto"])
def test_drafting_changes_no_token(engine: eaglecpp.Engine, strategy: str, temperature: float) -> None:
    for question in QUESTIONS:
        plain, drafted = (
            engine.chat(chat(question), max_tokens=60, temperature=temperature, seed=1, strategy=kind)
            for kind in ("off", strategy)
        )
        assert drafted.tokens == plain.tokens


def test_most_drafts_are_accepted(engine: eaglecpp.Engine) -> None:
    total = eaglecpp.Timings()
    for question in QUESTIONS:
        made = engine.chat(chat(question), max_tokens=60, temperature=0.0, strategy="chain:4")
        total += made.timings
    assert total.acceptance_length > 2.4
    assert total.accepted_per_depth[3] > 0.5, "drafts fed with drafts are as good as the first"


def test_a_second_turn_reads_only_its_own_tokens(engine: eaglecpp.Engine) -> None:
    engine.clear()
    first = engine.chat(chat("What is len?"), max_tokens=60, temperature=0.0, strategy="chain:4")
    answer = {"role": "assistant", "content": first.text}
    turns = [*chat("What is len?"), answer, *chat("What does str.upper do?")]
    second = engine.chat(turns, max_tokens=60, temperature=0.0, strategy="chain:4")
    assert second.timings.reused_n >= len(first.prompt_tokens) + len(first.tokens) - 1
    engine.clear()
    fresh = engine.chat(turns, max_tokens=60, temperature=0.0, strategy="chain:4")
    assert (fresh.timings.reused_n, fresh.tokens) == (0, second.tokens)
    assert fresh.timings.draft_n_accepted == second.timings.draft_n_accepted, "the same rows of the drafter"
