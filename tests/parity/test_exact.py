# SPDX-License-Identifier: MIT
"""Tests that texts are the same with and without a drafter, in every case in which the engine reuses rows. If
this is impossible, the engine must report it.

The reference is an engine that was opened without a drafter. Prompts are long enough for the kernels that
work in tiles. Conversations share beginnings. They are edited, answered again, and continued.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from eaglecpp.engine import exactness, loading
from helpers.clock import n_times
from helpers.tiny import ConvertedPair, prompt_ids

SIZES: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "n_batch": 512, "n_ubatch": 128}
STRATEGIES = ["chain:1", "chain:4", "tree:k=3,depth=4,nodes=12", "auto"]
N_TOKENS = 40
Quantised = Callable[..., Path]


@pytest.fixture(scope="module")
def drafted(it: ConvertedPair, q8: Path, kernels: str) -> Iterator[eaglecpp.Engine]:
    sizes = {**SIZES, "n_leaves_max": 12, "kernels": kernels}
    with eaglecpp.Engine.open(q8, draft=it.draft, exact="on", **sizes) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(q8: Path, kernels: str) -> Iterator[eaglecpp.Engine]:
    with eaglecpp.Engine.open(q8, kernels=kernels, **SIZES) as engine:
        yield engine


def conversation(engine: eaglecpp.Engine, **options: Any) -> Iterator[tuple[str, eaglecpp.Completion]]:
    """Yields the steps of one conversation with all its continuations. Prompts are built from the answers."""
    system, more = prompt_ids(200, seed=3), prompt_ids(150, seed=4)
    seeds = itertools.count(1)

    def say(prompt: list[int], **over: Any) -> eaglecpp.Completion:
        settings = {"max_tokens": N_TOKENS, "ignore_eos": True, "n_probs": 3} | options | over
        return engine.generate(prompt, seed=next(seeds), **settings)

    engine.clear()
    first = say([*system, *prompt_ids(70, seed=5)])
    yield "fresh", first
    yield "regenerated", say(first.prompt_tokens)
    yield "shared beginning", (other := say([*system, *prompt_ids(90, seed=6)]))
    yield "gone on with", say([*other.prompt_tokens, *other.tokens, *more])
    yield "edited in the answer", say([*other.prompt_tokens, *other.tokens[:20], *more[:80]])
    yield "one token further", say([*other.prompt_tokens, *other.tokens[:21]])
    yield "edited far back", say([*system[:150], *more])
    yield "short", say([*system[:150], *more, *prompt_ids(3, seed=9)])
    cut = say([*system, *more], stop_when=lambda tokens: len(tokens) == 14)
    yield "stopped from outside", cut
    yield "gone on after that", say([*cut.prompt_tokens, *cut.tokens, *more[:70]])


def check_conversation(
    drafted: eaglecpp.Engine, plain: eaglecpp.Engine, strategy: str, temperature: float
) -> eaglecpp.Timings:
    """Compares the answers of both engines in each continuation. Returns the sum of the timings of the engine
    with a drafter.
    """
    pairs = zip(
        conversation(drafted, strategy=strategy, temperature=temperature),
        conversation(plain, temperature=temperature),
        strict=True,
    )
    done = eaglecpp.Timings()
    for (name, ours), (_, theirs) in pairs:
        assert ours.tokens == theirs.tokens, name
        assert ours.logprobs == theirs.logprobs, name
        assert ours.timings.reused_n == theirs.timings.reused_n, name
        assert ours.timings.exact, name
        done = done + ours.timings
    return done


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("strategy", ["off", *STRATEGIES])
def test_every_kind_of_reuse_gives_the_bits_of_target_only_decoding(
    strategy: str, temperature: float, drafted: eaglecpp.Engine, plain: eaglecpp.Engine
) -> None:
    done = check_conversation(drafted, plain, strategy, temperature)
    assert strategy in ("off", "auto") or done.draft_n_accepted > 0


@pytest.mark.parametrize("dtype", ["F16", "F32", "BF16", "Q5_0"])
@pytest.mark.parametrize("attention", ["auto", "off"])
def test_exact_means_exact_for_every_type(
    attention: str, dtype: str, kernels: str, it: ConvertedPair, quantised: Quantised
) -> None:
    """Tests, for each kernel table of this machine, that batch sizes reported as exact are exact. With exact
    = "on" the engine may only use these sizes.
    """
    path = quantised(it, dtype)
    options: dict[str, Any] = {"max_tokens": N_TOKENS, "ignore_eos": True, "seed": 1, "n_probs": 3}
    for exact in ("on", "off", "auto"):
        sizes = {**SIZES, "kernels": kernels, "flash_attn": attention}
        with (
            eaglecpp.Engine.open(path, draft=it.draft, exact=exact, n_leaves_max=12, **sizes) as engine,
            eaglecpp.Engine.open(path, **sizes) as reference,
        ):
            for strategy in ("chain:4", "tree:k=3,depth=4,nodes=12", "auto"):
                for temperature in (0.0, 1.0):
                    options["temperature"] = temperature
                    engine.clear()
                    reference.clear()
                    ours = engine.generate(prompt_ids(90), strategy=strategy, **options)
                    theirs = reference.generate(prompt_ids(90), **options)
                    assert theirs.timings.exact
                    assert ours.timings.exact or exact != "on"
                    if ours.timings.exact:
                        assert ours.tokens == theirs.tokens, (exact, strategy, temperature)
                        assert ours.logprobs == theirs.logprobs, (exact, strategy, temperature)


@pytest.mark.parametrize("has_pauses", [True, False])
def test_a_partly_measured_engine_gives_the_same_text(
    it: ConvertedPair,
    q8: Path,
    plain: eaglecpp.Engine,
    kernels: str,
    has_pauses: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tests that a slow model, which is measured step by step after answers and in pauses, drafts only in
    batches that are known to be exact. Measuring keeps the cached prompt, and finds the sizes of an
    uninterrupted measurement.
    """
    monkeypatch.setattr(loading, "_MEASURE_S", 0.0)
    options: dict[str, Any] = {"max_tokens": N_TOKENS, "ignore_eos": True, "temperature": 0.0}
    prompt, n_drafted = prompt_ids(60), []
    with eaglecpp.Engine.open(q8, draft=it.draft, kernels=kernels, **SIZES) as engine:
        while not engine.exactness.is_complete:
            assert len(n_drafted) < 1000
            for strategy in STRATEGIES:
                ours = engine.generate(prompt, strategy=strategy, **options)
                assert ours.tokens == plain.generate(prompt, **options).tokens and ours.timings.exact
                n_drafted.append(ours.timings.draft_n)
            if has_pauses:
                n_before = engine.exactness.decodes
                assert n_before <= engine.measure_exactness(n_times(7)).decodes <= n_before + 7
            reused = engine.generate([*prompt, *ours.tokens, 5], **options).timings.reused_n
            assert reused == len(prompt) + N_TOKENS - 1
        assert n_drafted[0] == 0 and all(n_drafted[-3:-1]), "`auto` follows the clock"
        found = engine.native.exact_state
        engine.native.set_exact_rows([], is_complete=False)
        exactness.measure(engine.native)
        for name in ("points", "alone"):
            assert engine.native.exact_state[name] == found[name]


def test_an_inexact_row_is_remembered_until_it_is_removed(it: ConvertedPair) -> None:
    with eaglecpp.Engine.open(it.pair.target.gguf, draft=it.draft, exact="off", **SIZES) as engine:
        engine.native.set_exact_rows([])  # the engine then knows no exact batch size
        options: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True, "temperature": 0.0}
        prompt = prompt_ids(40)
        first = engine.generate(prompt, strategy="chain:4", **options)
        assert not first.timings.exact
        further = engine.generate([*prompt, *first.tokens], strategy="off", **options)
        assert not further.timings.exact, "inexact rows in the cache make an answer inexact"
        assert engine.generate(prompt, strategy="off", **options).timings.exact, "no inexact rows remain"


def test_a_strategy_is_cut_and_the_report_says_so(it: ConvertedPair, q8: Path) -> None:
    with eaglecpp.Engine.open(q8, draft=it.draft, exact="on", strategy="chain:7", **SIZES) as engine:
        engine.native.set_exact_rows([(2, True), (3, True), (4, True), (5, False), (17, False)])
        options: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, "temperature": 0.0}
        done = engine.generate(prompt_ids(40), **options)
        assert done.timings.exact and "nodes cut to 3, because" in done.timings.plan["why"]
        assert 0 < done.timings.draft_n <= 3 * done.timings.rounds
        engine.native.set_exact_rows([(2, False), (17, False)])
        done = engine.generate(prompt_ids(40), **options)
        assert done.timings.exact and done.timings.draft_n == 0
        assert "target-only, to be exact" in done.timings.plan["why"]


@pytest.mark.parametrize("strategy", ["tree:k=3,depth=4,nodes=12", "auto"])
def test_trees_stay_exact_in_a_full_context(strategy: str, kernels: str, it: ConvertedPair, q8: Path) -> None:
    """Tests that trees stay exact in a full context. Rejected nodes leave cells in the cache, also in
    cancelled answers. Over time the number of these cells exceeds the size of the cache.
    """
    sizes: dict[str, Any] = {**SIZES, "n_ctx": 320, "kernels": kernels}
    with (
        eaglecpp.Engine.open(q8, draft=it.draft, exact="on", n_leaves_max=12, **sizes) as engine,
        eaglecpp.Engine.open(q8, **sizes) as reference,
    ):
        for seed in range(4):
            options: dict[str, Any] = {"seed": seed, "temperature": 1.0, "ignore_eos": True, "n_probs": 3}
            prompt = [*prompt_ids(90), *prompt_ids(20, seed=seed)]
            ours = engine.generate(prompt, strategy=strategy, **options)
            theirs = reference.generate(prompt, **options)
            assert len(ours.tokens) == 320 - len(prompt)
            assert ours.tokens == theirs.tokens, seed
            assert ours.logprobs == theirs.logprobs, seed
            assert ours.timings.exact, seed


def test_a_drafter_does_not_change_where_a_prompt_is_split(it: ConvertedPair, q8: Path) -> None:
    """Tests that a drafter does not change how a prompt is split. A tree that has more nodes than a batch has
    rows must not enlarge the batches of prompts.
    """
    sizes = {**SIZES, "n_batch": 96, "n_ubatch": 32}
    with eaglecpp.Engine.open(q8, **sizes) as engine:
        plain = engine.generate(prompt_ids(300), max_tokens=20, temperature=0.0, n_probs=3)
    strategy = "tree:k=4,depth=6,nodes=120"
    with eaglecpp.Engine.open(q8, draft=it.draft, strategy=strategy, n_leaves_max=8, **sizes) as engine:
        ours = engine.generate(prompt_ids(300), max_tokens=20, temperature=0.0, n_probs=3, strategy="off")
    assert (ours.tokens, ours.logprobs) == (plain.tokens, plain.logprobs)


def test_rows_of_others_are_not_shared_where_bits_may_change(it: ConvertedPair, q8: Path) -> None:
    prompts = [[*prompt_ids(90), *prompt_ids(4, seed=seed)] for seed in (1, 2)]

    def n_reused(exact: str) -> int:
        with eaglecpp.Engine.open(q8, draft=it.draft, exact=exact, n_sequences=2, **SIZES) as engine:
            engine.native.set_exact_rows([])  # the engine then knows no exact batch size
            _, second = engine.generate_many(prompts, max_tokens=8, temperature=0.0)
            return second.timings.reused_n

    assert n_reused("off") >= 80
    assert n_reused("on") == 0
