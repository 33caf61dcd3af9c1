# SPDX-License-Identifier: MIT
"""A small model of the target's family as its drafter: the same text, drafts that are accepted, one that does
not fit refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from eaglecpp.errors import MismatchError, UnsupportedError
from helpers.stores import rename_token
from helpers.tiny import make_target, prompt_ids

STRATEGIES = ["auto", "chain:1", "chain:4", "tree:k=2,depth=3,nodes=6", "tree:k=8,depth=4,nodes=24"]
OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "planner_cache": False}


@dataclass(frozen=True)
class Family:
    """A target, and the same in 8 bits, which is its small model here."""

    target: Path
    small: Path


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tmp_path_factory.mktemp("family")
    return Family(make_target(folder).gguf, make_target(folder, dtype="Q8_0").gguf)


def _texts(engine: eaglecpp.Engine, **options: Any) -> list[list[int]]:
    texts = []
    for seed in range(4):
        engine.clear()
        made = engine.generate(prompt_ids(20 + seed, seed=seed), max_tokens=60, ignore_eos=True, **options)
        texts.append(made.tokens)
    return texts


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "0.8"]
)
def test_the_same_text(family: Family, strategy: str, sampling: dict[str, Any]) -> None:
    with eaglecpp.Engine.open(family.target, **OPTIONS) as engine:
        plain = _texts(engine, **sampling)
    with eaglecpp.Engine.open(family.target, draft=family.small, strategy=strategy, **OPTIONS) as engine:
        assert _texts(engine, **sampling) == plain


def test_its_drafts_are_accepted(family: Family) -> None:
    """Eight bits change hardly any of the likeliest tokens, and with shared noise few of the sampled ones."""
    with eaglecpp.Engine.open(family.target, draft=family.small, strategy="chain:4", **OPTIONS) as engine:
        assert engine.draft_info is not None and engine.draft_info["kind"] == "model"
        for sampling in ({"temperature": 0.0}, {"temperature": 0.8, "seed": 3}):
            engine.clear()
            made = engine.generate(prompt_ids(30), max_tokens=100, ignore_eos=True, **sampling)
            assert made.timings.acceptance_length > 4.0, sampling
            assert made.timings.rounds < 30, sampling


def test_branches_see_their_own_ancestors(family: Family) -> None:
    """The second-likeliest tokens, too, are followed by what the small model says behind them: with drafts of
    its own text's kind a tree is accepted at least as far as a chain.
    """
    with eaglecpp.Engine.open(family.target, draft=family.small, n_draft_max=64, **OPTIONS) as engine:
        lengths = {}
        for strategy in ("chain:4", "tree:k=4,depth=4,nodes=30"):
            engine.clear()
            made = engine.generate(
                prompt_ids(30),
                max_tokens=120,
                ignore_eos=True,
                temperature=1.0,
                seed=5,
                rng="llama",
                strategy=strategy,
            )
            lengths[strategy] = made.timings.acceptance_length
    chain, tree = lengths.values()
    assert tree > chain + 0.1


def test_a_conversation_goes_on_and_back(family: Family) -> None:
    """Prompts that share a beginning with what was said before, as the first and as the second turn."""
    with (
        eaglecpp.Engine.open(family.target, **OPTIONS) as plain,
        eaglecpp.Engine.open(family.target, draft=family.small, strategy="chain:4", **OPTIONS) as engine,
    ):
        first = prompt_ids(40, seed=1)
        for cut in (40, 25, 1, 39):
            tokens = first[:cut] + prompt_ids(12, seed=cut)
            texts = [
                one.generate(tokens, max_tokens=30, ignore_eos=True, temperature=0.0)
                for one in (plain, engine)
            ]
            assert texts[0].tokens == texts[1].tokens, cut
            assert texts[1].timings.acceptance_length > 3.0, cut  # rows of another text would not be


def test_several_conversations_and_parking(family: Family) -> None:
    prompts = [prompt_ids(20 + i, seed=i) for i in range(5)]
    options: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.0}
    with eaglecpp.Engine.open(family.target, **OPTIONS) as engine:
        plain = [engine.generate(prompt, **options).tokens for prompt in prompts]
    with eaglecpp.Engine.open(
        family.target, draft=family.small, strategy="tree:k=2,depth=3,nodes=6", n_sequences=3, **OPTIONS
    ) as engine:
        for _ in range(2):
            assert [one.tokens for one in engine.generate(prompts, **options)] == plain


def test_a_full_context(family: Family) -> None:
    with (
        eaglecpp.Engine.open(family.target, **{**OPTIONS, "n_ctx": 64}) as plain,
        eaglecpp.Engine.open(
            family.target, draft=family.small, strategy="chain:8", **{**OPTIONS, "n_ctx": 64}
        ) as engine,
    ):
        texts = [one.generate(prompt_ids(20), ignore_eos=True, temperature=0.0) for one in (plain, engine)]
        assert texts[0].tokens == texts[1].tokens
        assert texts[1].finish_reason == "length"


def test_one_other_token_is_refused(family: Family, tmp_path: Path) -> None:
    other = rename_token(family.small, tmp_path / "other.gguf", 300)
    with pytest.raises(MismatchError) as raised:
        eaglecpp.Engine.open(family.target, draft=other, **OPTIONS)
    for part in (str(other), str(family.target), "1 tokens differ", "the first is 300", "vocabulary"):
        assert part in str(raised.value)


def test_the_target_itself_is_refused(family: Family) -> None:
    with pytest.raises(UnsupportedError, match=r"no heads for further tokens \(MTP\)"):
        eaglecpp.Engine.open(family.target, draft=family.target, **OPTIONS)


def test_another_method_is_refused_by_name(family: Family, tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "dflash")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match=r"'dflash' are not supported; .* --spec-type draft-dflash"):
        eaglecpp.Engine.open(family.target, draft=path, **OPTIONS)


def test_the_shared_check_says_the_same(family: Family, tmp_path: Path) -> None:
    """`create` and `pull` ask before anything is loaded."""
    from eaglecpp.store.facts import read_facts
    from eaglecpp.store.fit import check_fit

    target = read_facts([family.target])
    assert not check_fit(family.small, target).is_drafter
    other = rename_token(family.small, tmp_path / "other.gguf", 300)
    with pytest.raises(MismatchError, match="1 tokens differ, the first is 300"):
        check_fit(other, target)
