# SPDX-License-Identifier: MIT
"""Tests faulty checkpoints, which must never be converted silently. The table has one row per check, and
every error message names the fault and the remedy. A draft head with wrong rows is detected by comparing it
with the target's head. Also tests the values that the converter reads from a target, and the refused files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from eaglecpp.convert import errors
from eaglecpp.convert.errors import GgufError, SourceError, TargetError
from eaglecpp.convert.target_info import open_target
from helpers.checkpoints import Convert, write_checkpoint
from helpers.gguf_writer import check_same_tensors, finish, key_of
from helpers.random_block import BlockShape
from helpers.random_drafter import EAGLE1, DraftShape, LatentShape
from helpers.tiny import TargetSpec, TinyTarget, make_target

from .test_block import DFLASH, DFLASH2, DSPARK, LAGUNA, PLAIN, REDUCED, dflash_config
from .test_block import GEMMA as BLOCK_GEMMA

F32 = np.float32
LATENT = DraftShape(latent=LatentShape())
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@dataclass(frozen=True)
class Bad:
    """A damaged checkpoint and its expected error message."""

    message: str
    family: str = "vllm"
    shape: DraftShape | BlockShape = field(default_factory=DraftShape)
    edit: dict[str, Any] = field(default_factory=dict)
    add: dict[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()


Q = "layers.0.self_attn.q_proj.weight"
ones, ROW = np.ones((4, 4), F32), np.ones(64, F32)
GEMMA = DraftShape(gemma="keys", n_draft_vocab=367)
PARALLEL = DraftShape(n_parallel=6)
REFUSED: dict[type[errors.EagleError], list[Bad]] = {
    errors.TensorError: [
        Bad(r"fc\.weight.*divisible by 64, the target's hidden size",
            add={"fc.weight": np.ones((64, 190), F32)}),
        Bad(r"q_proj\.weight: expected \[64, 128\], found \[64, 64\]", add={Q: np.ones((64, 64), F32)}),
        Bad(r"q_proj\.weight: expected \[128, 128\]", edit={"head_dim": 32}),
        Bad(r"missing: norm\.weight \[64\]", drop=("norm.weight",)),
        Bad(r"unknown: adapter\.weight", add={"adapter.weight": np.ones(3, F32)}),
        Bad(r"missing: fc_norm\.1\.weight \[64\]", shape=DraftShape(fc_norm=True),
            drop=("fc_norm.1.weight",)),
        Bad(r"missing: layers\.0\.self_attn\.k_proj\.bias", shape=DraftShape(attention_bias=True),
            drop=("layers.0.self_attn.k_proj.bias",)),
        Bad(r"missing: layers\.0\.self_attn\.k_norm", shape=DraftShape(qk_norm=True),
            drop=("layers.0.self_attn.k_norm.weight",)),
        Bad("expected one norm before attention, found both", shape=DraftShape(n_layers=2),
            add={"layers.1.hidden_norm.weight": ROW}),
        Bad(r"missing: layers\.1\.", add={"layers.2.input_layernorm.weight": ROW}),
        Bad(r"lm_head\.weight: expected \[150, 64\], found \[160, 64\]", edit={"draft_vocab_size": 150}),
        Bad(r"embed_tokens\.weight: expected \[367, 64\], found \[300, 64\]",
            add={"embed_tokens.weight": np.ones((300, 64), F32)}),
        Bad(r"no lm_head\.weight, and the target's do not fit", drop=("lm_head.weight",)),
        Bad(r"norm\.weight: contains NaN", add={"norm.weight": np.full(64, np.nan, F32)}),
        Bad(r"expected floating point values, found integers in: norm\.weight \(I32\)",
            add={"norm.weight": np.ones(64, np.int32)}),
        Bad(r"unknown: norm\.weight", shape=EAGLE1, add={"norm.weight": ROW}),
        Bad(r"missing: norm\.weight", shape=replace(EAGLE1, eagle1_norms=True), drop=("norm.weight",)),
        Bad(r"unknown: layers\.0\.self_attn\.v_proj", shape=replace(GEMMA, gemma="values"),
            edit={"attention_k_eq_v": True}),
        Bad(r"missing: layers\.0\.self_attn\.q_proj\.weight.*unknown.*q_a", shape=LATENT,
            edit={"q_lora_rank": None}),
        Bad(r"Eagle3Qwen3ForCausalLM: expected the tensors q_norm and k_norm",
            edit={"architectures": ["Eagle3Qwen3ForCausalLM"]}),
        # Block drafters.
        Bad(r"g_proj.weight: expected \[4, 64\], found \[64, 64\]", shape=LAGUNA,
            edit={"gating": "per-element"}, add={"layers.0.self_attn.g_proj.weight": np.ones((64, 64), F32)}),
        Bad(r"unknown: layers.0.self_attn.qkv_proj.weight \[4, 4\]", shape=LAGUNA,
            add={"layers.0.self_attn.qkv_proj.weight": ones}),
        Bad(r"missing: layers.1.self_attn.g_proj.weight \[4, 64\]", shape=LAGUNA,
            drop=("layers.1.self_attn.g_proj.weight",)),
        Bad(r"missing: layers\.0\.self_attn\.q_norm", shape=DFLASH,
            drop=("layers.0.self_attn.q_norm.weight",)),
        Bad(r"unknown: layers\.0\.hidden_norm", shape=DFLASH,
            add={"layers.0.hidden_norm.weight": np.ones(64, F32)}),
        Bad(r"predecessor_codebook: expected \[367, 8\]", shape=DFLASH2,
            add={"candidate_selector.predecessor_codebook": np.ones((367, 9), F32)}),
        Bad("no lm_head.weight, and the target's", shape=replace(REDUCED, own_tables=False)),
    ],
    errors.CheckpointError: [
        Bad("have the same role; remove one", add={"model.norm.weight": ROW}),
    ],
    errors.ConfigError: [
        Bad(r"fc_norm is true, but the checkpoint has no tensor fc_norm\.\*", edit={"fc_norm": True}),
        Bad(r"tensor fc_norm\.0\.weight, but config\.json does not set fc_norm",
            shape=DraftShape(fc_norm=True), edit={"fc_norm": None}),
        Bad("norm_before_fc is true", edit={"norm_before_fc": True}),
        Bad("True at the top level and False in eagle_config", shape=DraftShape(norm_before_fc=True),
            edit={"eagle_config": {"norm_before_fc": False}}),
        Bad("norm_output: expected true or false, found 'yes'", edit={"norm_output": "yes"}),
        Bad("hidden_size: expected a positive integer, found no such key", edit={"hidden_size": None}),
        Bad("head_dim: expected an even number", edit={"head_dim": 15}),
        Bad("hidden_size 64 is not divisible by 5", edit={"head_dim": None, "num_attention_heads": 5}),
        Bad("expected a list of integers, found", edit={"eagle_aux_hidden_state_layer_ids": [True, 4, 5]}),
        Bad("draft_vocab_size: expected at most vocab_size 367, found 400", edit={"draft_vocab_size": 400}),
        Bad("rms_norm_eps: expected a positive number", edit={"rms_norm_eps": 0}),
        Bad(r"no embed_tokens\.weight\. Add this tensor",
            shape=DraftShape(n_draft_vocab=367, own_head=False, own_embedding=False),
            edit={"tie_word_embeddings": True}),
        Bad("use_sliding_window is true, but layer_types",
            edit={"use_sliding_window": True, "sliding_window": 64}),
        Bad("sliding_window is not set", edit={"layer_types": ["sliding_attention"]}),
        Bad("expected 2 entries, full_attention or", shape=DraftShape(n_layers=2),
            edit={"layer_types": ["full_attention"]}),
        Bad("norm_before_residual: expected true or false, found no such key", family="speculators",
            edit={"norm_before_residual": None}),
        Bad("transformer_layer_config: expected an object", family="speculators",
            edit={"transformer_layer_config": 3}),
        Bad(r"rope_parameters and rope_scaling contradict each other: factor is 8\.0 and 4\.0",
            edit={"rope_parameters": {**YARN, "rope_theta": 1e4, "factor": 8.0}, "rope_scaling": YARN}),
        Bad(r"bias is True, but the checkpoint has no tensor fc\.bias", shape=EAGLE1, edit={"bias": True}),
        Bad(r"qkv_bias is False, but the checkpoint has a tensor",
            shape=replace(EAGLE1, attention_bias=True), edit={"qkv_bias": False}),
        Bad("expected an object for full_attention", shape=GEMMA,
            edit={"rope_parameters": {"rope_type": "default"}}),
        Bad("partial_rotary_factor above 0, up to 1", shape=GEMMA,
            edit={"rope_parameters": {"full_attention": {"rope_type": "proportional",
                                                         "partial_rotary_factor": 1.5}}}),
        Bad("qk_nope_head_dim", add={"layers.0.self_attn.kv_a_proj_with_mqa.weight": ones}),
        Bad("qk_rope_head_dim: expected an even number", shape=LATENT, edit={"qk_rope_head_dim": 7}),
        Bad("expected one mask token id in pard_token", shape=PARALLEL, edit={"ptd_token_id": None}),
        Bad(r"found \{'ptd_token_id': 5, 'mask_token_id': 6\}", shape=PARALLEL, edit={"mask_token_id": 6}),
        Bad("a token id below 367, found 367", shape=PARALLEL, edit={"ptd_token_id": 367}),
        Bad("SpecForge does not write this key", shape=PARALLEL,
            edit={"architectures": ["PEagleDraftModel"], "norm_before_residual": None}),
        Bad("eagle_config: expected an object", edit={"eagle_config": [1]}),
        # Block drafters.
        Bad("attention_sink_bias is True", shape=DFLASH, edit=dflash_config(attention_sink_bias=True)),
        Bad("attention_value_scale: expected", shape=DFLASH, edit={"attention_value_scale": -0.7}),
        Bad("dspark_markov_rank: expected 8, found 4", shape=DSPARK, edit={"dspark_markov_rank": 4}),
        Bad(r"markov_rank: expected 8, found 16", shape=DSPARK, edit={"markov_rank": 16}),
        Bad("markov_rank: expected 0, because the", shape=PLAIN, edit={"markov_rank": 8}),
        Bad("enable_confidence_head is False", shape=DSPARK, edit={"enable_confidence_head": False}),
        Bad("enable_confidence_head is True", shape=PLAIN, edit={"enable_confidence_head": True}),
        Bad("shift_label and dspark_bonus_anchor contradict", shape=DSPARK,
            edit={"shift_label": True, "dspark_bonus_anchor": True}),
        Bad("use_confidence_head is True", shape=PLAIN, edit={"use_confidence_head": True}),
        Bad("causal: expected true or false, because use_swa", shape=DFLASH,
            edit={"use_swa": True, "swa_window_size": 6,
                  "layer_types": ["sliding_attention", "full_attention"]}),
        Bad("sample_from_anchor: expected true or false", shape=DSPARK,
            edit={"architectures": ["DFlashDraftModel"]}),
        Bad("mask_token_id: expected .* found 367", shape=DSPARK, edit={"mask_token_id": 367}),
        Bad("mask_token_id: expected .* found None", shape=DSPARK, edit={"mask_token_id": None}),
        Bad("block_size: expected 2 to 64", shape=DFLASH, edit={"block_size": 1}),
        Bad("block_size: expected 2 to 64", shape=DFLASH, edit={"block_size": 65}),
        Bad("selector_rank: expected a tensor", shape=DFLASH, edit={"selector_rank": 8}),
        Bad("selector_top_k: expected at most 367", shape=DFLASH2,
            edit={"dflash_config": {**DFLASH2.config()["dflash_config"], "selector_top_k": 368}}),
        Bad("logit_scale: expected a positive", shape=DFLASH, edit={"output_multiplier": 0.0}),
        Bad("input_embedding_scale: expected a number.*found 1e[+]300", shape=DFLASH,
            edit={"input_embedding_scale": 1e300}),
        Bad("conv_group_size 24 must divide", shape=replace(DFLASH2, group=16),
            edit={"dflash_config": {**DFLASH2.config()["dflash_config"], "conv_group_size": 24}}),
        Bad("dflash_config: expected an object", shape=DFLASH, edit={"dflash_config": 3}),
        Bad("num_target_layers: expected a positive integer", shape=DSPARK,
            edit={"target_layer_ids": None, "num_target_layers": None}),
        Bad("num_hidden_layers: expected at most 256", shape=DFLASH,
            edit={"num_hidden_layers": 2**30, "use_swa": True, "swa_window_size": 6}),
    ],
    errors.UnsupportedError: [
        Bad("hidden_act: expected silu, found 'gelu'", edit={"hidden_act": "gelu"}),
        Bad("in the layout of speculators", edit={"architectures": ["EagleSpeculator"]}),
        Bad("target_layer_ids: expected the layers", "deepspec", edit={"target_layer_ids": None}),
        Bad("reads the embedding again", "deepspec", shape=DraftShape(n_layers=2)),
        Bad(r"layer_scalar: expected 1", shape=GEMMA, add={"layers.0.layer_scalar": np.full(1, 0.5, F32)}),
        Bad("Gemma 4 layers with experts", shape=GEMMA, edit={"enable_moe_block": True}),
        Bad("expected gelu_pytorch_tanh, found 'silu'", shape=GEMMA, edit={"hidden_activation": "silu"}),
        Bad(r"DFlashDraftModel: expected .*found no hidden_norm\.weight",
            edit={"architectures": ["DFlashDraftModel"]}),
        Bad("expected a block drafter's tensors", "speculators", edit={"speculators_model_type": "dflash"}),
        Bad("multi-token prediction", edit={"architectures": ["MiMoMTPModel"]}),
        Bad("multi-token prediction", add={"model.layers.0.eh_proj.weight": ones}),
        Bad("Megatron exports of Model Optimizer", add={"midlayer.1.mlp.up_proj.weight": ones}),
        Bad("EAGLE-1 drafters exported by Megatron", edit={"architectures": ["LlamaForCausalLMEagle"]},
            add={"enorm.weight": ROW}),
        Bad("EAGLE 1 and 2 drafters with latent attention", shape=EAGLE1,
            add={"layers.0.self_attn.kv_a_proj_with_mqa.weight": ones}),
        Bad("drafters with latent attention", shape=GEMMA,
            add={"layers.0.self_attn.kv_a_proj_with_mqa.weight": ones}),
        Bad("the checkpoint has no tensor kv_a_proj_with_mqa",
            edit={"architectures": ["Eagle3DeepseekV2ForCausalLM"]}),
        Bad("rope_interleave: expected true", shape=LATENT, edit={"rope_interleave": False}),
        Bad("mla_use_output_gate: expected false", shape=LATENT, edit={"mla_use_output_gate": True}),
        Bad("mla_use_nope is true.*found 'Eagle3L", shape=LATENT,
            edit={"mla_use_nope": True, "architectures": ["Eagle3LlamaForCausalLM"]}),
        Bad("rope type 'linear': expected default or yarn", shape=LATENT,
            edit={"rope_scaling": {"type": "linear", "factor": 2.0}}),
        Bad("rope type yarn are not supported", "automodel", shape=LATENT, edit={"rope_scaling": YARN}),
        Bad("attention_factor: latent attention supports", shape=LATENT,
            edit={"rope_scaling": {**YARN, "attention_factor": 1.0}}),
        Bad("rope type 'deepseek_yarn' is not supported",
            edit={"rope_scaling": {**YARN, "type": "deepseek_yarn"}}),
        Bad("without P-EAGLE's tensor mask_hidden", "speculators",
            edit={"speculators_model_type": "peagle"}),
        Bad("parallel drafters without", edit={"pard_token": 5}),
        Bad("only for EAGLE-3 drafters with ordinary", shape=EAGLE1, edit={"ptd_token_id": 5},
            add={"mask_hidden": np.ones((1, 1, 64), F32)}),
        Bad("mixture-of-experts", add={"layers.0.mlp.experts.0.up_proj.weight": ones}),
        Bad("quantised checkpoint", add={"layers.0.mlp.up_proj.weight_scale": ones}),
        Bad("'CohereEagle3': expected one of", edit={"architectures": ["CohereEagle3"]}),
        Bad(r"eagle_config\.use_new_thing: unknown key", "modelopt",
            edit={"eagle_config": {"use_new_thing": True, "next_layer_regular": True}}),
        Bad("use_mtp_layernorm: expected False for EAGLE", "modelopt",
            edit={"eagle_config": {"use_mtp_layernorm": True}}),
        Bad("use_aux_hidden_state: expected True for EAGLE-3, found", "torchspec",
            edit={"eagle_config": {"use_aux_hidden_state": False}}),
        Bad("which program wrote it", edit={"architectures": ["LlamaForCausalLM"]}),
        # Block drafters.
        Bad("Domino's recurrent head", shape=DFLASH, edit={"architectures": ["DominoDraftModel"]}),
        Bad("Domino's recurrent head", shape=DFLASH, edit=dflash_config(projector_type="domino")),
        Bad("JetSpec's shifted positions", shape=DFLASH, edit=dflash_config(causal_head=True)),
        Bad("JetSpec's shifted positions", shape=DFLASH, edit={"draft_shift": True}),
        Bad("DeepSeek-V4's blocks", shape=DFLASH, edit={"dspark_block_size": 5}),
        Bad("DeepSeek-V4's blocks", shape=DSPARK, add={"mtp.0.main_proj.weight": ones}),
        Bad("fused or gated attention", shape=DFLASH, add={"layers.0.self_attn.qkv_proj.weight": ones}),
        Bad("Markov head of type 'gated'", shape=DSPARK, edit={"markov_head_type": "gated"}),
        Bad("multiply by 1 [+] weight", shape=DFLASH, edit={"use_gemma_norm": True}),
        Bad("head of type 'rnn'", shape=DSPARK, edit={"dspark_fixup_head_type": "rnn"}),
        Bad("log_snr_conditioning", shape=DSPARK, edit={"log_snr_conditioning": True}),
        Bad("DFlash2 drafters with a Markov head", shape=DFLASH2, edit={"sample_from_anchor": True}),
        Bad("layer_types: expected full_attention for every layer", shape=BLOCK_GEMMA,
            edit={"layer_types": ["sliding_attention", "full_attention"]}),
        Bad("expected at least 5, the block size", shape=replace(DFLASH, window=4)),
        Bad("XPress", shape=DFLASH,
            edit={"architectures": ["XPressSpeculator"], "speculators_model_type": "xpress"}),
        Bad("projector_type 'foo'", shape=DFLASH, edit={"projector_type": "foo"}),
        Bad("DFlash2 without its selector", shape=DFLASH, edit={"architectures": ["DFlash2DraftModel"]}),
    ],
    errors.VocabMapError: [
        Bad("neither d2t nor t2d", drop=("d2t", "t2d")),
        Bad(r"d2t: expected shape \[160\]", add={"d2t": np.zeros(159, np.int64)}),
        Bad("found 5 then 5 at draft ids 0 and 1", add={"d2t": np.array([5, 4, *[4] * 158], np.int64)},
            drop=("t2d",)),
        Bad("draft id 159 maps to target id 459, outside",
            add={"d2t": np.array([0] * 159 + [300], np.int64)}, drop=("t2d",)),
        Bad("target id 399, outside the target vocabulary of 367", shape=DraftShape(n_vocab=400),
            add={"d2t": np.array([0] * 159 + [240], np.int64)}, drop=("t2d",)),
        Bad("values are 0", add={"d2t": np.zeros(160, np.int64)}, drop=("t2d",)),
        Bad("expected int64 or int32", add={"d2t": np.zeros(160, F32)}),
        Bad(r"t2d: expected shape \[367\]", add={"t2d": np.ones(200, bool)}),
        Bad("t2d: expected 160 marked tokens.*found 367", add={"t2d": np.ones(367, bool)}),
    ],
    errors.LayerIdError: [
        # Block drafters.
        Bad("the order of the columns of fc.weight", shape=DSPARK, edit={"target_layer_ids": [3, 1, 4]}),
        Bad("to be larger by 1", shape=DSPARK, edit={"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}),
    ],
    errors.TargetError: [
        Bad("a vocabulary of 600 tokens, but the target has 367", shape=DraftShape(n_vocab=600)),
        # Block drafters.
        Bad("made for a model of 30 layers, but the target has 8", shape=DSPARK,
            edit={"num_target_layers": 30}),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("error", "bad"), [(error, bad) for error, all_ in REFUSED.items() for bad in all_])
def test_refused_with_the_reason(error: type[Exception], bad: Bad, convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(
        tmp_path / "in", bad.family, bad.shape, edit=bad.edit, add=bad.add, drop=bad.drop
    )
    with pytest.raises(error, match=bad.message) as caught:
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


# Comparison with the target's head


def with_head(
    tmp_path: Path, target: TinyTarget, rows: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Path:
    """Returns a drafter whose head consists of the rows `rows(offsets, ids)` of the target's head, plus a
    little noise, as after training.
    """
    shape = DraftShape()
    offsets = shape.weights()["d2t"]
    head = target.weights["lm_head.weight"][rows(offsets, offsets + np.arange(shape.n_draft_vocab))]
    noise = np.random.default_rng(2).normal(0, 0.2 * head.std(), head.shape)
    add = {"lm_head.weight": (head + noise).astype(np.float32)}
    return write_checkpoint(tmp_path / "in", "torchspec", shape, add=add)


def test_rows_gathered_by_offsets_are_refused(convert: Convert, target: TinyTarget, tmp_path: Path) -> None:
    checkpoint = with_head(tmp_path, target, lambda offsets, ids: offsets)
    with pytest.raises(errors.VocabMapError, match="The exporter used offsets as ids"):
        convert(checkpoint)


def test_rows_gathered_by_id_are_confirmed(convert: Convert, target: TinyTarget, tmp_path: Path) -> None:
    report = convert(with_head(tmp_path, target, lambda offsets, ids: ids))
    assert any("the draft head resembles the target's" in note for note in report.notes)


def test_a_head_trained_from_scratch_proves_nothing(converted: Convert) -> None:
    report = converted("torchspec")
    assert not any("resembles" in note for note in report.notes)


def test_an_end_of_text_that_can_never_be_drafted_is_noted(converted: Convert) -> None:
    shape = DraftShape()
    assert not shape.weights()["t2d"][1], "the drafter must not be able to draft token 1"
    report = converted("torchspec", shape)
    assert "the target's end-of-sequence token 1 is outside the draft vocabulary" in report.notes


# Targets


def head_only(path: Path, arch: str, **keys: int) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    for name, value in keys.items():
        writer.add_uint32(f"{arch}.{name}", value)
    writer.add_token_list(["a", "b"])
    finish(writer)
    return path


def test_prediction_layers_are_not_blocks_of_the_target(tmp_path: Path) -> None:
    path = head_only(
        tmp_path / "x.gguf", "glm4moe", block_count=47, nextn_predict_layers=1, embedding_length=8
    )
    assert open_target(path).block_count == 46


@pytest.mark.parametrize("arch", ["eagle3", "eagle31", "dflash", "clip"])
def test_a_drafter_or_projector_is_not_a_target(arch: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=f"expected a target model, found architecture '{arch}'"):
        open_target(head_only(tmp_path / "x.gguf", arch, block_count=1, embedding_length=8))


@pytest.mark.parametrize("keys", [{"block_count": 2}, {"block_count": 0, "embedding_length": 8}])
def test_a_target_without_sizes(keys: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="expected a positive integer"):
        open_target(head_only(tmp_path / "x.gguf", "llama", **keys))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected the target's GGUF file"):
        open_target(tmp_path / "none.gguf")
    with pytest.raises(SourceError, match="found a folder"):
        open_target(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    with pytest.raises(GgufError, match="not a GGUF file"):
        open_target(tmp_path / "x.gguf")
