# SPDX-License-Identifier: MIT
"""Drafters with latent attention: sizes, how they start, and that the engine computes what was trained."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eaglecpp.convert import DraftSpec, GgufFile, LatentSpec, RopeSpec, open_drafter, read_gguf
from eaglecpp.train.capture.features import TargetSource
from eaglecpp.train.fit.export import Vocab, check_engine, export_gguf, write_checkpoint
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.fit.spec import check_trainable, new_spec, with_vocab
from eaglecpp.train.fit.weights import from_checkpoint, from_target, target_embedding
from eaglecpp.train.samples import Sample, TrainText
from helpers.tiny import TargetSpec, make_target, prompt_ids
from helpers.tiny_arch import latent_weights, make_latent

LAYERS = (2, 4, 5)
OWN = LatentSpec(48, 32, 16, 8, 16, 24**-0.5)  # of the tiny deepseek2


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return read_gguf(make_latent(tmp_path_factory.mktemp("target")).target)


@pytest.fixture(scope="module")
def sample(target: GgufFile) -> Sample:
    tokens = np.array(prompt_ids(40), np.int32)
    source = TargetSource(target.path, [TrainText(tokens, np.ones(40, np.int16))], LAYERS)
    try:
        return source.sample(0)
    finally:
        source.close()


def n_tokens(target: GgufFile) -> int:
    return target.tensors["token_embd.weight"].shape[0]


def trained(target: GgufFile, spec: DraftSpec, noise: float = 0.3) -> tuple[DraftModel, Vocab]:
    """A drafter started from the target, then shaken."""
    ids = np.arange(0, n_tokens(target), 2)
    spec = with_vocab(spec, len(ids))
    model = DraftModel(spec, target_embedding(target), share_head=False, dtype=torch.float32)
    model.load_state_dict(from_target(target, spec, ids, seed=1).state)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * noise * p.std().nan_to_num(0.3).clamp(min=0.05))
    return model, Vocab(ids.astype(np.int64), n_tokens(target))


def yarn(spec: DraftSpec) -> DraftSpec:
    """With Kimi's kind of yarn, mscale and its part of the scores unlike each other."""
    unit = 0.1 * math.log(16.0)
    multiplier = (1 + 0.7 * unit) / (1 + 0.4 * unit)
    rope = RopeSpec(10000.0, "yarn", 16.0, 64, multiplier / (1 + unit), beta_fast=8.0, beta_slow=1.0)
    scale = (1 + 0.4 * unit) ** 2 / OWN.key_dim**0.5
    return replace(spec, rope=rope, latent=replace(OWN, scale=scale))


def test_a_target_with_latent_attention_gives_its_sizes(target: GgufFile) -> None:
    spec = new_spec(target, n_tokens(target), 8, LAYERS, mla=True)
    assert spec.latent == OWN
    assert (spec.n_heads, spec.n_kv_heads, spec.head_dim, spec.intermediate_size) == (4, 4, 24, 128)


def test_a_usual_drafter_does_not_take_the_caches_sizes_for_its_heads(target: GgufFile) -> None:
    """deepseek2's key length is that of a cached latent, and it has one kv head for all."""
    spec = new_spec(target, n_tokens(target), 8, LAYERS)
    assert spec.latent is None
    assert (spec.n_heads, spec.n_kv_heads, spec.head_dim) == (4, 4, 16)


def test_another_target_gives_deepseeks_proportions(tmp_path: Path) -> None:
    made = make_target(tmp_path, TargetSpec(n_layers=6))
    spec = new_spec(read_gguf(made.gguf), made.n_vocab, 6, (2, 3), mla=True)
    assert spec.latent == LatentSpec(0, 128, 32, 16, 32, 48**-0.5)  # 4 heads of 32: twelve would be more
    start = from_target(read_gguf(made.gguf), spec, np.arange(made.n_vocab), seed=1)
    assert any("random" in note for note in start.notes)


def test_the_attention_starts_as_the_targets(target: GgufFile) -> None:
    spec = new_spec(target, n_tokens(target), 8, LAYERS, mla=True)
    start = from_target(target, spec, np.arange(n_tokens(target)), seed=1)
    assert any("attention: from the target's last block" in note for note in start.notes)
    last = latent_weights(TargetSpec(arch="deepseek2"))
    names = ("q_a_proj", "kv_a_proj_with_mqa")
    first = torch.cat([torch.from_numpy(last[f"layers.7.self_attn.{name}.weight"]) for name in names])
    assert torch.equal(start.state["qkv"][:, spec.hidden_size :], first)
    for ours, theirs in (("q_b", "q_b_proj"), ("kv_b", "kv_b_proj"), ("o", "o_proj")):
        expected = torch.from_numpy(last[f"layers.7.self_attn.{theirs}.weight"])
        assert torch.equal(start.state[ours], expected), ours
    random = from_target(target, spec, np.arange(n_tokens(target)), seed=1, random=True).state
    assert not torch.equal(random["kv_b"], start.state["kv_b"])


@pytest.mark.parametrize("with_yarn", [False, True], ids=["plain", "yarn"])
def test_the_engine_computes_what_was_trained(
    with_yarn: bool, tmp_path: Path, target: GgufFile, sample: Sample
) -> None:
    spec = new_spec(target, n_tokens(target), 8, LAYERS, mla=True)
    model, vocab = trained(target, yarn(spec) if with_yarn else spec)
    write_checkpoint(tmp_path, model, vocab, {"by": "test"}, own_embedding=False)
    report = export_gguf(tmp_path, target.path, "F32", share_head=False)
    assert report.spec.architecture == "eagle31"
    assert 0 < check_engine(report, tmp_path, target.path, model, vocab, sample) < 1e-3


@pytest.mark.parametrize("with_yarn", [False, True], ids=["plain", "yarn"])
def test_a_checkpoint_read_back_can_be_trained_on(with_yarn: bool, tmp_path: Path, target: GgufFile) -> None:
    spec = new_spec(target, n_tokens(target), 8, LAYERS, mla=True)
    model, vocab = trained(target, yarn(spec) if with_yarn else spec)
    write_checkpoint(tmp_path, model, vocab, {}, own_embedding=False)
    draft = open_drafter(tmp_path, target.path)
    check_trainable(draft)
    found, expected = draft.spec, model.spec
    assert found.latent is not None and expected.latent is not None
    assert found.latent.scale == pytest.approx(expected.latent.scale, rel=1e-7)
    assert found.rope.attn_factor == pytest.approx(expected.rope.attn_factor, rel=1e-7)
    same = {"family": found.family, "sliding_layers": found.sliding_layers, "latent": found.latent}
    assert found == replace(expected, rope=found.rope, **same)
    state = from_checkpoint(draft)
    for name, p in model.named_parameters():
        torch.testing.assert_close(state[name], p.detach().to(torch.bfloat16).float(), rtol=0, atol=0)
