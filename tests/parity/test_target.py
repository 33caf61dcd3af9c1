# SPDX-License-Identifier: MIT
"""Compares features and logits of the native target with PyTorch, for both ways of extracting hidden
states.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eaglecpp.lowlevel import EngineOptions, Target
from helpers.reference.target import Target as ReferenceTarget
from helpers.tiny import TargetSpec, TinyTarget, make_target, prompt_ids

from .conftest import exact_options

LAYERS = [1, 4, 7]
N_TOKENS = 90
# Both sides compute eight blocks in fp32. Features are of the order of 1, and logits of the order of 10.
TOLERANCE = 1e-4


def native_target(path: Path, options: EngineOptions, layers: list[int] = LAYERS) -> Target:
    options.target_path = str(path)
    return Target(options, layers)


def cut_target(path: Path, n_ubatch: int, layers: list[int]) -> Target:
    """Returns a target that splits batches of up to 512 rows into graphs of n_ubatch rows. A round fits into
    one graph.
    """
    options = exact_options(n_batch=512, n_ubatch=n_ubatch, n_draft_max=15)
    it = native_target(path, options, layers)
    assert it.n_ubatch == n_ubatch, "the target must keep the requested n_ubatch"
    return it


# libllama returns the layer inputs of llama and qwen3. The layer inputs of other architectures can only be
# read through cb_eval.
@pytest.mark.parametrize(
    ("arch", "taps", "layers"),
    [
        ("llama", "layer_inp", LAYERS),
        ("qwen3", "layer_inp", LAYERS),
        ("qwen2", "cb_eval", LAYERS),
        ("qwen2", "cb_eval", [8]),  # boundary 8 is the last boundary
    ],
)
@pytest.mark.parametrize("n_ubatch", [16, 512])
def test_features_and_logits_equal_the_reference(
    arch: str, taps: str, layers: list[int], n_ubatch: int, tmp_path: Path
) -> None:
    """Compares features and logits with PyTorch. The features of neighbouring layers differ by more than the
    tolerance, so a layer id that is off by one fails.
    """
    tokens = prompt_ids(N_TOKENS)
    others = [k - 1 for k in layers]
    target = make_target(tmp_path, TargetSpec.of(arch))
    references = [ReferenceTarget(target.directory, ids).forward(tokens) for ids in (layers, others)]
    (expected, expected_logits), (shifted, _) = references
    it = cut_target(target.gguf, n_ubatch, layers)
    assert it.taps == taps
    features, _ = it.forward(tokens, want_logits=False)  # computed in one batch
    features_of_rounds, logits = it.forward(tokens)  # computed in batches with the size of a round
    assert features.shape == (len(layers), N_TOKENS, TargetSpec().n_embd)
    for found in (features, features_of_rounds):
        for layer, native, right, wrong in zip(layers, found, expected, shifted, strict=True):
            assert np.abs(native - right.numpy()).max() < TOLERANCE, f"R_{layer}"
            assert np.abs(native - wrong.numpy()).max() > 100 * TOLERANCE, f"R_{layer}"
    assert logits is not None
    assert np.abs(logits - expected_logits.numpy()).max() < 10 * TOLERANCE


@pytest.mark.parametrize("n_ubatch", [16, 512])
def test_the_last_ids_are_the_states_around_the_final_norm(n_ubatch: int, target: TinyTarget) -> None:
    """Compares the states and the logits of one batch, in which all rows have output."""
    last = [target.spec.n_layers, target.spec.n_layers + 1]
    tokens = prompt_ids(N_TOKENS)
    features, logits = cut_target(target.gguf, n_ubatch, last).forward(tokens)
    expected, expected_logits = ReferenceTarget(target.directory, last).forward(tokens)
    assert np.abs(features - expected.numpy()).max() < 10 * TOLERANCE
    assert logits is not None
    assert np.abs(logits - expected_logits.numpy()).max() < 10 * TOLERANCE
    assert np.abs(features[0] - features[1]).max() > 1000 * TOLERANCE


def test_timed_rows_leave_no_trace(target: TinyTarget) -> None:
    """Tests that measuring times leaves no rows in the cache: the rows are removed after each repeat, and
    their prefix does not block later prompts.
    """
    it = native_target(target.gguf, exact_options(n_ctx=64, n_draft_max=3))
    prefix = prompt_ids(40)
    before = it.forward([*prefix, 30, 31, 32])
    for n_prefix in (40, 0, 40, 20):  # the context has no room for the rows of 40 repeats
        ms = it.time_rows(prefix[:n_prefix], [30, 31, 32, 33], 10)
        assert len(ms) == 10 and all(0 < one < 1e4 for one in ms)
    for one, other in zip(before, it.forward([*prefix, 30, 31, 32]), strict=True):
        assert one is not None and other is not None and np.array_equal(one, other)
    with pytest.raises(ValueError, match=r"expected 1 to 4 tokens .*, found 5"):
        it.time_rows(prefix, [1, 2, 3, 4, 5])
