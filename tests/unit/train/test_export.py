# SPDX-License-Identifier: MIT
"""Tests the files of a trained drafter: the checkpoint has the names that other programs read, and the engine
computes the same values as the trainer. Also tests quantisation-aware training, in which the model computes
with the weights that its file will contain.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from eaglecpp.convert import DraftSpec, GgufFile, open_drafter, parse_type, read_gguf, read_tensor
from eaglecpp.convert.spec import BlockSpec
from eaglecpp.errors import TrainError, UnsupportedError
from eaglecpp.lowlevel import DraftFile
from eaglecpp.train.capture.features import TargetSource
from eaglecpp.train.data.vocab import DraftVocabulary
from eaglecpp.train.fit import export as export_module
from eaglecpp.train.fit import weights
from eaglecpp.train.fit.batch import make_batch
from eaglecpp.train.fit.block import model_for
from eaglecpp.train.fit.evaluate import TrainingTimeTest
from eaglecpp.train.fit.export import check_engine, export_gguf, write_checkpoint
from eaglecpp.train.fit.loop import Duration, Hyper, Limits, Optimizer, Trainer, load_state, lr_factor
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.fit.spec import check_trainable, new_spec, with_layers
from eaglecpp.train.fit.stored import StoredWeights
from eaglecpp.train.fit.weights import from_checkpoint, from_target, new_layers, target_embedding
from eaglecpp.train.options import BLOCK_FAMILIES, Family
from eaglecpp.train.samples import Sample, TrainText
from helpers.checkpoints import write_checkpoint as write_layout
from helpers.random_block import BlockShape
from helpers.random_drafter import DraftShape
from helpers.tiny import TargetSpec, TinyTarget, make_target, prompt_ids
from helpers.training import N_VOCAB, SPEC, Recorder, Samples, draft_ids, make_source

LAYERS = (2, 4, 5)


def sample_of(target: TinyTarget, layers: Sequence[int]) -> Sample:
    """Returns the target's features and labels of a random prompt."""
    tokens = np.array(prompt_ids(40), np.int32)
    source = TargetSource(target.gguf, [TrainText(tokens, np.ones(40, np.int16))], layers)
    try:
        return source.sample(0)
    finally:
        source.close()


@pytest.fixture(scope="module")
def sample(target: TinyTarget) -> Sample:
    return sample_of(target, LAYERS)


def make_model(
    target: TinyTarget,
    *,
    family: Family = "eagle31",
    whole: bool = False,
    noise: float = 0.3,
    n_layers: int = 1,
) -> tuple[DraftModel, DraftVocabulary]:
    """Returns a drafter that starts from the target's weights, with noise, so that no weight has a special
    value.
    """
    file = read_gguf(target.gguf)
    n_vocab = target.n_vocab
    ids = np.arange(n_vocab) if whole else np.arange(0, n_vocab, 2)
    block = BlockSpec(8, anchor_first=family != "dflash2", mask_token=0, causal=(False,))
    spec = new_spec(file, n_vocab, 8, LAYERS, family, block if family in BLOCK_FAMILIES else None)
    spec = replace(with_layers(spec, n_layers), draft_vocab_size=len(ids))
    model = model_for(spec)(spec, target_embedding(file), share_head=whole, dtype=torch.float32)
    model.load_state_dict(from_target(file, spec, ids, seed=1).state)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * noise * p.std().nan_to_num(0.3).clamp(min=0.05))
    return model, DraftVocabulary(ids.astype(np.int64), n_vocab)


def export(folder: Path, target: TinyTarget, model: DraftModel, vocab: DraftVocabulary, kind: str = "F32"):  # type: ignore[no-untyped-def]
    write_checkpoint(folder, model, vocab, {"by": "test"}, own_embedding=False)
    return export_gguf(folder, target.gguf, kind, share_head=model.share_head)


@pytest.mark.parametrize(
    ("form", "kind", "most"),
    [
        ({}, "F32", 1e-3),
        ({"family": "eagle3"}, "F32", 1e-3),
        ({"family": "dspark", "n_layers": 2}, "F32", 1e-3),
        ({"family": "dflash"}, "F32", 1e-3),
        ({"family": "dflash2", "whole": True, "n_layers": 2}, "F32", 1e-3),
        ({"n_layers": 2}, "F32", 1e-3),
        ({"family": "eagle3", "n_layers": 3}, "F32", 1e-3),
        ({}, "F16", 0.1),
        ({}, "Q8_0", 0.1),
    ],
)
def test_the_engine_computes_the_trained_model_up_to_the_types_rounding(
    form: dict[str, Any], kind: str, most: float, tmp_path: Path, target: TinyTarget, sample: Sample
) -> None:
    model, vocab = make_model(target, **form)
    report = export(tmp_path, target, model, vocab, kind)
    assert report.spec.n_layers == form.get("n_layers", 1)
    # llama.cpp would shift the slots of DFlash by one. So DFlash gets another architecture name.
    stock = {"dspark": "dflash", "dflash": "dflash_ex", "dflash2": "dflash"}
    plain = "eagle3" if form == {"family": "eagle3"} else "eagle31"
    assert report.spec.architecture == stock.get(form.get("family", ""), plain)
    assert 0 < check_engine(report, tmp_path, target.gguf, model, vocab, sample) < most
    if form.get("family") == "dspark":
        row = model.confidence.detach().bfloat16().float().numpy()  # type: ignore[attr-defined]
        found = [read_tensor(read_gguf(report.out), f"conf_proj.{what}") for what in ("weight", "bias")]
        assert np.array_equal(np.concatenate(found, axis=None), row)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_eagle_1_is_written_like_safeailabs(kind: str, tmp_path: Path, target: TinyTarget) -> None:
    model, vocab = make_model(target, family="eagle1", whole=True)
    report = export(tmp_path, target, model, vocab, kind)
    assert (report.spec.architecture, report.spec.family) == ("eagle", "eagle1")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["bias"] is False
    assert not {"draft_vocab_size", "eagle_config", "norm_output"} & config.keys()
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["fc.weight"].shape == (64, 128)
    outside = {"fc.weight"} | {name for name in stored if name.startswith("layers.0.")}
    assert stored.keys() == outside and "layers.0.input_layernorm.weight" not in stored
    error = check_engine(report, tmp_path, target.gguf, model, vocab, sample_of(target, [9]))
    assert 0 < error < (1e-3 if kind == "F32" else 0.1)


def test_a_file_with_other_results_is_refused(tmp_path: Path, target: TinyTarget, sample: Sample) -> None:
    model, vocab = make_model(target)
    report = export(tmp_path, target, model, vocab)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"norm_output": False}))
    report = export_gguf(tmp_path, target.gguf, "F32", share_head=False)
    with pytest.raises(TrainError, match="the engine's logits differ"):
        check_engine(report, tmp_path, target.gguf, model, vocab, sample)


def test_a_shared_head_is_only_in_the_checkpoint(tmp_path: Path, target: TinyTarget, sample: Sample) -> None:
    model, vocab = make_model(target, whole=True)
    report = export(tmp_path, target, model, vocab)
    assert not DraftFile(str(report.out)).info["has_head"]
    stored = load_file(tmp_path / "model.safetensors")
    head = torch.from_numpy(target.weights["lm_head.weight"])
    torch.testing.assert_close(stored["lm_head.weight"], head.to(torch.bfloat16))
    assert not {"d2t", "t2d"} & stored.keys()  # vLLM rejects d2t and t2d for a whole vocabulary
    assert 0 < check_engine(report, tmp_path, target.gguf, model, vocab, sample) < 1e-3


def test_the_checkpoint_has_the_names_and_keys_that_others_read(tmp_path: Path, target: TinyTarget) -> None:
    model, vocab = make_model(target)
    write_checkpoint(tmp_path, model, vocab, {"by": "test"}, own_embedding=False)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]  # vLLM reads boundary ids
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [
        1,
        3,
        4,
    ]  # SGLang adds one to each id
    assert (config["fc_norm"], config["norm_output"]) == (True, True)
    assert config["max_position_embeddings"] == target.spec.n_ctx
    assert config["rope_theta"] == 10000.0 and config["rms_norm_eps"] == 1e-5
    tensors = load_file(tmp_path / "model.safetensors")
    n_draft = len(vocab.ids)
    assert {"fc_norm.2.weight", "midlayer.hidden_norm.weight", "lm_head.weight"} <= tensors.keys()
    assert (torch.arange(n_draft) + tensors["d2t"]).tolist() == vocab.ids.tolist()
    assert tensors["t2d"].nonzero().flatten().tolist() == vocab.ids.tolist()
    assert tensors["fc.weight"].dtype is torch.bfloat16 and tensors["d2t"].dtype is torch.int64


@pytest.mark.parametrize(
    ("n_layers", "family"), [(1, "eagle31"), (3, "eagle31"), (2, "dspark"), (2, "dflash2")]
)
def test_a_checkpoint_read_back_is_the_model_rounded_to_bf16(
    n_layers: int, family: Family, tmp_path: Path, target: TinyTarget
) -> None:
    model, vocab = make_model(target, family=family, n_layers=n_layers, whole=family == "dflash2")
    write_checkpoint(tmp_path, model, vocab, {}, own_embedding=False)
    draft = open_drafter(tmp_path, target.gguf)
    assert family == "dflash2" if draft.ids is None else draft.ids.tolist() == vocab.ids.tolist()
    expected = replace(model.spec, family=draft.spec.family, layer_ids_rule=draft.spec.layer_ids_rule)
    assert replace(draft.spec, sliding_layers=()) == expected
    nested = json.loads((tmp_path / "config.json").read_text()).get("dflash_config", {})
    # vLLM and SGLang look for this key in the nested config
    assert (family == "dflash2") == ("selector_top_k" in nested)
    state = from_checkpoint(draft)
    for name, p in model.named_parameters():
        torch.testing.assert_close(state[name], p.detach().to(torch.bfloat16).float(), rtol=0, atol=0)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_a_new_drafter_starts_with_the_targets_head_norm_and_last_block(arch: str, tmp_path: Path) -> None:
    """Tests that the first layer starts as the target's last block. Its rows are in the order of checkpoints,
    not in the RoPE order of GGUF files.
    """
    target = make_target(tmp_path, TargetSpec.of(arch, n_layers=7))
    file, ids = read_gguf(target.gguf), np.array([1, 5, 300])
    spec = replace(new_spec(file, target.n_vocab, 7, (2, 3, 4)), draft_vocab_size=3)
    start = from_target(file, spec, ids, seed=1)
    last = {name: torch.from_numpy(w) for name, w in target.weights.items() if ".layers.6." in name}
    attention = "model.layers.6.self_attn"
    expected = torch.cat([last[f"{attention}.{x}_proj.weight"] for x in "qkv"])
    qkv = start.state["layers.0.qkv"]
    assert torch.equal(qkv[:, spec.hidden_size :], expected)
    assert torch.equal(start.state["layers.0.down"], last["model.layers.6.mlp.down_proj.weight"])
    assert torch.equal(start.state["norm"], torch.from_numpy(target.weights["model.norm.weight"]))
    assert torch.equal(start.state["head"], torch.from_numpy(target.weights["lm_head.weight"])[ids])
    assert any("last block" in note for note in start.notes)
    same = [torch.equal(from_target(file, spec, ids, seed).state["layers.0.qkv"], qkv) for seed in (1, 2)]
    assert same == [True, False]


def test_new_layers_change_nothing_until_they_are_trained(target: TinyTarget, sample: Sample) -> None:
    one, vocab = make_model(target)
    spec = with_layers(one.spec, 3)
    three = DraftModel(spec, one.embedding, share_head=False, dtype=torch.float32)
    added = new_layers(read_gguf(target.gguf), spec, range(1, 3), 1)
    three.load_state_dict(dict(one.state_dict()) | added)
    draft_ids = np.full(target.n_vocab, -1, np.int64)
    draft_ids[vocab.ids] = np.arange(len(vocab.ids))
    batch = make_batch([sample], draft_ids, 3, torch.device("cpu"))
    with torch.no_grad():
        for found, expected in zip(three.logits(batch), one.logits(batch), strict=True):
            assert torch.equal(found, expected)
    three(batch).loss.backward()
    for layer in three.layers[1:]:  # the new layers must be able to learn in the first step
        assert layer.o.grad is not None and layer.o.grad.any() and layer.down.grad.any()
    block = torch.from_numpy(target.weights["model.layers.7.mlp.gate_proj.weight"])
    assert torch.equal(added["layers.2.gate_up"][: len(block)], block)


def test_layers_can_be_added_but_not_removed(target: TinyTarget) -> None:
    file = read_gguf(target.gguf)
    two = with_layers(new_spec(file, target.n_vocab, 8, LAYERS), 2)
    assert two.n_layers == 2 and with_layers(two, 4).n_layers == 4
    with pytest.raises(UnsupportedError, match="--draft-layers 1: the drafter already has 2 layers"):
        with_layers(two, 1)
    with pytest.raises(UnsupportedError, match="can only be trained with one layer"):
        with_layers(new_spec(file, target.n_vocab, 8, LAYERS, "eagle1"), 2)


def test_another_target_gives_a_random_layer(target: TinyTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_norms_of_gemma(file: GgufFile, name: str) -> Any:
        return read_tensor(file, name) * (50 if "norm" in name else 1)

    monkeypatch.setattr(weights, "read_tensor", with_norms_of_gemma)
    file = read_gguf(target.gguf)
    spec = replace(new_spec(file, target.n_vocab, 8, LAYERS), intermediate_size=96)
    start = from_target(file, spec, np.arange(target.n_vocab), seed=1)
    assert start.state["layers.0.down"].shape == (64, 96)
    assert any("random" in note for note in start.notes)
    # With Gemma's norm, logits were +-50, and the drafter learnt nothing.
    states = torch.randn(500, spec.hidden_size, generator=torch.Generator().manual_seed(1))
    logits = states * start.state["norm"] @ start.state["head"].T
    assert 1 < logits.std() < 6


def test_rope_scaling_survives(tmp_path: Path, target: TinyTarget) -> None:
    model, vocab = make_model(target)
    rope = replace(model.spec.rope, scaling="llama3", factor=8.0, original_context=512)
    scaled: DraftSpec = replace(model.spec, rope=rope)
    model.spec = scaled
    write_checkpoint(tmp_path, model, vocab, {}, own_embedding=True)
    assert open_drafter(tmp_path, target.gguf).spec.rope == rope
    assert "embed_tokens.weight" in load_file(tmp_path / "model.safetensors")


def test_a_coarse_type_is_distinguished_from_wrong_arithmetic(
    tmp_path: Path, target: TinyTarget, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that a coarse type is distinguished from wrong arithmetic. If the type's rounding does not
    explain a difference, the difference of an F16 file shows whether the arithmetic is wrong.
    """
    model, vocab = make_model(target)
    report = export(tmp_path, target, model, vocab, "Q8_0")
    monkeypatch.setattr(export_module, "_QUANTISED", 0.0)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert 1e-3 < check_engine(report, tmp_path, target.gguf, model, vocab, sample) < 0.1
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    monkeypatch.setattr(export_module, "_F16_ERROR", 0.0)
    with pytest.raises(TrainError, match="the engine's logits differ"):
        check_engine(report, tmp_path, target.gguf, model, vocab, sample)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (DraftShape(n_layers=2, window=9), "has a sliding window; training"),
        (DraftShape(gemma="keys", n_draft_vocab=367), "Gemma 4's layer"),
        (DraftShape(eagle1=True, eagle1_norms=True, own_head=False, n_draft_vocab=367), "norms around"),
        (DraftShape(n_parallel=4), "parallel drafting"),
    ],
)
def test_unsupported_drafters_cannot_be_finetuned(
    shape: DraftShape, reason: str, target: TinyTarget, tmp_path: Path
) -> None:
    layers = None if shape.eagle1 or shape.gemma else shape.layers
    draft = open_drafter(write_layout(tmp_path / "in", shape=shape), target.gguf, aux_layers=layers)
    with pytest.raises(UnsupportedError, match=reason):
        check_trainable(draft, "in")


def test_blocks_and_a_head_without_a_norm_cannot_be_finetuned(target: TinyTarget, tmp_path: Path) -> None:
    gated = open_drafter(BlockShape(gated=True, window=6).write(tmp_path / "gated"), target.gguf)
    with pytest.raises(UnsupportedError, match="gated attention"):
        check_trainable(gated, "gated")
    checkpoint = write_layout(tmp_path / "in", "vllm")
    draft = open_drafter(checkpoint, target.gguf)
    in_blocks = replace(
        draft.spec, block=BlockSpec(4, anchor_first=False, mask_token=5, causal=(True, False))
    )
    with pytest.raises(UnsupportedError, match="different parts of a block"):
        check_trainable(replace(draft, spec=in_blocks), "in")
    with pytest.raises(UnsupportedError, match="a head without a norm"):
        check_trainable(open_drafter(checkpoint, target.gguf, readings={"head_norm": "no"}), "in")


# Quantisation-aware training

COARSE = "Q4_0"


def small_model(spec: DraftSpec = SPEC) -> DraftModel:
    """Returns a model whose rows can be divided into the blocks of the tensor type."""
    torch.manual_seed(1)
    spec = replace(spec, intermediate_size=64)
    return DraftModel(spec, torch.randn(N_VOCAB, 32), share_head=False, dtype=torch.float32)


def make_trainer(
    model: DraftModel, source: Samples, folder: Path, parts: tuple[range, range], n_steps: int, hyper: Hyper
) -> Trainer:
    """Returns a trainer that computes with the weights as stored in the file."""
    method, stored = TrainingTimeTest(model, draft_ids(), 2), StoredWeights(model, parse_type(COARSE))
    budget, limits = Duration(steps=n_steps), Limits(micro_tokens=1000)
    return Trainer(method, source, parts, folder, budget, hyper, limits, Recorder(), stored=stored)


def copies(model: DraftModel) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q8_0", "BF16"])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_model_computes_with_the_weights_of_the_file(tmp_path: Path, kind: str, layers: int) -> None:
    target = make_target(tmp_path)
    file = read_gguf(target.gguf)
    n = target.n_vocab // 4
    ids = np.concatenate([np.arange(n), np.arange(2 * n, 3 * n)])
    spec = replace(with_layers(new_spec(file, target.n_vocab, 8, (2, 4, 5)), layers), draft_vocab_size=2 * n)
    torch.manual_seed(3)
    model = DraftModel(spec, target_embedding(file), share_head=False, dtype=torch.float32)
    exact = copies(model)
    with StoredWeights(model, parse_type(kind)).lent():
        lent = copies(model)
    write_checkpoint(
        tmp_path / "d", model, DraftVocabulary(ids.astype(np.int64), target.n_vocab), {}, own_embedding=False
    )
    report = export_gguf(tmp_path / "d", target.gguf, kind, share_head=False)
    found = from_checkpoint(open_drafter(report.out, target.gguf))
    assert found.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    for name, values in found.items():
        assert torch.equal(values, lent[name]), name
    for name, p in model.named_parameters():
        assert torch.equal(p, exact[name]), name
    changed = {name for name in exact if not torch.equal(exact[name], lent[name])}
    assert changed == {name for name, values in exact.items() if values.ndim == 2}


def test_exact_weights_are_restored_after_an_error() -> None:
    model = small_model()
    exact = copies(model)
    with pytest.raises(ZeroDivisionError), StoredWeights(model, parse_type(COARSE)).lent():
        assert not torch.equal(model.fc, exact["fc"])
        raise ZeroDivisionError
    assert all(torch.equal(p, exact[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("qat", [True, False])
def test_gradients_of_stored_weights_are_added_to_the_exact_ones(tmp_path: Path, qat: bool) -> None:
    model, source, hyper = small_model(), make_source(4), Hyper(n_steps=2, lr=0.01, batch_tokens=1000)
    stored = StoredWeights(model, parse_type(COARSE))
    batch = make_batch([source.sample(i) for i in range(4)], draft_ids(), 2, torch.device("cpu"))
    with stored.lent() if qat else contextlib.nullcontext():
        sums = model(batch)
        sums.loss.backward()
    Optimizer(model.parameters()).step(1 / sums.weight, hyper.lr * lr_factor(0.0, hyper.warmup))

    trained = small_model()
    make_trainer(trained, source, tmp_path, (range(4), range(0)), 1, hyper).run()
    same = [
        torch.allclose(a, b, atol=1e-6) for a, b in zip(model.parameters(), trained.parameters(), strict=True)
    ]
    assert all(same) if qat else not any(same)


def test_evaluations_use_stored_weights_and_saves_exact_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, source = small_model(), make_source(4)
    stored = StoredWeights(model, parse_type(COARSE))
    seen: list[torch.Tensor] = []
    drafts = model.drafts

    def watched(*args: Any) -> Any:
        seen.append(model.fc.detach().clone())
        return drafts(*args)

    monkeypatch.setattr(model, "drafts", watched)
    hyper = Hyper(n_steps=2, lr=0.01, batch_tokens=60)
    make_trainer(model, source, tmp_path, (range(3), range(3, 4)), 2, hyper).run()
    exact = model.fc.detach().clone()
    with stored.lent():
        assert torch.equal(seen[-1], model.fc)
    assert torch.equal(load_state(tmp_path / "last.pt")["model"]["fc"], exact)
    assert torch.equal(load_state(tmp_path / "best.pt")["model"]["fc"], exact)
