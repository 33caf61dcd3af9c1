# SPDX-License-Identifier: MIT
"""Compares free-running chains of the engine with the PyTorch loop: the same rounds, and the same acceptance
per depth.

This comparison detects faults that teacher-forced parity cannot: the vocabulary map, the commit after a
round, the position of every row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import eaglecpp
from helpers.reference.chain import ChainRun, generate
from helpers.reference.drafter import Drafter
from helpers.reference.target import Target
from helpers.tiny import ConvertedPair, prompt_ids

from .conftest import EXACT

DEPTH = 5
N_TOKENS = 150


@dataclass(frozen=True)
class Counts:
    """Counts of one free-running chain, in whole rounds."""

    tokens: list[int]
    rounds: int
    tried: list[int]
    accepted: list[int]


def count(session: eaglecpp.Session, prompt: list[int]) -> Counts:
    """Runs whole rounds until `N_TOKENS` tokens exist, counts them like the reference, and then leaves the
    stream.
    """
    tokens: list[int] = []
    accepted: list[int] = []
    options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "strategy": f"chain:{DEPTH}"}
    with session.stream(prompt, max_tokens=N_TOKENS + 2 * DEPTH, **options) as stream:
        for chunk in stream:
            if not chunk.tokens:
                continue
            if tokens:  # the first token comes from the prefill
                accepted.append(sum(chunk.accepted))
            tokens += chunk.tokens
            if len(tokens) >= N_TOKENS:
                break
    return Counts(
        tokens,
        len(accepted),
        [sum(n >= depth for n in accepted) for depth in range(DEPTH)],
        [sum(n > depth for n in accepted) for depth in range(DEPTH)],
    )


def open_engine(it: ConvertedPair, **options: Any) -> eaglecpp.Engine:
    return eaglecpp.Engine.open(
        it.pair.target.gguf, draft=it.draft, n_ctx=1024, n_threads=1, **EXACT, **options
    )


def engine_run(it: ConvertedPair, prompt: list[int], **options: Any) -> Counts:
    with open_engine(it, **options) as engine, engine.session() as session:
        return count(session, prompt)


def reference_run(it: ConvertedPair, prompt: list[int]) -> Counts:
    target = Target(it.pair.target.directory, it.pair.layers)
    drafter = Drafter.load(it.pair.checkpoint, target.embedding, target.head)
    run: ChainRun = generate(target, drafter, prompt, N_TOKENS, DEPTH)
    assert 0 < run.accepted[1] < run.tried[0], "the pair drafts too little to compare"
    return Counts(run.tokens, run.rounds, run.tried, run.accepted)


@pytest.mark.parametrize(
    ("kind", "arch"),
    [
        ("eagle1", "llama"),
        ("eagle1", "qwen2"),
        ("eagle3", "llama"),
        ("eagle31", "llama"),
        ("eagle31", "qwen2"),
        ("eagle3", "qwen3"),
        ("deepspec", "qwen3"),
    ],
)
def test_rounds_equal_the_reference(kind: str, arch: str, pairs: Callable[..., ConvertedPair]) -> None:
    it = pairs(kind, arch)
    for seed in (1, 2):
        prompt = prompt_ids(40, seed)
        assert engine_run(it, prompt) == reference_run(it, prompt)


@pytest.mark.parametrize("kind", ["eagle1", "eagle31"])
def test_a_prefill_in_small_slices_changes_nothing(kind: str, pairs: Callable[..., ConvertedPair]) -> None:
    """The drafter's row at the end of a slice needs the first token of the next slice."""
    it, prompt = pairs(kind, "llama"), prompt_ids(75)
    assert engine_run(it, prompt, n_batch=16, n_ubatch=16) == reference_run(it, prompt)


@pytest.mark.parametrize("kind", ["eagle1", "eagle31"])
def test_a_second_turn_continues_from_true_features(kind: str, pairs: Callable[..., ConvertedPair]) -> None:
    """After an abandoned stream, target and drafter reuse rows that equal those of a fresh prefill."""
    it, prompt = pairs(kind, "llama"), prompt_ids(40)
    with open_engine(it) as engine, engine.session() as session:
        first = count(session, prompt)
        longer = [*prompt, *first.tokens[:100], *prompt_ids(12, seed=5)]
        assert count(session, longer) == reference_run(it, longer)
        reused = session.generate(longer, max_tokens=1, temperature=0.0).timings.reused_n
    assert reused >= len(longer) - 2


def test_a_wrong_vocabulary_map_is_detected(pairs: Callable[..., ConvertedPair]) -> None:
    """Negative control: a map with one wrong entry changes the rounds."""
    it, prompt = pairs("eagle3", "llama"), prompt_ids(40)
    target = Target(it.pair.target.directory, it.pair.layers)
    drafter = Drafter.load(it.pair.checkpoint, target.embedding, target.head)
    drafter.target_ids = drafter.target_ids.roll(1)
    wrong = generate(target, drafter, prompt, N_TOKENS, DEPTH)
    assert engine_run(it, prompt).accepted != wrong.accepted
