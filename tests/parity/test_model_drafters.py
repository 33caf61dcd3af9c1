# SPDX-License-Identifier: MIT
"""Tests drafters that llama.cpp runs: a small model of the target's family, or heads for further tokens
(MTP). The text must not change, drafts must be accepted, and unsupported files must be refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eaglecpp
from eaglecpp.errors import MismatchError, UnsupportedError
from helpers.stores import rename_token
from helpers.tiny import Weights, make_target, prompt_ids, write_tensors
from helpers.tiny_arch import make_head_file, make_latent, make_with_assistant, make_with_head
from helpers.tiny_tokenizer import CONTROL, Tokenizer

CHAIN = "chain:3"
STRATEGIES = ("auto", "chain:1", CHAIN, "tree:k=2,depth=3,nodes=6", "tree:k=8,depth=4,nodes=24")
OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "planner_cache": False}
GREEDY: dict[str, Any] = {"ignore_eos": True, "temperature": 0.0}


@dataclass(frozen=True)
class Family:
    """A family of models. accepted: minimum number of tokens per round. theirs: numbers of tokens that
    llama.cpp's own draft-mtp drafts and accepts, with three draft tokens per round. For a file with several
    heads, draft-mtp runs all heads, but eaglecpp only runs the first head.
    """

    target: Path
    draft: str | Path
    accepted: float = 1.2
    theirs: tuple[int, int] | None = None


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """Returns a target, and the same model in 8 bits as the drafter."""
    folder = tmp_path_factory.mktemp("family")
    return Family(make_target(folder).gguf, make_target(folder, dtype="Q8_0").gguf, 3.0)


@pytest.fixture(scope="module", params=["small", "glm4moe", "qwen35", "hy_v3", "gemma4"])
def family(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, small: Family) -> Family:
    folder = tmp_path_factory.mktemp("head")
    match request.param:
        case "small":
            return small
        case "glm4moe":
            return Family(make_with_head(folder, "glm4moe"), "mtp", theirs=(675, 168))
        case "qwen35":
            return Family(make_with_head(folder, "qwen35"), "mtp", theirs=(428, 251))
        case "gemma4":
            return Family(*make_with_assistant(folder), theirs=(574, 201))
    # In this family, the heads are in a separate file.
    return Family(make_with_head(folder, "hy_v3"), make_head_file(folder, "hy_v3"))


def _texts(engine: eaglecpp.Engine, **options: Any) -> list[list[int]]:
    texts = []
    for seed in range(4):
        engine.clear()
        result = engine.generate(prompt_ids(20 + seed, seed=seed), max_tokens=60, ignore_eos=True, **options)
        texts.append(result.tokens)
    return texts


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "0.8"]
)
def test_the_same_text(family: Family, sampling: dict[str, Any]) -> None:
    with eaglecpp.Engine.open(family.target, **OPTIONS) as engine:
        plain = _texts(engine, **sampling)
    with eaglecpp.Engine.open(family.target, draft=family.draft, n_draft_max=24, **OPTIONS) as engine:
        for strategy in STRATEGIES:
            if engine.chains_only and strategy.startswith("tree"):
                continue
            assert _texts(engine, strategy=strategy, **sampling) == plain, strategy


def test_its_drafts_equal_llama_cpps(family: Family) -> None:
    """Tests that as many drafts are accepted as in llama.cpp: of the first drafts, and of the later drafts,
    which read the head's own states.
    """
    n_drafted = n_accepted = 0
    with eaglecpp.Engine.open(family.target, draft=family.draft, strategy=CHAIN, **OPTIONS) as engine:
        kind = "head" if family.accepted < 3.0 else "model"
        assert engine.draft_info is not None and engine.draft_info["kind"] == kind
        for i in range(4):
            engine.clear()
            result = engine.generate(prompt_ids(30 + i, seed=i), max_tokens=100, **GREEDY)
            n_drafted += result.timings.draft_n
            n_accepted += result.timings.draft_n_accepted
    if family.theirs is None:
        assert n_accepted > 0.2 * n_drafted
    else:
        assert (n_drafted, n_accepted) == pytest.approx(family.theirs, rel=0.02)


def test_words_of_the_text_are_drafted_whatever_their_place_in_the_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests heads of which only the likely rows are computed. The ids of all words are behind 33,000 unused
    tokens. The engine knows no words at first, because nothing is drafted while it opens.
    """
    n, unused = len(CONTROL), [f"unused {i}" for i in range(33_000)]

    def write(path: Path, spec: Any, known: Tokenizer, keys: dict[str, Any], weights: Weights) -> None:
        at = {len(known.tokens): [n] * len(unused)}
        wide = {name: np.insert(w, at.get(len(w), []), 0, axis=0) for name, w in weights.items()}
        more = replace(known, tokens=[*known.tokens[:n], *unused, *known.tokens[n:]])
        write_tensors(path, spec, more, keys, wide, dtype="Q8_0")

    monkeypatch.setattr("helpers.tiny_arch.write_tensors", write)
    monkeypatch.setattr("eaglecpp.engine.loading._MEASURE_S", 0.0)
    head = (make_with_head(tmp_path, "hy_v3"), make_head_file(tmp_path, "hy_v3"))
    for target, draft in (head, make_with_assistant(tmp_path)):
        with eaglecpp.Engine.open(target, draft=draft, strategy=CHAIN, exact="off", **OPTIONS) as engine:
            first, second = (engine.generate([33_200], max_tokens=60, **GREEDY).timings for _ in range(2))
            assert second.draft_n_accepted > 0.2 * second.draft_n > 0
            assert first.draft_n > second.draft_n or not engine.device_info["kernels"]


def test_a_conversation_continues_and_goes_back(family: Family) -> None:
    """Tests that a conversation continues and goes back. The prompts share a beginning with an earlier text,
    and are the first or the second turn.
    """
    with (
        eaglecpp.Engine.open(family.target, **OPTIONS) as plain,
        eaglecpp.Engine.open(family.target, draft=family.draft, strategy=CHAIN, **OPTIONS) as engine,
    ):
        first = prompt_ids(40, seed=1)
        for cut in (40, 25, 1, 39):
            tokens = first[:cut] + prompt_ids(12, seed=cut)
            texts = [one.generate(tokens, max_tokens=30, **GREEDY) for one in (plain, engine)]
            assert texts[0].tokens == texts[1].tokens, cut
            # If drafts were computed from rows of another text, they would not be accepted.
            assert texts[1].timings.acceptance_length > family.accepted, cut


@pytest.mark.parametrize("n_ctx", [512, 64], ids=["with room", "full"])
def test_several_conversations(family: Family, n_ctx: int) -> None:
    """Runs more conversations than the engine has room for, so that some are swapped out in between. An
    assistant's draft rows need free cells of the target's cache.
    """
    prompts = [prompt_ids(20 + i, seed=i) for i in range(5)]
    options: dict[str, Any] = {**GREEDY, **({"max_tokens": 40} if n_ctx == 512 else {})}
    opened: dict[str, Any] = {**OPTIONS, "n_ctx": n_ctx, "n_sequences": 3}
    with (
        eaglecpp.Engine.open(family.target, **opened) as plain,
        eaglecpp.Engine.open(family.target, draft=family.draft, **opened) as engine,
    ):
        expected = [one.tokens for one in plain.generate_many(prompts, **options)]
        for strategy in (CHAIN, "auto", STRATEGIES[3]):
            if engine.chains_only and strategy.startswith("tree"):
                continue
            results = engine.generate_many(prompts, strategy=strategy, **options)
            assert [one.tokens for one in results] == expected, strategy
            assert {one.finish_reason for one in results} == {"length"}


def test_drafts_of_a_small_model_are_accepted(small: Family) -> None:
    """Tests that drafts of a small model are accepted. Rounding to eight bits hardly changes the most likely
    tokens. With shared noise, it also changes few of the sampled tokens.
    """
    with eaglecpp.Engine.open(small.target, draft=small.draft, strategy="chain:4", **OPTIONS) as engine:
        for sampling in ({"temperature": 0.0}, {"temperature": 0.8, "seed": 3}):
            result = engine.generate(prompt_ids(30), max_tokens=100, ignore_eos=True, **sampling)
            assert result.timings.acceptance_length > 4.0, sampling


def test_sibling_drafts_are_accepted(small: Family) -> None:
    options: dict[str, Any] = {"ignore_eos": True, "temperature": 1.0, "seed": 5, "rng": "llama"}
    with eaglecpp.Engine.open(small.target, draft=small.draft, n_draft_max=64, **OPTIONS) as engine:
        lengths = []
        for strategy in ("chain:4", "tree:k=4,depth=4,nodes=30"):
            result = engine.generate(prompt_ids(30), max_tokens=120, strategy=strategy, **options)
            lengths.append(result.timings.acceptance_length)
    assert lengths[1] > lengths[0] + 0.1


def test_rows_after_a_sibling_equal_those_of_a_prompt(small: Family) -> None:
    """Rejected draft rows must not become committed rows. Later drafts must equal the drafts after reading
    the same text as a prompt.
    """
    options: dict[str, Any] = {**GREEDY, "strategy": "tree:k=4,depth=4,nodes=30"}
    with eaglecpp.Engine.open(small.target, draft=small.draft, n_draft_max=64, **OPTIONS) as engine:
        for seed in range(8):
            prompt = prompt_ids(30, seed=seed)
            engine.clear()
            result = engine.generate(prompt, max_tokens=200, **options)
            ends = [i for i, accepted in enumerate(result.accepted) if not accepted]
            end = ends[len(ends) // 2]
            engine.clear()
            anew = engine.generate([*prompt, *result.tokens[:end]], max_tokens=200 - end, **options)
            assert (anew.tokens, anew.accepted[1:]) == (result.tokens[end:], result.accepted[end + 1 :])


def test_a_vocabulary_with_one_other_token_is_refused(small: Family, tmp_path: Path) -> None:
    other = rename_token(small.draft, tmp_path / "other.gguf", 300)
    with pytest.raises(MismatchError) as raised:
        eaglecpp.Engine.open(small.target, draft=other, **OPTIONS)
    for part in (str(other), str(small.target), "tokens differ (1)", "the first is token 300", "vocabulary"):
        assert part in str(raised.value)


def test_a_target_without_heads_is_refused(small: Family, tmp_path: Path) -> None:
    mixture = make_latent(tmp_path).target
    for target, draft in ((small.target, small.target), (mixture, "mtp")):
        with pytest.raises(UnsupportedError, match=rf"{target.name}: .*no heads for multi-token prediction"):
            eaglecpp.Engine.open(target, draft=draft, **OPTIONS)


@pytest.mark.parametrize("tensor", ["nextn.eh_proj.weight", "ffn_gate_inp.weight"])
def test_an_incomplete_head_is_refused(tmp_path: Path, tensor: str) -> None:
    """Tests that eaglecpp refuses a file with an incomplete head. llama.cpp would accept the file, and end
    the process when the head runs.
    """
    path = make_with_head(tmp_path, without=tensor)
    with pytest.raises(eaglecpp.EagleError) as raised:
        eaglecpp.Engine.open(path, draft="mtp", **OPTIONS)
    assert path.name in str(raised.value)


def test_heads_of_another_model_are_refused(tmp_path: Path) -> None:
    target, assistant = make_with_assistant(tmp_path)
    other = make_head_file(tmp_path, "hy_v3")
    with pytest.raises(MismatchError, match=r"hy_v3.gguf cannot draft for .*target-gemma4.gguf: its heads"):
        eaglecpp.Engine.open(target, draft=other, **OPTIONS)
    with pytest.raises(MismatchError, match=r"assistant-gemma4.gguf cannot draft for .*'hy_v3'"):
        eaglecpp.Engine.open(make_with_head(tmp_path, "hy_v3"), draft=assistant, **OPTIONS)


@pytest.mark.parametrize("sizes", [{"n_kv_heads": 1}, {"n_kv_heads": 4}, {"head_dim": 16}, {"head_dim": 64}])
def test_an_assistant_for_other_keys_is_refused(tmp_path: Path, sizes: dict[str, int]) -> None:
    target, assistant = make_with_assistant(tmp_path, **sizes)
    with pytest.raises(MismatchError, match=r"block 0 of the assistant reads . keys of size.* block 6"):
        eaglecpp.Engine.open(target, draft=assistant, **OPTIONS)


def test_a_head_of_a_vision_model_is_refused(tmp_path: Path) -> None:
    """Tests that eaglecpp refuses the head of a vision model, because llama.cpp's graph for this head would
    end the process on a worker thread.
    """
    target = make_with_head(tmp_path, "glm4moe", sections=(4, 6, 6, 0))
    with pytest.raises(UnsupportedError, match="cannot run the MTP heads"):
        eaglecpp.Engine.open(target, draft="mtp", **{**OPTIONS, "n_threads": 2})
