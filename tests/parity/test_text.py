# SPDX-License-Identifier: MIT
"""Tests that drafts from the text itself change no token. The drafts are used alone or in one tree with a
drafter's drafts, with eaglecpp's and ggml's kernels, in every kind of reuse, in sampled and greedy answers,
next to other conversations, and on targets that only take chains. The texts repeat themselves, and some
proposals are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from helpers.models import Models
from helpers.tiny import ConvertedPair, prompt_ids
from helpers.tiny_arch import make_hybrid, make_recurrent

from .test_exact import SIZES, check_conversation

STRATEGIES = ["chain:1", "chain:12", "tree:k=3,depth=8,nodes=16", "auto"]
COPY = [*prompt_ids(60, seed=3), *prompt_ids(60, seed=4), *prompt_ids(60, seed=3)[:40]]


@pytest.fixture(scope="module")
def plain(q8: Path, kernels: str) -> Iterator[eaglecpp.Engine]:
    with eaglecpp.Engine.open(q8, kernels=kernels, n_sequences=2, **SIZES) as engine:
        yield engine


@pytest.fixture(scope="module", params=["text", "both"])
def drafted(
    request: pytest.FixtureRequest, it: ConvertedPair, q8: Path, kernels: str
) -> Iterator[eaglecpp.Engine]:
    """Opens an engine that drafts from the text, with or without a drafter."""
    draft = "text" if request.param == "text" else it.draft
    sizes = {**SIZES, "n_leaves_max": 12, "n_draft_max": 16, "kernels": kernels, "n_sequences": 3}
    with eaglecpp.Engine.open(
        q8, draft=draft, exact="on", text_drafts="on", planner_cache=False, **sizes
    ) as engine:
        yield engine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_kind_of_reuse_gives_the_bits_of_target_only_decoding(
    strategy: str, temperature: float, drafted: eaglecpp.Engine, plain: eaglecpp.Engine
) -> None:
    stats = check_conversation(drafted, plain, strategy, temperature)
    if drafted.draft_path is None:
        assert drafted.has_draft and drafted.draft_info is None
        assert stats.text_draft_n == stats.draft_n and stats.text_draft_n_accepted == stats.draft_n_accepted
        if strategy != "auto":
            assert 0 < stats.draft_n_accepted < stats.draft_n, "expected accepted and rejected proposals"
    elif strategy != "auto":
        assert stats.text_draft_n == 0, "a fixed strategy must not draft from the text"


def test_a_copying_answer_yields_many_tokens_per_round(q8: Path) -> None:
    """Tests that copying yields many tokens per round. Greedy decoding repeats itself, so the target copies
    an answer that is in the prompt.
    """
    options: dict[str, Any] = {"max_tokens": 64, "ignore_eos": True, "temperature": 0.0}
    with eaglecpp.Engine.open(q8, draft="text", n_leaves_max=1, **SIZES) as engine:
        first = engine.generate(COPY, **options)
        prompt = [*COPY, *first.tokens, *COPY]
        again = engine.generate(prompt, strategy="chain:16", **options)
    assert again.timings.acceptance_length > 2.0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("make", [make_recurrent, make_hybrid], ids=["recurrent", "hybrid"])
def test_states_take_drafts_from_the_text(
    make: Callable[[Path], Models], tmp_path: Path, temperature: float
) -> None:
    """Tests targets with recurrent states, which take chains. If a target also has attention, llama.cpp
    rewinds its states by snapshots. The states of a purely recurrent model cannot be rewound.
    """
    path = make(tmp_path).target
    options: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "temperature": temperature, "seed": 3}
    with eaglecpp.Engine.open(path, n_ctx=512, n_threads=1) as engine:
        assert not engine.has_draft
        plain = engine.generate(COPY, strategy="auto", **options)
        assert plain.timings.draft_n == 0, "without text_drafts, nothing may be drafted"
    with eaglecpp.Engine.open(path, draft="text", n_ctx=512, n_threads=1, exact="off") as engine:
        assert engine.chains_only
        if make == make_hybrid:
            assert engine.native.n_draft_max == 16, "each node takes a copy of the state"
        for strategy in ("tree:k=2,depth=4,nodes=8", "chain:4", "auto"):
            engine.clear()
            drafted = engine.generate(COPY, strategy=strategy, **options)
            assert drafted.tokens == plain.tokens
            assert strategy == "auto" or drafted.timings.draft_n > 0
        assert "chains only" in drafted.timings.plan["why"]


def test_tokens_that_a_grammar_forbids_are_not_drafted(it: ConvertedPair, q8: Path) -> None:
    """The grammar allows a single text, which neither drafter nor prompt would propose."""
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0, "strategy": "chain:3"}
    only = 'root ::= "' + "zq" * 30 + '"'
    for draft in (it.draft, "text"):
        with eaglecpp.Engine.open(q8, draft=draft, n_draft_max=16, **SIZES) as engine:
            free = engine.generate(COPY, ignore_eos=True, **options)
            bound = engine.generate(COPY, grammar=only, **options)
        assert free.timings.draft_n > free.timings.rounds // 2
        assert ("zq" * 30).startswith(bound.text) and bound.timings.rounds > 5
        if draft == "text":
            assert bound.timings.acceptance_rate > 0.8, "the remaining proposals must match the text"
        else:
            assert bound.timings.draft_n < bound.timings.rounds
