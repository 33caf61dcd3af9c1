# SPDX-License-Identifier: MIT
"""A target's own head for further tokens (MTP) as its drafter: the same text, drafts that are accepted, and a
head that cannot draft refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from eaglecpp.errors import InvalidValueError, MismatchError, UnsupportedError
from helpers.stores import rename_token
from helpers.tiny import prompt_ids
from helpers.tiny_arch import make_head_file, make_mixture, make_with_assistant, make_with_head

OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "planner_cache": False}


@dataclass(frozen=True)
class Heads:
    """theirs: drafted and accepted by llama.cpp's own draft-mtp at `depth` (benchmarks/heads.py)"""

    target: Path
    draft: str | Path
    depth: int = 3
    theirs: tuple[int, int] = (0, 0)

    @property
    def strategies(self) -> list[str]:
        """Several heads draft chains alone."""
        trees = [] if self.depth < 3 else ["tree:k=2,depth=3,nodes=6"]
        return ["auto", "chain:1", f"chain:{self.depth}", *trees]


@pytest.fixture(scope="module", params=["glm4moe", "qwen35", "hy_v3", "gemma4", "file"])
def heads(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Heads:
    folder = tmp_path_factory.mktemp("head")
    match request.param:
        case "glm4moe":
            return Heads(make_with_head(folder, "glm4moe"), "mtp", 3, (675, 168))
        case "qwen35":
            return Heads(make_with_head(folder, "qwen35"), "mtp", 3, (428, 251))
        case "hy_v3":
            return Heads(make_with_head(folder, "hy_v3"), "mtp", 2, (455, 165))
        case "gemma4":
            return Heads(*make_with_assistant(folder), 3, (574, 201))
    target = make_with_head(folder, "hy_v3")
    return Heads(target, make_head_file(folder, "hy_v3"), 2, (455, 165))


def _texts(engine: eaglecpp.Engine, **options: Any) -> list[list[int]]:
    texts = []
    for seed in range(4):
        engine.clear()
        made = engine.generate(prompt_ids(20 + seed, seed=seed), max_tokens=60, ignore_eos=True, **options)
        texts.append(made.tokens)
    return texts


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "0.8"]
)
def test_the_same_text(heads: Heads, sampling: dict[str, Any]) -> None:
    with eaglecpp.Engine.open(heads.target, **OPTIONS) as engine:
        plain = _texts(engine, **sampling)
    with eaglecpp.Engine.open(heads.target, draft=heads.draft, **OPTIONS) as engine:
        for strategy in heads.strategies:
            assert _texts(engine, strategy=strategy, **sampling) == plain, strategy


def test_its_drafts_are_those_of_llama_cpp(heads: Heads) -> None:
    """As many of the first, and as many of the later ones, which read the head's own states."""
    n_drafted = n_accepted = 0
    strategy = f"chain:{heads.depth}"
    with eaglecpp.Engine.open(heads.target, draft=heads.draft, strategy=strategy, **OPTIONS) as engine:
        assert engine.draft_info is not None and engine.draft_info["kind"] == "head"
        for i in range(4):
            engine.clear()
            made = engine.generate(
                prompt_ids(30 + i, seed=i), max_tokens=100, ignore_eos=True, temperature=0.0
            )
            n_drafted += made.timings.draft_n
            n_accepted += made.timings.draft_n_accepted
    assert n_drafted == pytest.approx(heads.theirs[0], rel=0.05)
    assert n_accepted == pytest.approx(heads.theirs[1], rel=0.05)


def test_a_conversation_goes_on_and_back(heads: Heads) -> None:
    strategy = f"chain:{heads.depth}"
    with (
        eaglecpp.Engine.open(heads.target, **OPTIONS) as plain,
        eaglecpp.Engine.open(heads.target, draft=heads.draft, strategy=strategy, **OPTIONS) as engine,
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


def test_several_conversations(heads: Heads) -> None:
    """More than there is room for, so some are parked in between."""
    prompts = [prompt_ids(20 + i, seed=i) for i in range(5)]
    options: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.0}
    with eaglecpp.Engine.open(heads.target, **OPTIONS) as engine:
        plain = [engine.generate(prompt, **options).tokens for prompt in prompts]
    strategy = f"chain:{heads.depth}"
    with eaglecpp.Engine.open(
        heads.target, draft=heads.draft, strategy=strategy, n_sequences=3, **OPTIONS
    ) as engine:
        for _ in range(2):
            assert [one.tokens for one in engine.generate(prompts, **options)] == plain


def test_full_contexts(heads: Heads) -> None:
    """An assistant's draft rows need free cells of the target's cache."""
    options: dict[str, Any] = {**OPTIONS, "n_ctx": 64, "n_sequences": 3}
    prompts = [prompt_ids(20 + i, seed=i) for i in range(3)]
    with (
        eaglecpp.Engine.open(heads.target, **options) as plain,
        eaglecpp.Engine.open(heads.target, draft=heads.draft, **options) as engine,
    ):
        expected = [one.tokens for one in plain.generate(prompts, ignore_eos=True, temperature=0.0)]
        for strategy in heads.strategies:
            if engine.chains_only and strategy.startswith("tree"):
                continue
            made = engine.generate(prompts, ignore_eos=True, temperature=0.0, strategy=strategy)
            assert [one.tokens for one in made] == expected, strategy
            assert {one.finish_reason for one in made} == {"length"}


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


@pytest.mark.parametrize("strategy", ["chain:3", "tree:k=2,depth=2,nodes=4"])
def test_two_heads_draft_chains_of_two(tmp_path: Path, strategy: str) -> None:
    target = make_with_head(tmp_path, "hy_v3")
    with (
        eaglecpp.Engine.open(target, draft="mtp", **OPTIONS) as engine,
        pytest.raises(InvalidValueError, match="chains of up to 2 tokens, one by a head"),
    ):
        engine.generate(prompt_ids(20), max_tokens=4, strategy=strategy)


def test_heads_of_another_model_are_refused(tmp_path: Path) -> None:
    target, assistant = make_with_assistant(tmp_path)
    other = make_head_file(tmp_path, "hy_v3")
    with pytest.raises(
        MismatchError, match=r"head-hy_v3.gguf cannot draft for .*target-gemma4.gguf: its heads"
    ):
        eaglecpp.Engine.open(target, draft=other, **OPTIONS)
    with pytest.raises(MismatchError, match=r"assistant-gemma4.gguf cannot draft for .*'hy_v3'"):
        eaglecpp.Engine.open(make_with_head(tmp_path, "hy_v3"), draft=assistant, **OPTIONS)


@pytest.mark.parametrize("sizes", [{"n_kv_heads": 1}, {"n_kv_heads": 4}, {"head_dim": 16}, {"head_dim": 64}])
def test_an_assistant_that_reads_other_keys_is_refused(tmp_path: Path, sizes: dict[str, int]) -> None:
    target, assistant = make_with_assistant(tmp_path, **sizes)
    with pytest.raises(
        MismatchError, match=r"its block 0 reads . keys of .. in a window, the target.s block 6"
    ):
        eaglecpp.Engine.open(target, draft=assistant, **OPTIONS)


def test_heads_with_another_token_are_refused(tmp_path: Path) -> None:
    other = rename_token(make_head_file(tmp_path, "hy_v3"), tmp_path / "other.gguf", 300)
    with pytest.raises(MismatchError, match="1 tokens differ, the first is 300"):
        eaglecpp.Engine.open(make_with_head(tmp_path, "hy_v3"), draft=other, **OPTIONS)


def test_a_head_of_a_model_that_sees_is_refused(tmp_path: Path) -> None:
    """llama.cpp's graph of it ends the process on a worker thread."""
    target = make_with_head(tmp_path, "glm4moe", sections=(4, 6, 6, 0))
    with pytest.raises(UnsupportedError, match="cannot rotate in several sections"):
        eaglecpp.Engine.open(target, draft="mtp", **{**OPTIONS, "n_threads": 2})
