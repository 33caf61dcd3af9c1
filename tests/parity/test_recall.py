# SPDX-License-Identifier: MIT
"""What the target said of late changes which drafts are made and no token. Recall is on by default, so the
other tests of exactness hold for it as well; here it is compared with drafting without it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from helpers.http_server import DRAFT, TARGET
from helpers.tiny import prompt_ids

from .conftest import ConvertedPair
from .test_exact import SIZES, quantised

PROMPT = prompt_ids(60, seed=3)
OPTIONS: dict[str, Any] = {"max_tokens": 120, "ignore_eos": True, "seed": 1}


@pytest.fixture(scope="module")
def it(pairs: Callable[..., ConvertedPair]) -> ConvertedPair:
    return pairs("eagle31")


@pytest.fixture(scope="module")
def target(it: ConvertedPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantised(it, "Q8_0", tmp_path_factory.mktemp("recall"))


def engine(target: Path, it: ConvertedPair, *, recall: bool, **options: Any) -> eaglecpp.Engine:
    sizes = {**SIZES, "n_leaves_max": 12, "planner_cache": False}
    return eaglecpp.Engine.open(target, draft=it.draft, exact="on", recall=recall, **sizes, **options)


@pytest.mark.parametrize("strategy", ["chain:4", "tree:k=3,depth=4,nodes=12", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_no_token_changes(strategy: str, temperature: float, target: Path, it: ConvertedPair) -> None:
    options = {**OPTIONS, "strategy": strategy, "temperature": temperature}
    with engine(target, it, recall=False) as without, engine(target, it, recall=True) as with_it:
        expected, found = without.generate(PROMPT, **options), with_it.generate(PROMPT, **options)
    assert found.tokens == expected.tokens
    assert found.timings.draft_n_accepted > 0
    if strategy != "auto":
        assert found.timings.hits_per_depth != expected.timings.hits_per_depth, "nothing was recalled"


def test_more_drafts_are_right() -> None:
    """A trained pair on questions that its drafter knows nothing of."""
    questions = ["Wie geht es dir heute? Erzähle mir etwas.", "def add(a, b):\n", "Zyx qwerty Zyx qwerty Zyx"]
    rounds = []
    for recall in (False, True):
        with eaglecpp.Engine.open(TARGET, draft=DRAFT, recall=recall, planner_cache=False) as one:
            said = [one.generate(text, **OPTIONS, strategy="chain:4", temperature=0.0) for text in questions]
        rounds.append(sum(answer.timings.rounds for answer in said))
    assert rounds[1] < 0.98 * rounds[0]


def test_rejected_drafts_leave_notes_too(target: Path, it: ConvertedPair) -> None:
    """More notes than rows that were kept, at most one for each row behind which something was drafted."""
    with engine(target, it, recall=True) as one:
        options = {**OPTIONS, "max_tokens": 40, "strategy": "chain:4", "temperature": 0.7}
        stats = one.generate(PROMPT, **options).timings
        n_notes = one.native.planner_report(0)["recall_notes"]
    assert stats.rounds + stats.draft_n_accepted < n_notes <= 4 * stats.rounds


def test_what_is_recalled_depends_on_the_text_alone(target: Path, it: ConvertedPair) -> None:
    """Said again, after going back, in another conversation: the same rounds."""
    options = {**OPTIONS, "strategy": "chain:4", "temperature": 0.7}
    other = {**options, "seed": 2}
    with (
        engine(target, it, recall=True, n_sequences=2) as both,
        both.session() as one,
        both.session() as two,
    ):
        first = one.generate(PROMPT, **options)
        again = one.generate(PROMPT, **options)
        one.generate(PROMPT, **other)
        after = one.generate(PROMPT, **options)
        elsewhere = two.generate(PROMPT, **options)
    for said in (again, after, elsewhere):
        assert said.tokens == first.tokens
        assert said.timings.accepted_per_depth == first.timings.accepted_per_depth
