# SPDX-License-Identifier: MIT
"""Compares draft logits, states and K/V of the native drafter with PyTorch, for every switch, and for
checkpoint variants, which trainers compute differently. For a variant, the reference follows the trainer's
convention, and the native drafter is converted as the same variant. Also compares features and logits of the
native target with PyTorch, for both ways of extracting hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eaglecpp.convert import convert_checkpoint
from eaglecpp.lowlevel import Drafter, EngineOptions, Target
from helpers.checkpoints import write_checkpoint
from helpers.random_drafter import DraftShape
from helpers.reference.drafter import Drafter as Reference
from helpers.reference.layers import rms
from helpers.reference.target import Target as ReferenceTarget
from helpers.tiny import TargetSpec, TinyTarget, make_target, prompt_ids

from .cases import CASES
from .conftest import Both, exact_options, random_rows
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


def test_rows_at_a_wrong_position_are_detected(both: MakeBoth) -> None:
    """Tests that the comparison is strict enough to detect a mistake."""
    it = both(CASES["small-features"])
    rows_later = {"extend": lambda it, *rows: Reference.extend(it, *rows[:-1], rows[-1] + 1)}
    wrong = type("Mistaken", (Reference,), rows_later).load(it.checkpoint, it.embedding, it.head)
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


# Variants of checkpoints


PLAIN = DraftShape()


class NormedTwice(Reference):
    """A reference with ModelOpt's first layer, which applies input_layernorm and then hidden_norm to the
    feature.
    """

    def layer(self, i: int, h: torch.Tensor, *rest: Any) -> torch.Tensor:
        if i > 0:
            return super().layer(i, h, *rest)
        # This class computes rms(rms(x; w1); w2). The parent class applies only one norm, and adds the
        # residual.
        self.inner = rms(h, self.w["layers.0.input_layernorm.weight"], self.eps)
        return super().layer(i, h, *rest)

    def concat(self, embedded: torch.Tensor, feature: torch.Tensor) -> torch.Tensor:
        return super().concat(embedded, rms(self.inner, self.w["layers.0.hidden_norm.weight"], self.eps))


class Headless(Reference):
    """A reference for SpecForge 0.2.0 with norm_output false, in which the head reads the same state that is
    fed to the next step.
    """

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


@pytest.fixture
def differences(target: TinyTarget, tmp_path: Path) -> Callable[..., list[float]]:
    """Returns a function `differences(kind, family, shape, edit, *readings)`, which returns the largest
    difference of a logit from the reference under each reading.
    """

    def run(
        kind: type[Reference],
        family: str,
        shape: DraftShape,
        edit: Mapping[str, Any],
        *several: Mapping[str, str],
    ) -> list[float]:
        checkpoint = write_checkpoint(tmp_path / "in", family, shape, edit=edit)
        tables = [torch.from_numpy(target.weights[f"{x}.weight"]) for x in ("model.embed_tokens", "lm_head")]
        rows = random_rows(shape, sum(CHUNKS))
        found = []
        for index, readings in enumerate(several):
            out = tmp_path / f"{index}.gguf"
            convert_checkpoint(
                checkpoint, target.gguf, out, "F32", aux_layers=shape.layers, readings=readings
            )
            own = family not in ("specforge", "modelopt")
            native = Drafter(str(out), exact_options(), None if own else tables[0].numpy())
            reference = kind.load(checkpoint, *tables)
            steps = compare_steps(native, reference, rows, teacher_forced=True)
            found.append(max(step.logits for step in steps))
        return found

    return run


def test_a_head_without_a_norm_is_exact(differences: Callable[..., list[float]]) -> None:
    edit = {"norm_output": False}
    none, normed = differences(Headless, "specforge", PLAIN, edit, {"head_norm": "no"}, {"head_norm": "yes"})
    assert none < TOLERANCE < normed


def test_two_merged_norms_are_closer_than_either_alone(differences: Callable[..., list[float]]) -> None:
    """Tests that merging two norms into one norm is closer to the trainer than either norm alone. The merged
    norm is not exact, because the size of a row after the first norm's weights varies between rows. The
    variation is largest for narrow rows, like the rows of 64 values here.
    """
    twice, once = differences(
        NormedTwice, "modelopt", PLAIN, {}, {"feature_norm": "twice"}, {"feature_norm": "once"}
    )
    assert twice < once / 2


# The target

LAYERS = [1, 4, 7]
N_TOKENS = 90
# Both sides compute eight blocks in fp32. Features are of the order of 1, and logits of the order of 10.
TARGET_TOLERANCE = 1e-4


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
            assert np.abs(native - right.numpy()).max() < TARGET_TOLERANCE, f"R_{layer}"
            assert np.abs(native - wrong.numpy()).max() > 100 * TARGET_TOLERANCE, f"R_{layer}"
    assert logits is not None
    assert np.abs(logits - expected_logits.numpy()).max() < 10 * TARGET_TOLERANCE


@pytest.mark.parametrize("n_ubatch", [16, 512])
def test_the_last_ids_are_the_states_around_the_final_norm(n_ubatch: int, target: TinyTarget) -> None:
    """Compares the states and the logits of one batch, in which all rows have output."""
    last = [target.spec.n_layers, target.spec.n_layers + 1]
    tokens = prompt_ids(N_TOKENS)
    features, logits = cut_target(target.gguf, n_ubatch, last).forward(tokens)
    expected, expected_logits = ReferenceTarget(target.directory, last).forward(tokens)
    assert np.abs(features - expected.numpy()).max() < 10 * TARGET_TOLERANCE
    assert logits is not None
    assert np.abs(logits - expected_logits.numpy()).max() < 10 * TARGET_TOLERANCE
    assert np.abs(features[0] - features[1]).max() > 1000 * TARGET_TOLERANCE


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
