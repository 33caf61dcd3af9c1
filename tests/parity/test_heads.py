# SPDX-License-Identifier: MIT
"""A target's own head for further tokens (MTP) as its drafter: the same text, drafts that are accepted, and a
head that cannot draft refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from eaglecpp.errors import UnsupportedError
from helpers.tiny import prompt_ids
from helpers.tiny_arch import make_mixture, make_with_head

STRATEGIES = ["auto", "chain:1", "chain:3", "tree:k=2,depth=3,nodes=6"]
OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "planner_cache": False}


@pytest.fixture(scope="module", params=["glm4moe", "qwen35"])
def target(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return make_with_head(tmp_path_factory.mktemp("head"), request.param)


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
def test_the_same_text(target: Path, strategy: str, sampling: dict[str, Any]) -> None:
    with eaglecpp.Engine.open(target, **OPTIONS) as engine:
        plain = _texts(engine, **sampling)
    with eaglecpp.Engine.open(target, draft="mtp", strategy=strategy, **OPTIONS) as engine:
        assert _texts(engine, **sampling) == plain


# drafted and accepted by llama.cpp's own draft-mtp at depth 3 (benchmarks/heads.py)
THEIRS = {"glm4moe": (675, 168), "qwen35": (428, 251)}


def test_its_drafts_are_those_of_llama_cpp(target: Path) -> None:
    """As many of the first, and as many of the later ones, which read the head's own states."""
    n_drafted = n_accepted = 0
    with eaglecpp.Engine.open(target, draft="mtp", strategy="chain:3", **OPTIONS) as engine:
        assert engine.draft_info is not None and engine.draft_info["kind"] == "head"
        for i in range(4):
            engine.clear()
            made = engine.generate(
                prompt_ids(30 + i, seed=i), max_tokens=100, ignore_eos=True, temperature=0.0
            )
            n_drafted += made.timings.draft_n
            n_accepted += made.timings.draft_n_accepted
    drafted, accepted = THEIRS[target.stem.removeprefix("target-")]
    assert n_drafted == pytest.approx(drafted, rel=0.05)
    assert n_accepted == pytest.approx(accepted, rel=0.05)


def test_a_conversation_goes_on_and_back(target: Path) -> None:
    with (
        eaglecpp.Engine.open(target, **OPTIONS) as plain,
        eaglecpp.Engine.open(target, draft="mtp", strategy="chain:3", **OPTIONS) as engine,
    ):
        first = prompt_ids(40, seed=1)
        for cut in (40, 25, 1, 39):
            tokens = first[:cut] + prompt_ids(12, seed=cut)
            texts = [
                one.generate(tokens, max_tokens=30, ignore_eos=True, temperature=0.0)
                for one in (plain, engine)
            ]
            assert texts[0].tokens == texts[1].tokens, cut
            assert texts[1].timings.acceptance_length > 1.2, cut


def test_several_conversations(target: Path) -> None:
    prompts = [prompt_ids(20 + i, seed=i) for i in range(5)]
    options: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.0}
    with eaglecpp.Engine.open(target, **OPTIONS) as engine:
        plain = [engine.generate(prompt, **options).tokens for prompt in prompts]
    with eaglecpp.Engine.open(target, draft="mtp", strategy="chain:3", n_sequences=3, **OPTIONS) as engine:
        for _ in range(2):
            assert [one.tokens for one in engine.generate(prompts, **options)] == plain


def test_a_target_without_a_head(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedError, match=r"target-qwen3moe.gguf: .* no heads for further tokens \(MTP\)"
    ):
        eaglecpp.Engine.open(make_mixture(tmp_path).target, draft="mtp", **OPTIONS)


@pytest.mark.parametrize("tensor", ["nextn.eh_proj.weight", "ffn_gate_inp.weight"])
def test_an_incomplete_head_is_refused(tmp_path: Path, tensor: str) -> None:
    """llama.cpp takes such a file, and ends the process when the head runs."""
    path = make_with_head(tmp_path, without=tensor)
    with pytest.raises(eaglecpp.EagleError) as raised:
        eaglecpp.Engine.open(path, draft="mtp", **OPTIONS)
    assert path.name in str(raised.value)
