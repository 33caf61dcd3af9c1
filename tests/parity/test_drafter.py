# SPDX-License-Identifier: MIT
"""Compares draft logits, states and K/V of the native drafter with PyTorch, for every switch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.random_drafter import DraftShape
from helpers.reference.drafter import Drafter as Reference

from .cases import CASES
from .conftest import Both, random_rows
from .steps import CHUNKS, TOLERANCE, compare_steps, gap

MakeBoth = Callable[[DraftShape], Both]
N_ROWS = sum(CHUNKS)
MIXED = ("full-then-sliding", "sliding-then-full", "mixed-three-layers-31")
LATENT = ("latent", "latent-31-yarn", "latent-two-layers-31", "latent-window")
REPAIRED = ("eagle3", "eagle31", "two-layers-31", "sliding-window", "qk-norm", *MIXED, *LATENT)


@pytest.mark.parametrize("teacher_forced", [True, False], ids=["teacher-forced", "free-running"])
@pytest.mark.parametrize("name", CASES)
def test_logits_and_states_equal_the_reference(name: str, teacher_forced: bool, both: MakeBoth) -> None:
    it = both(CASES[name])
    found = compare_steps(it.native, it.reference, random_rows(it.shape, N_ROWS), teacher_forced)
    for difference in found:
        assert difference.logits < TOLERANCE, found
        assert difference.state < TOLERANCE, found


# Attributes in which each wrong reference differs from the right reference.
MISTAKES: dict[str, Callable[[Reference], dict[str, Any]]] = {
    "halves are swapped": lambda it: {"concat": lambda token, feature: torch.cat([feature, token], -1)},
    "rows are one position later": lambda it: {
        "extend": lambda *rows: type(it).extend(it, *rows[:-1], rows[-1] + 1)
    },
    "the other state is fed": lambda it: {
        "switches": replace(it.switches, norm_output=not it.switches.norm_output)
    },
    "ids are shifted": lambda it: {"embedding": it.embedding.roll(1, 0)},
    "another eps": lambda it: {"eps": 1e-6},
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_known_mistake_is_detected(name: str, both: MakeBoth) -> None:
    it = both(CASES["small-features"])
    wrong = Reference.load(it.checkpoint, it.embedding, it.head)
    vars(wrong).update(MISTAKES[name](wrong))
    found = compare_steps(it.native, wrong, random_rows(it.shape, N_ROWS), teacher_forced=False)
    assert max(d.logits for d in found) > 10 * TOLERANCE, found


@pytest.mark.parametrize("kernels", ["on", "off"])
@pytest.mark.parametrize("name", [*LATENT, "latent-wide-values", "wide-heads"])
def test_fused_attention_equals_the_reference(name: str, kernels: str, both: MakeBoth) -> None:
    """Compares fused attention with the reference. With latent attention, the fused form has no cache of
    values, because the values are a part of the keys.
    """
    it = both(CASES[name])
    native = it.native_of(flash_attn="on", kernels=kernels)
    assert native.info["flash_attn"]
    rows = random_rows(it.shape, N_ROWS)
    found = compare_steps(native, it.reference, rows, teacher_forced=False)
    assert max(d.logits for d in found) < TOLERANCE, found
    for layer in range(it.shape.n_layers):
        v, ref_v = native.kv(layer)[1], it.reference.kv(layer)[1]
        assert v.shape == ref_v.shape
        assert gap(v, ref_v) < TOLERANCE


@pytest.mark.parametrize("name", ["eagle31", "full-then-sliding", "latent-31-yarn"])
def test_a_window_can_be_set_when_the_drafter_is_opened(name: str, both: MakeBoth) -> None:
    shape = replace(CASES[name], window=13, full_layers=())
    native, it = both(CASES[name]).native_of(draft_window=13), both(shape)
    found = compare_steps(native, it.reference, random_rows(shape, N_ROWS), teacher_forced=False)
    assert max(d.logits for d in found) < TOLERANCE, found


@pytest.mark.parametrize("name", CASES)
def test_committed_rows_equal_the_reference(name: str, both: MakeBoth) -> None:
    """Compares committed rows with the reference. For rows without output, as in a prompt, the drafter skips
    the parts of the last layer that only produce output.
    """
    it = both(CASES[name])
    features, tokens = random_rows(it.shape, N_ROWS)
    start = 0
    for n_rows in CHUNKS[:-1]:
        part = slice(start, start + n_rows)
        it.native.append(np.ascontiguousarray(features[:, part]), tokens[part])
        start += n_rows
    logits, state = it.native.commit(np.ascontiguousarray(features[:, start:]), tokens[start:])
    ref_logits, ref_state = it.reference.commit(torch.from_numpy(features), tokens)
    assert gap(logits, ref_logits) < TOLERANCE
    assert gap(state, ref_state) < TOLERANCE
    for layer in range(it.shape.n_layers):
        k, v = it.native.kv(layer)
        ref_k, ref_v = it.reference.kv(layer)
        # The converter has permuted the rows of q and k to adjacent pairs.
        if it.native.info["rope_type"] == "norm" and it.shape.latent is None:
            ref_k = torch.stack(ref_k.chunk(2, dim=-1), dim=-1).flatten(-2)
        assert k.shape == ref_k.shape == (N_ROWS, *it.shape.kv_shapes[0])
        assert v.shape == ref_v.shape == (N_ROWS, *it.shape.kv_shapes[1])
        assert gap(k, ref_k) < TOLERANCE
        assert gap(v, ref_v) < TOLERANCE


@pytest.mark.parametrize("n_accepted", range(6))
@pytest.mark.parametrize("name", REPAIRED)
def test_rows_after_a_round_equal_a_fresh_prefill(name: str, n_accepted: int, both: MakeBoth) -> None:
    """Tests that the rows after a round equal those of a fresh prefill. Draft rows are computed from the
    drafter's own guesses, so a commit of true features must replace all draft rows.
    """
    it = both(CASES[name])
    features, tokens = random_rows(it.shape, N_ROWS)
    n_before = 30
    _, state = it.native.commit(features[:, :n_before], tokens[:n_before])
    for step in range(1, 6):
        _, states = it.native.extend(state[None], [tokens[-step]], [step - 2])
        state = states[0]
    n_after = n_before + n_accepted + 1
    logits, state = it.native.commit(
        np.ascontiguousarray(features[:, n_before:n_after]), tokens[n_before:n_after]
    )
    kv = [it.native.kv(layer) for layer in range(it.shape.n_layers)]
    next_logits, _ = it.native.extend(state[None], [3], [-1])

    it.native.reset()
    fresh_logits, fresh_state = it.native.commit(
        np.ascontiguousarray(features[:, :n_after]), tokens[:n_after]
    )
    for layer, (k, v) in enumerate(kv):
        fresh_k, fresh_v = it.native.kv(layer)
        assert k.shape == fresh_k.shape == (n_after, *it.shape.kv_shapes[0])
        assert np.abs(k - fresh_k).max() < 1e-5
        assert np.abs(v - fresh_v).max() < 1e-5
    assert np.abs(logits - fresh_logits).max() < 1e-4
    assert np.abs(next_logits - it.native.extend(fresh_state[None], [3], [-1])[0]).max() < 1e-4


@pytest.mark.parametrize(
    "name", ["eagle3", "eagle31", "two-layers-31", "sliding-window", "qk-norm", "rope-yarn", *MIXED, *LATENT]
)
def test_a_tree_equals_the_chains_of_its_paths(name: str, both: MakeBoth) -> None:
    it = both(CASES[name])
    features, tokens = random_rows(it.shape, N_ROWS)
    _, root = it.native.commit(features, tokens)
    # This tree has three children of the root, a node with two children, a leaf, and branches of different
    # depths.
    levels = [([11, 12, 13], [-1, -1, -1]), ([21, 22, 23, 24], [0, 0, 1, 2]), ([31, 32], [3, 5]), ([41], [7])]
    logits: list[np.ndarray] = []
    states: list[np.ndarray] = []
    paths: list[list[int]] = []
    for level, parents in levels:
        fed = np.stack([root if p < 0 else states[p] for p in parents])
        out, new = it.native.extend(fed, level, parents)
        paths += [[*([] if p < 0 else paths[p]), token] for token, p in zip(level, parents, strict=True)]
        logits += list(out)
        states += list(new)
    for path, expected in zip(paths, logits, strict=True):
        it.native.truncate(N_ROWS)
        state = root
        for step, token in enumerate(path, start=1):
            out, new = it.native.extend(state[None], [token], [step - 2])
            state = new[0]
        assert np.abs(out[0] - expected).max() < 1e-4, path
