# SPDX-License-Identifier: MIT
"""Tests that the same seed gives the same tokens with and without drafting, for every sampler.

The tests use a tiny F32 pair whose drafter is right about half the time, so rounds accept no drafts, some
drafts, or all drafts. With F32 caches and explicit attention, the logits of a batch of several rows differ
from those of single rows by about 1e-6, and all tokens must be equal. With the default caches, quantised
targets must give the same bits. Answers under random schemas and grammars are compared at the default
settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from helpers import form_law
from helpers.http_server import DRAFT, TARGET
from helpers.tiny import ConvertedPair, prompt_ids

from .conftest import EXACT

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
    "llama-rng": {"temperature": 0.8, "rng": "llama"},
    "llama-rng-xtc": {"temperature": 0.8, "rng": "llama", "xtc_probability": 0.5, "xtc_threshold": 0.1},
}


def open_engine(it: ConvertedPair, **options: Any) -> eaglecpp.Engine:
    sizes: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_leaves_max": 12}
    return eaglecpp.Engine.open(it.pair.target.gguf, draft=it.draft, strategy="off", **sizes, **options)


@pytest.fixture(scope="module", params=["eagle3", "eagle31"])
def engine(request: pytest.FixtureRequest, pairs: Callable[..., ConvertedPair]) -> Iterator[eaglecpp.Engine]:
    with open_engine(pairs(request.param), **EXACT) as opened:
        yield opened


def run(engine: eaglecpp.Engine, prompt: list[int], **options: Any) -> eaglecpp.Completion:
    # Each answer has a new conversation. Reusing a prefix would compare different batch sizes.
    with engine.session() as session:
        return session.generate(prompt, max_tokens=N_TOKENS, ignore_eos=True, seed=1, **options)


@pytest.mark.parametrize("name", SAMPLERS)
def test_same_seed_same_tokens(name: str, engine: eaglecpp.Engine) -> None:
    prompt, sampler = prompt_ids(40, seed=3), SAMPLERS[name]
    plain = run(engine, prompt, strategy="off", **sampler)
    assert len(plain.tokens) == N_TOKENS
    for strategy in STRATEGIES:
        drafted = run(engine, prompt, strategy=strategy, **sampler)
        assert drafted.tokens == plain.tokens, strategy
        assert drafted.text == plain.text
        assert drafted.timings.rounds < plain.timings.rounds, "the test needs accepted drafts"
        assert 0.0 < drafted.timings.acceptance_rate < 1.0


@pytest.fixture(scope="module")
def several(pairs: Callable[..., ConvertedPair]) -> Iterator[eaglecpp.Engine]:
    with open_engine(pairs("eagle31"), n_sequences=3, **EXACT) as opened:
        yield opened


@pytest.mark.parametrize("strategy", ["off", "auto", "chain:3", STRATEGIES[-1]])
@pytest.mark.parametrize("name", ["temperature", "hot", "xtc", "grammar"])
def test_a_text_depends_on_seed_and_position(strategy: str, name: str, several: eaglecpp.Engine) -> None:
    """Tests that a text depends only on seed and position. The noise of a token depends on the token's index
    in the text, not on earlier computations or other conversations.
    """
    prompt, options = prompt_ids(40, seed=3), SAMPLERS[name] | {"ignore_eos": True, "seed": 1}
    text = run(several, prompt, strategy="off", **SAMPLERS[name]).tokens[:60]

    def same(session: eaglecpp.Session, start: list[int] = prompt) -> bool:
        done = len(start) - len(prompt)
        tokens = session.generate(start, max_tokens=60 - done, strategy=strategy, **options).tokens
        return tokens == text[done:]

    with several.session() as session:
        assert same(session) and same(session), "a reused prefix must not change the text"
        with session.stream(prompt, max_tokens=60, strategy=strategy, **options) as stream:
            for chunk in stream:
                if len(chunk.tokens) > 0:
                    break
        assert same(session), "an abandoned stream must not change the text"
        session.generate(prompt_ids(30, seed=9), max_tokens=9, temperature=0.7, seed=4)
        assert same(session), "another text before must not change the text"
        if name != "grammar":  # a grammar begins again with each answer, so a continued answer would differ
            assert same(session, [*prompt, *text[:25]]), "continuing from the middle must give the same text"
    with several.session() as one, several.session() as two:
        ours = one.stream(prompt, max_tokens=60, strategy=strategy, **options)
        theirs = two.stream(prompt_ids(50, seed=8), max_tokens=60, temperature=1.0, seed=2)
        found: list[int] = []
        for chunk, _ in zip(ours, theirs, strict=False):
            found += chunk.tokens
        assert found == text[: len(found)] and len(found) > 20, "another conversation must not change it"


def test_llama_cpps_generator_keeps_its_order_of_draws(several: eaglecpp.Engine) -> None:
    """Tests llama.cpp's random number generator, whose guarantee is weaker: it draws once per emitted token
    of a generation, so a continued text differs.
    """
    prompt, hot = prompt_ids(40, seed=3), SAMPLERS["hot"] | {"rng": "llama"}
    plain = run(several, prompt, strategy="off", **hot).tokens
    assert run(several, prompt, strategy="chain:3", **hot).tokens == plain
    assert run(several, [*prompt, *plain[:20]], strategy="off", **hot).tokens[:40] != plain[20:60]


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_0"])
def test_quantised_targets_give_the_same_bits(
    dtype: str, pairs: Callable[..., ConvertedPair], quantised: Callable[..., Path]
) -> None:
    """Tests quantised targets at the default options on the CPU, that is, with fused attention over F16
    caches. The prompt is so long that llama.cpp uses different code for a single row, and trees leave cells
    out of order. Rounding activations to 8 bits turns a difference in the last bit into a difference of a
    hundredth of a logit.
    """
    it = pairs("eagle31")
    sizes: dict[str, Any] = {"n_ctx": 1024, "n_threads": 2, "n_leaves_max": 12}
    with eaglecpp.Engine.open(quantised(it, dtype), draft=it.draft, strategy="off", **sizes) as engine:
        for n_tokens, name in ((40, "hot"), (560, "temperature")):
            prompt, sampler = prompt_ids(n_tokens), SAMPLERS[name]
            plain = run(engine, prompt, strategy="off", n_probs=5, **sampler)
            for strategy in STRATEGIES:
                drafted = run(engine, prompt, strategy=strategy, n_probs=5, **sampler)
                assert drafted.timings.draft_n_accepted > 0
                assert drafted.tokens == plain.tokens, strategy
                assert drafted.logprobs == plain.logprobs, strategy


# Random forms


@pytest.mark.parametrize("has_drafter", [True, False])
def test_drafting_changes_no_answer(has_drafter: bool) -> None:
    strategies = form_law.STRATEGIES if has_drafter else ["auto", "chain:3"]
    with eaglecpp.Engine.open(TARGET, draft=DRAFT if has_drafter else None, n_ctx=512, n_threads=1) as engine:
        found = form_law.compare_answers(engine, 20, 7, strategies)
    assert not found.differ
    assert found.n_rounds < 0.95 * found.n_tokens and found.n_cancelled > 0
