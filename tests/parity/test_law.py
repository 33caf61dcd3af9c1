# SPDX-License-Identifier: MIT
"""The law: same seed, same tokens, with or without drafting, whatever the sampler.

On a tiny F32 pair whose drafter is right about half the time, so that rounds accept none, some and all
drafts. Where a token differs anyway, the failure says how close the call was in the plain run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers.tiny import prompt_ids

import eaglecpp

from .conftest import ConvertedPair

STRATEGIES = ["chain:1", "chain:3", "chain:5", "tree:k=3,depth=4,nodes=12"]
N_TOKENS = 120
PRINTABLE = r"root ::= [ -~]*"

SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "hot": {"temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "penalties": {
        "temperature": 0.8,
        "repeat_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
        "repeat_last_n": 40,
    },
    "greedy-penalties": {"temperature": 0.0, "repeat_penalty": 1.1, "repeat_last_n": 32},
    "dry": {"temperature": 0.8, "dry_multiplier": 0.8, "dry_allowed_length": 2, "dry_penalty_last_n": -1},
    "mirostat-1": {"temperature": 0.8, "mirostat": 1, "mirostat_tau": 2.0},
    "mirostat-2": {"temperature": 0.8, "mirostat": 2, "mirostat_tau": 2.0},
    "grammar": {"temperature": 0.8, "grammar": PRINTABLE},
    "greedy-grammar": {"temperature": 0.0, "grammar": PRINTABLE},
    "xtc": {"temperature": 0.8, "xtc_probability": 0.5, "xtc_threshold": 0.1},
    "typical": {"temperature": 0.8, "typical_p": 0.7},
    "dynamic-temperature": {"temperature": 0.8, "dynatemp_range": 0.4},
    "logit-bias": {"temperature": 0.8, "logit_bias": {100: 4.0, 101: -4.0}},
}


@pytest.fixture(scope="module", params=["eagle3", "eagle31"])
def engine(request: pytest.FixtureRequest, pairs: Callable[..., ConvertedPair]) -> Iterator[eaglecpp.Engine]:
    it = pairs(request.param)
    with eaglecpp.Engine.open(
        it.pair.target.gguf, draft=it.draft, n_ctx=512, n_threads=1, n_leaves_max=12, strategy="off"
    ) as opened:
        yield opened


def closeness(engine: eaglecpp.Engine, prompt: list[int], tokens: list[int], at: int) -> float:
    """Logit margin between the two best tokens at the position where two runs parted, in a plain run."""
    plain = engine.generate([*prompt, *tokens[:at]], max_tokens=1, temperature=0.0, strategy="off", n_probs=2)
    best, second = plain.logprobs[0].top[:2]
    return best[1] - second[1]


def run(engine: eaglecpp.Engine, prompt: list[int], **options: Any) -> eaglecpp.Completion:
    # a conversation without a past: prefix reuse would compare other batch shapes
    with engine_session(engine) as session:
        return session.generate(prompt, max_tokens=N_TOKENS, ignore_eos=True, seed=1, **options)


def engine_session(engine: eaglecpp.Engine) -> Any:
    return engine.session()


@pytest.mark.parametrize("name", SAMPLERS)
def test_same_seed_same_tokens(name: str, engine: eaglecpp.Engine) -> None:
    prompt, sampler = prompt_ids(40, seed=3), SAMPLERS[name]
    plain = run(engine, prompt, strategy="off", **sampler)
    assert len(plain.tokens) == N_TOKENS
    accepted = 0.0
    for strategy in STRATEGIES:
        drafted = run(engine, prompt, strategy=strategy, **sampler)
        parted = next(
            (i for i, (a, b) in enumerate(zip(plain.tokens, drafted.tokens, strict=True)) if a != b), None
        )
        if parted is not None:
            margin = closeness(engine, prompt, plain.tokens, parted)
            pytest.fail(f"{strategy}: token {parted} differs; logit margin there {margin:.2e}")
        assert drafted.text == plain.text
        assert drafted.stats.rounds < plain.stats.rounds, "nothing was accepted: the test would mean nothing"
        accepted = drafted.stats.acceptance_rate
        assert 0.0 < accepted < 1.0
    assert accepted


def test_another_seed_gives_other_tokens(engine: eaglecpp.Engine) -> None:
    """Otherwise equal tokens would say nothing about the seed."""
    with engine_session(engine) as session:
        texts = {
            tuple(session.generate(prompt_ids(40), max_tokens=40, temperature=0.8, seed=seed).tokens)
            for seed in (1, 2, 3)
        }
    assert len(texts) == 3


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_the_law_holds_for_other_targets(arch: str, pairs: Callable[..., ConvertedPair]) -> None:
    it = pairs("eagle31", arch)
    with eaglecpp.Engine.open(
        it.pair.target.gguf, draft=it.draft, n_ctx=512, n_threads=1, n_leaves_max=12, strategy="off"
    ) as engine:
        for sampler in (SAMPLERS["greedy"], SAMPLERS["temperature"]):
            plain = run(engine, prompt_ids(40), strategy="off", **sampler)
            for strategy in STRATEGIES:
                drafted = run(engine, prompt_ids(40), strategy=strategy, **sampler)
                assert drafted.tokens == plain.tokens
                assert drafted.stats.draft_n_accepted > 0
