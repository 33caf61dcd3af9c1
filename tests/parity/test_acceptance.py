# SPDX-License-Identifier: MIT
"""Free-running chains of the engine against the PyTorch loop: the same rounds, the same acceptance per depth.

This sees what teacher-forced parity cannot: the vocabulary map, the commit after a round, the position of
every row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from helpers.reference.chain import ChainRun, generate
from helpers.reference.drafter import Drafter
from helpers.reference.target import Target
from helpers.tiny import prompt_ids

import eaglecpp

from .conftest import EXACT, ConvertedPair

DEPTH = 5
N_TOKENS = 150


@dataclass(frozen=True)
class Counts:
    """What one free-running chain did, in whole rounds."""

    tokens: list[int]
    rounds: int
    tried: list[int]
    accepted: list[int]


def counts_of(run: ChainRun) -> Counts:
    return Counts(run.tokens, run.rounds, run.tried, run.accepted)


def engine_run(it: ConvertedPair, prompt: list[int]) -> Counts:
    """Whole rounds until `N_TOKENS` tokens exist, as the reference counts them."""
    tokens: list[int] = []
    accepted_per_round: list[int] = []
    with eaglecpp.Engine.open(it.pair.target.gguf, draft=it.draft, n_ctx=512, n_threads=1, **EXACT) as engine:
        options = {"temperature": 0.0, "ignore_eos": True, "strategy": f"chain:{DEPTH}"}
        with engine.stream(prompt, max_tokens=N_TOKENS + 2 * DEPTH, **options) as stream:
            for chunk in stream:
                if not chunk.tokens:
                    continue
                if tokens:  # the first token is the prefill's
                    accepted_per_round.append(sum(chunk.accepted))
                tokens += chunk.tokens
                if len(tokens) >= N_TOKENS:
                    break
    return Counts(
        tokens,
        len(accepted_per_round),
        [sum(n >= depth for n in accepted_per_round) for depth in range(DEPTH)],
        [sum(n > depth for n in accepted_per_round) for depth in range(DEPTH)],
    )


@pytest.mark.parametrize(
    ("kind", "arch"), [("eagle3", "llama"), ("eagle31", "llama"), ("eagle31", "qwen2"), ("eagle3", "qwen3")]
)
def test_rounds_equal_the_reference(kind: str, arch: str, pairs: Callable[..., ConvertedPair]) -> None:
    it = pairs(kind, arch)
    target = Target(it.pair.target.directory, it.pair.layers)
    drafter = Drafter.load(it.pair.checkpoint, target.embedding, target.head)
    for seed in (1, 2):
        prompt = prompt_ids(40, seed)
        expected = generate(target, drafter, prompt, N_TOKENS, DEPTH)
        assert 0 < expected.accepted[1] < expected.tried[0], "the pair drafts nothing worth comparing"
        assert engine_run(it, prompt) == counts_of(expected)


def test_a_wrong_vocabulary_map_is_seen(pairs: Callable[..., ConvertedPair]) -> None:
    """Negative control: offsets taken for absolute ids give other rounds."""

    class AbsoluteMap(Drafter):
        def vocabulary_map(self) -> torch.Tensor:
            return self.w["d2t"]

    it = pairs("eagle3", "llama")
    target = Target(it.pair.target.directory, it.pair.layers)
    wrong = AbsoluteMap.load(it.pair.checkpoint, target.embedding, target.head)
    run = generate(target, wrong, prompt_ids(40), N_TOKENS, DEPTH)
    assert engine_run(it, prompt_ids(40)).accepted != run.accepted
