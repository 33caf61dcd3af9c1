# SPDX-License-Identifier: MIT
"""Targets of the deepseek2 family: their features, and drafters of both kinds on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import eaglecpp
from eaglecpp.lowlevel import Target
from helpers.reference.latent_target import LatentTarget
from helpers.tiny import TargetSpec, prompt_ids, target_weights
from helpers.tiny_arch import LATENT_CONFIG, ArchPair, latent_weights, make_latent
from helpers.tiny_tokenizer import tiny_tokenizer

from .conftest import EXACT, exact_options

LAYERS = [1, 4, 7]
N_TOKENS = 90
TOLERANCE = 1e-4
STRATEGIES = ("chain:1", "chain:3", "chain:5", "tree:k=3,depth=4,nodes=12", "auto")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> ArchPair:
    return make_latent(tmp_path_factory.mktemp("latent"))


@pytest.fixture(scope="module")
def engine(pair: ArchPair) -> Iterator[eaglecpp.Engine]:
    with eaglecpp.Engine.open(pair.target, draft=pair.draft, n_ctx=512, n_threads=1, **EXACT) as opened:
        yield opened


def reference(layers: list[int]) -> LatentTarget:
    spec = TargetSpec(arch="deepseek2")
    weights = {
        name.removeprefix("model."): value
        for name, value in target_weights(spec, tiny_tokenizer()).items()
        if ".self_attn." not in name and ".mlp." not in name
    }
    tensors = {name: torch.from_numpy(value) for name, value in (weights | latent_weights(spec)).items()}
    return LatentTarget(LATENT_CONFIG, tensors, 2, layers)


@pytest.mark.parametrize("layers", [LAYERS, [8]], ids=["inside", "last boundary"])
@pytest.mark.parametrize("n_ubatch", [16, 512])
def test_features_of_the_deepseek2_family_equal_the_reference(
    layers: list[int], n_ubatch: int, pair: ArchPair
) -> None:
    """llama.cpp records no layer inputs for it: the states come through `cb_eval`."""
    options = exact_options()
    options.target_path, options.n_ubatch, options.n_draft_max = str(pair.target), n_ubatch, 15
    tokens = prompt_ids(N_TOKENS)
    it = Target(options, layers)
    assert it.n_ubatch == n_ubatch, "a round would need larger graphs: nothing is cut"
    features, _ = it.forward(tokens, want_logits=False)  # in one batch
    features_of_rounds, logits = it.forward(tokens)
    assert np.abs(features - features_of_rounds).max() < TOLERANCE
    expected, expected_logits = reference(layers).forward(tokens)
    for layer, native, theirs in zip(layers, features, expected, strict=True):
        assert np.abs(native - theirs.numpy()).max() < TOLERANCE, f"R_{layer}"
    assert np.abs(logits - expected_logits.numpy()).max() < 10 * TOLERANCE
    shifted, _ = reference([k - 1 for k in layers]).forward(tokens)
    assert np.abs(features - shifted.numpy()).max() > 100 * TOLERANCE, "an id off by one must show"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_llama_drafter_drafts_for_it_and_the_text_stays_the_same(
    temperature: float, engine: eaglecpp.Engine
) -> None:
    def run(strategy: str) -> eaglecpp.Completion:
        engine.clear()
        options: dict[str, Any] = {"max_tokens": 150, "ignore_eos": True, "seed": 1}
        return engine.generate(prompt_ids(40), strategy=strategy, temperature=temperature, **options)

    assert engine.chains_only == ""
    plain = run("off")
    for strategy in STRATEGIES:
        drafted = run(strategy)
        assert drafted.tokens == plain.tokens, strategy
        if strategy != "auto":
            assert drafted.timings.acceptance_length > 1.2, strategy
