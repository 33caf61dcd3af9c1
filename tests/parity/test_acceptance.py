# SPDX-License-Identifier: MIT
"""Compares free-running chains of the engine with the PyTorch loop. The tokens must be equal, and the number
of accepted drafts in each round.

This comparison detects faults that teacher-forced parity cannot: the vocabulary map, the commit after a
round, the position of every row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import eaglecpp
from helpers.reference.chain import generate
from helpers.reference.drafter import Drafter
from helpers.reference.target import Target
from helpers.tiny import ConvertedPair, prompt_ids

from .conftest import EXACT

DEPTH = 5
N_TOKENS = 150
Rounds = tuple[list[int], list[int]]
"""Tokens of a free-running chain, and the number of accepted drafts of each round."""


def count(session: eaglecpp.Session, prompt: list[int]) -> Rounds:
    """Runs whole rounds until `N_TOKENS` tokens exist, and then closes the stream. Returns the tokens, and
    the number of accepted drafts in each round.
    """
    tokens: list[int] = []
    accepted: list[int] = []
    options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "strategy": f"chain:{DEPTH}"}
    with session.stream(prompt, max_tokens=N_TOKENS + 2 * DEPTH, **options) as stream:
        for chunk in stream:
            if not chunk.tokens:
                continue
            if tokens:  # the first token comes from the prefill, not from a round
                accepted.append(sum(chunk.accepted))
            tokens += chunk.tokens
            if len(tokens) >= N_TOKENS:
                break
    return tokens, accepted


def open_engine(it: ConvertedPair, **options: Any) -> eaglecpp.Engine:
    return eaglecpp.Engine.open(
        it.pair.target.gguf, draft=it.draft, n_ctx=1024, n_threads=1, **EXACT, **options
    )


def engine_run(it: ConvertedPair, prompt: list[int], **options: Any) -> Rounds:
    with open_engine(it, **options) as engine, engine.session() as session:
        return count(session, prompt)


def reference_run(it: ConvertedPair, prompt: list[int]) -> Rounds:
    target = Target(it.pair.target.directory, it.pair.layers)
    drafter = Drafter.load(it.pair.checkpoint, target.embedding, target.head)
    tokens, accepted = generate(target, drafter, prompt, N_TOKENS, DEPTH)
    assert 0 < sum(n > 1 for n in accepted) < len(accepted), "the pair drafts too little to compare"
    return tokens, accepted


@pytest.mark.parametrize(
    ("kind", "arch"), [("eagle3", "llama"), ("eagle31", "llama"), ("eagle31", "qwen2"), ("eagle3", "qwen3")]
)
def test_rounds_equal_the_reference(kind: str, arch: str, pairs: Callable[..., ConvertedPair]) -> None:
    it = pairs(kind, arch)
    for seed in (1, 2):
        prompt = prompt_ids(40, seed)
        assert engine_run(it, prompt) == reference_run(it, prompt)


def test_a_prefill_in_small_slices_changes_nothing(it: ConvertedPair) -> None:
    """Tests that small prompt slices change nothing. The drafter's row at the end of a slice needs the first
    token of the next slice.
    """
    prompt = prompt_ids(75)
    assert engine_run(it, prompt, n_batch=16, n_ubatch=16) == reference_run(it, prompt)


def test_a_second_turn_continues_from_true_features(it: ConvertedPair) -> None:
    """Tests that target and drafter reuse correct rows after an abandoned stream. The rows must equal the
    rows of a fresh prefill.
    """
    prompt = prompt_ids(40)
    with open_engine(it) as engine, engine.session() as session:
        tokens, _ = count(session, prompt)
        longer = [*prompt, *tokens[:100], *prompt_ids(12, seed=5)]
        assert count(session, longer) == reference_run(it, longer)
        reused = session.generate(longer, max_tokens=1, temperature=0.0).timings.reused_n
    assert reused >= len(longer) - 2
