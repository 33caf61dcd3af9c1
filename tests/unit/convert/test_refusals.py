# SPDX-License-Identifier: MIT
"""Tests faulty checkpoints, which must never be converted silently. The table has one row per check, and
every error message names the fault and the remedy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from eaglecpp.convert import errors
from helpers.checkpoints import Convert, write_checkpoint
from helpers.gguf_writer import check_same_tensors, key_of
from helpers.random_drafter import EAGLE1, DraftShape, LatentShape
from helpers.tiny import TargetSpec, make_target

F32 = np.float32
LATENT = DraftShape(latent=LatentShape())
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@dataclass(frozen=True)
class Bad:
    """A damaged checkpoint and its expected error message."""

    id: str
    error: type[errors.EagleError]
    message: str
    family: str = "vllm"
    shape: DraftShape = field(default_factory=DraftShape)
    edit: dict[str, Any] = field(default_factory=dict)
    add: dict[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()


Q = "layers.0.self_attn.q_proj.weight"
TENSORS = [
    Bad("fc width", errors.TensorError, r"fc\.weight.*divisible by 64, the target's hidden size",
        add={"fc.weight": np.ones((64, 190), F32)}, drop=("fc.weight",)),
    Bad("q in-dim", errors.TensorError, r"q_proj\.weight: expected \[64, 128\], found \[64, 64\]",
        add={Q: np.ones((64, 64), F32)}, drop=(Q,)),
    Bad("head dim", errors.TensorError, r"q_proj\.weight: expected \[128, 128\]", edit={"head_dim": 32}),
    Bad("missing", errors.TensorError, r"missing: norm\.weight \[64\]", drop=("norm.weight",)),
    Bad("unknown", errors.TensorError, r"unknown: adapter\.weight", add={"adapter.weight": np.ones(3, F32)}),
    Bad("fc_norm incomplete", errors.TensorError, r"missing: fc_norm\.1\.weight \[64\]",
        shape=DraftShape(fc_norm=True), drop=("fc_norm.1.weight",)),
    Bad("one bias of three", errors.TensorError, r"missing: layers\.0\.self_attn\.k_proj\.bias",
        shape=DraftShape(attention_bias=True), drop=("layers.0.self_attn.k_proj.bias",)),
    Bad("q norm alone", errors.TensorError, r"missing: layers\.0\.self_attn\.k_norm",
        shape=DraftShape(qk_norm=True), drop=("layers.0.self_attn.k_norm.weight",)),
    Bad("both later norms", errors.TensorError, "expected one norm before attention, found both",
        shape=DraftShape(n_layers=2), add={"layers.1.hidden_norm.weight": np.ones(64, F32)}),
    Bad("layer gap", errors.TensorError, r"missing: layers\.1\.",
        add={"layers.2.input_layernorm.weight": np.ones(64, F32)}),
    Bad("head rows", errors.TensorError, r"lm_head\.weight: expected \[150, 64\], found \[160, 64\]",
        edit={"draft_vocab_size": 150}),
    Bad("embedding rows", errors.TensorError,
        r"embed_tokens\.weight: expected \[367, 64\], found \[300, 64\]",
        add={"embed_tokens.weight": np.ones((300, 64), F32)}, drop=("embed_tokens.weight",)),
    Bad("no head, small vocabulary", errors.TensorError,
        r"no lm_head\.weight, and the target's do not fit",
        drop=("lm_head.weight",)),
    Bad("same tensor twice", errors.CheckpointError, "have the same role; remove one",
        add={"model.norm.weight": np.ones(64, F32)}),
    Bad("NaN", errors.TensorError, r"norm\.weight: contains NaN",
        add={"norm.weight": np.full(64, np.nan, F32)}, drop=("norm.weight",)),
    Bad("integers", errors.TensorError,
        r"expected floating point values, found integers in: norm\.weight \(I32\)",
        add={"norm.weight": np.ones(64, np.int32)}, drop=("norm.weight",)),
]  # fmt: skip
CONFIG = [
    Bad("fc_norm flag", errors.ConfigError, r"fc_norm is true, but the checkpoint has no tensor fc_norm\.\*",
        edit={"fc_norm": True}),
    Bad("fc_norm tensors", errors.ConfigError,
        r"tensor fc_norm\.0\.weight, but config\.json does not set fc_norm",
        shape=DraftShape(fc_norm=True), edit={"fc_norm": None}),
    Bad("norm_before_fc flag", errors.ConfigError, "norm_before_fc is true", edit={"norm_before_fc": True}),
    Bad("norm_before_fc twice", errors.ConfigError, "True at the top level and False in eagle_config",
        shape=DraftShape(norm_before_fc=True), edit={"eagle_config": {"norm_before_fc": False}}),
    Bad("flag type", errors.ConfigError, "norm_output: expected true or false, found 'yes'",
        edit={"norm_output": "yes"}),
    Bad("no hidden size", errors.ConfigError, "hidden_size: expected a positive integer, found no such key",
        edit={"hidden_size": None}),
    Bad("head dim odd", errors.ConfigError, "head_dim: expected an even number", edit={"head_dim": 15}),
    Bad("head dim absent", errors.ConfigError, "hidden_size 64 is not divisible by 5",
        edit={"head_dim": None, "num_attention_heads": 5}),
    Bad("layer ids", errors.ConfigError, "expected a list of integers, found",
        edit={"eagle_aux_hidden_state_layer_ids": [True, 4, 5]}),
    Bad("draft vocabulary", errors.ConfigError,
        "draft_vocab_size: expected at most vocab_size 367, found 400",
        edit={"draft_vocab_size": 400}),
    Bad("epsilon", errors.ConfigError, "rms_norm_eps: expected a positive number", edit={"rms_norm_eps": 0}),
    Bad("tied to nothing", errors.ConfigError, r"no embed_tokens\.weight\. Add this tensor",
        shape=DraftShape(n_draft_vocab=367, own_head=False, own_embedding=False),
        edit={"tie_word_embeddings": True}),
    Bad("activation", errors.UnsupportedError, "hidden_act: expected silu, found 'gelu'",
        edit={"hidden_act": "gelu"}),
    Bad("sliding without layers", errors.ConfigError, "use_sliding_window is true, but layer_types",
        edit={"use_sliding_window": True, "sliding_window": 64}),
    Bad("sliding without window", errors.ConfigError, "sliding_window is not set",
        edit={"layer_types": ["sliding_attention"]}),
    Bad("layer_types", errors.ConfigError, "expected 2 entries, full_attention or",
        shape=DraftShape(n_layers=2), edit={"layer_types": ["full_attention"]}),
    Bad("speculators residual", errors.ConfigError,
        "norm_before_residual: expected true or false, found no such key",
        family="speculators", edit={"norm_before_residual": None}),
    Bad("speculators nested", errors.ConfigError, "transformer_layer_config: expected an object",
        family="speculators", edit={"transformer_layer_config": 3}),
    Bad("rope twice", errors.ConfigError,
        r"rope_parameters and rope_scaling contradict each other: factor is 8\.0 and 4\.0",
        edit={"rope_parameters": {**YARN, "rope_theta": 1e4, "factor": 8.0}, "rope_scaling": YARN}),
]  # fmt: skip
MAPS = [
    Bad("no map", errors.VocabMapError, "neither d2t nor t2d", drop=("d2t", "t2d")),
    Bad("d2t length", errors.VocabMapError, r"d2t: expected shape \[160\]",
        add={"d2t": np.zeros(159, np.int64)}, drop=("d2t",)),
    Bad("d2t not increasing", errors.VocabMapError, "found 5 then 5 at draft ids 0 and 1",
        add={"d2t": np.array([5, 4, *[4] * 158], np.int64)}, drop=("d2t", "t2d")),
    Bad("d2t out of range", errors.VocabMapError, "draft id 159 maps to target id 459, outside",
        add={"d2t": np.array([0] * 159 + [300], np.int64)}, drop=("d2t", "t2d")),
    Bad("d2t zeros", errors.VocabMapError, "values are 0", add={"d2t": np.zeros(160, np.int64)}, drop=("d2t",
        "t2d")),
    Bad("d2t floats", errors.VocabMapError, "expected int64 or int32", add={"d2t": np.zeros(160, F32)},
        drop=("d2t",)),
    Bad("mask length", errors.VocabMapError, r"t2d: expected shape \[367\]",
        add={"t2d": np.ones(200, bool)}, drop=("t2d",)),
    Bad("mask of ones", errors.VocabMapError, "t2d: expected 160 marked tokens.*found 367",
        add={"t2d": np.ones(367, bool)}, drop=("t2d",)),
]  # fmt: skip
ones = np.ones((4, 4), F32)
GEMMA = DraftShape(gemma="keys", n_draft_vocab=367)
PARALLEL = DraftShape(n_parallel=6)
FAMILIES = [
    Bad("EAGLE-1 of speculators", errors.UnsupportedError, "in the layout of speculators",
        edit={"architectures": ["EagleSpeculator"]}),
    Bad("EAGLE-1 with a norm", errors.TensorError, r"unknown: norm\.weight",
        shape=EAGLE1, add={"norm.weight": np.ones(64, F32)}),
    Bad("EAGLE-1 bias", errors.ConfigError, r"bias is True, but the checkpoint has no tensor fc\.bias",
        shape=EAGLE1, edit={"bias": True}),
    Bad("EAGLE-1 q bias", errors.ConfigError, r"qkv_bias is False, but the checkpoint has a tensor",
        shape=replace(EAGLE1, attention_bias=True), edit={"qkv_bias": False}),
    Bad("EAGLE-1 half of Mistral's norms", errors.TensorError, r"missing: norm\.weight",
        shape=replace(EAGLE1, eagle1_norms=True), drop=("norm.weight",)),
    Bad("DeepSpec ids", errors.UnsupportedError, "target_layer_ids: expected the layers", "deepspec",
        edit={"target_layer_ids": None}),
    Bad("DeepSpec layers", errors.UnsupportedError, "reads the embedding again", "deepspec",
        shape=DraftShape(n_layers=2)),
    Bad("Gemma 4 scalar", errors.UnsupportedError, r"layer_scalar: expected 1", shape=GEMMA,
        add={"layers.0.layer_scalar": np.full(1, 0.5, F32)}),
    Bad("Gemma 4 values", errors.TensorError, r"unknown: layers\.0\.self_attn\.v_proj",
        shape=replace(GEMMA, gemma="values"), edit={"attention_k_eq_v": True}),
    Bad("Gemma 4 experts", errors.UnsupportedError, "Gemma 4 layers with experts", shape=GEMMA,
        edit={"enable_moe_block": True}),
    Bad("Gemma 4 activation", errors.UnsupportedError, "expected gelu_pytorch_tanh, found 'silu'",
        shape=GEMMA, edit={"hidden_activation": "silu"}),
    Bad("Gemma 4 rope", errors.ConfigError, "expected an object for full_attention", shape=GEMMA,
        edit={"rope_parameters": {"rope_type": "default"}}),
    Bad("Gemma 4 part", errors.ConfigError, "partial_rotary_factor above 0, up to 1", shape=GEMMA,
        edit={"rope_parameters": {"full_attention": {"rope_type": "proportional",
        "partial_rotary_factor": 1.5}}}),
    Bad("DFlash", errors.UnsupportedError, r"DFlashDraftModel: expected .*found no hidden_norm\.weight",
        edit={"architectures": ["DFlashDraftModel"]}),
    Bad("DFlash of speculators", errors.UnsupportedError, "expected a block drafter's tensors", "speculators",
        edit={"speculators_model_type": "dflash"}),
    Bad("MTP", errors.UnsupportedError, "multi-token prediction", edit={"architectures": ["MiMoMTPModel"]}),
    Bad("MTP tensors", errors.UnsupportedError, "multi-token prediction",
        add={"model.layers.0.eh_proj.weight": ones}),
    Bad("Megatron layers", errors.UnsupportedError, "Megatron exports of Model Optimizer",
        add={"midlayer.1.mlp.up_proj.weight": ones}),
    Bad("Megatron EAGLE-1", errors.UnsupportedError, "EAGLE-1 drafters exported by Megatron",
        edit={"architectures": ["LlamaForCausalLMEagle"]}, add={"enorm.weight": np.ones(64, F32)}),
    Bad("latent EAGLE-1", errors.UnsupportedError, "EAGLE 1 and 2 drafters with latent attention",
        shape=EAGLE1, add={"layers.0.self_attn.kv_a_proj_with_mqa.weight": ones}),
    Bad("latent Gemma 4", errors.UnsupportedError, "drafters with latent attention",
        shape=GEMMA, add={"layers.0.self_attn.kv_a_proj_with_mqa.weight": ones}),
    Bad("latent class alone", errors.UnsupportedError, "the checkpoint has no tensor kv_a_proj_with_mqa",
        edit={"architectures": ["Eagle3DeepseekV2ForCausalLM"]}),
    Bad("latent tensor alone", errors.ConfigError, "qk_nope_head_dim",
        add={"layers.0.self_attn.kv_a_proj_with_mqa.weight": ones}),
    Bad("latent low rank untold", errors.TensorError,
        r"missing: layers\.0\.self_attn\.q_proj\.weight.*unknown.*q_a",
        shape=LATENT, edit={"q_lora_rank": None}),
    Bad("latent odd rope", errors.ConfigError, "qk_rope_head_dim: expected an even number",
        shape=LATENT, edit={"qk_rope_head_dim": 7}),
    Bad("latent halves", errors.UnsupportedError, "rope_interleave: expected true", shape=LATENT,
        edit={"rope_interleave": False}),
    Bad("latent gate", errors.UnsupportedError, "mla_use_output_gate: expected false", shape=LATENT,
        edit={"mla_use_output_gate": True}),
    Bad("latent without positions", errors.UnsupportedError,
        "mla_use_nope is true.*found 'Eagle3L",
        shape=LATENT, edit={"mla_use_nope": True, "architectures": ["Eagle3LlamaForCausalLM"]}),
    Bad("latent linear rope", errors.UnsupportedError, "rope type 'linear': expected default or yarn",
        shape=LATENT, edit={"rope_scaling": {"type": "linear", "factor": 2.0}}),
    Bad("latent yarn of Automodel", errors.UnsupportedError, "rope type yarn are not supported", "automodel",
        shape=LATENT, edit={"rope_scaling": YARN}),
    Bad("latent attention_factor", errors.UnsupportedError, "attention_factor: latent attention supports",
        shape=LATENT, edit={"rope_scaling": {**YARN, "attention_factor": 1.0}}),
    Bad("deepseek_yarn elsewhere", errors.UnsupportedError, "rope type 'deepseek_yarn' is not supported",
        edit={"rope_scaling": {**YARN, "type": "deepseek_yarn"}}),
    Bad("P-EAGLE without its feature", errors.UnsupportedError, "without P-EAGLE's tensor mask_hidden",
        "speculators", edit={"speculators_model_type": "peagle"}),
    Bad("PARD", errors.UnsupportedError, "parallel drafters without", edit={"pard_token": 5}),
    Bad("P-EAGLE token", errors.ConfigError, "expected one mask token id in pard_token",
        shape=PARALLEL, edit={"ptd_token_id": None}),
    Bad("P-EAGLE tokens", errors.ConfigError, r"found \{'ptd_token_id': 5, 'mask_token_id': 6\}",
        shape=PARALLEL, edit={"mask_token_id": 6}),
    Bad("P-EAGLE token range", errors.ConfigError, "a token id below 367, found 367", shape=PARALLEL,
        edit={"ptd_token_id": 367}),
    Bad("P-EAGLE of EAGLE-1", errors.UnsupportedError, "only for EAGLE-3 drafters with ordinary",
        shape=EAGLE1, add={"mask_hidden": np.ones((1, 1, 64), F32)}, edit={"ptd_token_id": 5}),
    Bad("P-EAGLE of SpecForge", errors.ConfigError, "SpecForge does not write this key", shape=PARALLEL,
        edit={"architectures": ["PEagleDraftModel"], "norm_before_residual": None}),
    Bad("experts", errors.UnsupportedError, "mixture-of-experts",
        add={"layers.0.mlp.experts.0.up_proj.weight": ones}),
    Bad("quantised", errors.UnsupportedError, "quantised checkpoint",
        add={"layers.0.mlp.up_proj.weight_scale": ones}),
    Bad("Qwen3 without its norms", errors.TensorError,
        r"Eagle3Qwen3ForCausalLM: expected the tensors q_norm and k_norm",
        edit={"architectures": ["Eagle3Qwen3ForCausalLM"]}),
    Bad("architecture", errors.UnsupportedError, "'CohereEagle3': expected one of",
        edit={"architectures": ["CohereEagle3"]}),
    Bad("eagle_config key", errors.UnsupportedError, r"eagle_config\.use_new_thing: unknown key", "modelopt",
        edit={"eagle_config": {"use_new_thing": True, "next_layer_regular": True}}),
    Bad("eagle_config value", errors.UnsupportedError, "use_mtp_layernorm: expected False for EAGLE",
        "modelopt",
        edit={"eagle_config": {"use_mtp_layernorm": True}}),
    Bad("no aux features", errors.UnsupportedError, "use_aux_hidden_state: expected True for EAGLE-3, found",
        "torchspec",
        edit={"eagle_config": {"use_aux_hidden_state": False}}),
    Bad("eagle_config type", errors.ConfigError, "eagle_config: expected an object",
        edit={"eagle_config": [1]}),
    Bad("unmarked", errors.UnsupportedError, "which program wrote it",
        edit={"architectures": ["LlamaForCausalLM"]}),
]  # fmt: skip


@pytest.mark.parametrize("bad", [*TENSORS, *CONFIG, *MAPS, *FAMILIES], ids=lambda bad: bad.id)
def test_refused_with_the_reason(bad: Bad, convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(
        tmp_path / "in", bad.family, bad.shape, edit=bad.edit, add=bad.add, drop=bad.drop
    )
    with pytest.raises(bad.error, match=bad.message) as caught:
        convert(checkpoint)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"], "a refused conversion must leave no files"


def test_all_differences_come_in_one_message(convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(
        tmp_path / "in",
        "vllm",
        add={"a.weight": ones, "b.weight": ones, "layers.0.mlp.up_proj.weight": ones},
        drop=("norm.weight", "layers.0.mlp.down_proj.weight", "layers.0.mlp.up_proj.weight"),
    )
    with pytest.raises(errors.TensorError) as caught:
        convert(checkpoint)
    said = r"missing|norm\.weight|down_proj|unknown|[ab]\.weight|wrong shape|up_proj"
    assert len(set(re.findall(said, str(caught.value)))) == 8


def test_another_directory_is_refused_by_the_missing_tensors(convert: Convert, tmp_path: Path) -> None:
    target = make_target(tmp_path, TargetSpec(n_layers=2))
    with pytest.raises(
        errors.UnsupportedError, match="not an EAGLE or block drafter: expected tensors such as"
    ):
        convert(target.directory)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TargetSpec(n_embd=32, n_layers=2), "made for hidden size 64, but the target has 32"),
        (TargetSpec(n_layers=4), "ambiguous|from 0 to 4"),
    ],
)
def test_a_target_that_does_not_fit(convert: Convert, tmp_path: Path, spec: TargetSpec, message: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "vllm")
    with pytest.raises((errors.TargetError, errors.LayerIdError), match=message):
        convert(checkpoint, target=make_target(tmp_path, spec).gguf)


@pytest.mark.parametrize("n_draft", [160, 367], ids=["some of the tokens", "all tokens"])
def test_rows_above_the_targets_tokens_are_left_out(convert: Convert, tmp_path: Path, n_draft: int) -> None:
    """Tests that rows beyond the target's vocabulary are left out. Gemma 3's checkpoints have 262,208 rows,
    but its GGUFs have 262,144 tokens. Configs of drafters have either number.
    """

    def save(directory: Path, weights: dict[str, Any]) -> None:
        padded = {
            name: np.concatenate([value, np.ones_like(value[:33]) * (name != "t2d")]).astype(value.dtype)
            for name, value in weights.items()
            if len(value) == 367
        }
        assert padded
        save_file({**weights, **padded}, directory / "model.safetensors")

    shape = DraftShape(n_draft_vocab=n_draft)
    edit = {"vocab_size": 400, "draft_vocab_size": 400 if n_draft == 367 else n_draft}
    report = convert(write_checkpoint(tmp_path / "padded", "vllm", shape, edit=edit, save=save))
    assert any("is 400, but the target has 367 tokens" in note for note in report.notes)
    expected = convert(write_checkpoint(tmp_path / "plain", "vllm", shape), out=tmp_path / "plain.gguf")
    assert key_of(report.out, f"{report.spec.architecture}.vocab_size") == 367
    check_same_tensors(report.out, expected.out)


def test_a_draft_id_above_the_targets_tokens_is_refused(convert: Convert, tmp_path: Path) -> None:
    shape = DraftShape(n_vocab=400)
    d2t = np.zeros(160, np.int64)
    d2t[-1] = 399 - 159
    checkpoint = write_checkpoint(tmp_path / "in", "vllm", shape, drop=["d2t", "t2d"], add={"d2t": d2t})
    with pytest.raises(errors.VocabMapError, match="target id 399, outside the target vocabulary of 367"):
        convert(checkpoint)


def test_a_target_with_another_vocabulary(convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "vllm", DraftShape(n_vocab=600))
    with pytest.raises(errors.TargetError, match="a vocabulary of 600 tokens, but the target has 367"):
        convert(checkpoint)
