# SPDX-License-Identifier: MIT
"""Tests the conversion of block drafters. Every layout of a drafter becomes the same file. Slots, layers and
masks follow the conventions of the drafter's family. If llama.cpp runs a file correctly, the file gets
llama.cpp's architecture name. test_refusals.py tests the refusals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from eaglecpp.convert import errors, inspect_file, open_choices
from eaglecpp.lowlevel import DraftFile
from helpers.checkpoints import Convert
from helpers.gguf_writer import check_same_tensors, key_of, tensors_of
from helpers.random_block import BlockShape
from helpers.tiny import TinyTarget, write_files
from helpers.tiny_split import rewrite

Config = dict[str, Any]
F32 = np.float32
THETA = {"rope_theta": 10000.0}

DFLASH, DSPARK, DFLASH2 = BlockShape(), BlockShape("dspark"), BlockShape("dflash2")
LAGUNA = BlockShape(gated=True, window=6, causal=True)
BARE = BlockShape("dspark", own_tables=False)
PLAIN = BlockShape("dspark", rank=0, confidence=False)  # DeepSpec calls this drafter "DFlash"
REDUCED = BlockShape("dspark", n_draft_vocab=160)
GEMMA = BlockShape("dspark", gemma="keys")
UNCAPPED = {"final_logit_softcapping": None}
_HEADS = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
_TOLD = ("mask_token_id", "target_layer_ids")


def keys(path: Path) -> Config:
    """Returns the keys of the drafter's architecture, without the architecture's prefix."""
    return {
        name.partition(".")[2]: field.contents()
        for name, field in gguf.GGUFReader(path).fields.items()
        if name.startswith("dflash")
    }


def without(config: Config, *names: str) -> Config:
    return {key: value for key, value in config.items() if key not in names}


def dflash_config(**values: Any) -> Config:
    return {"dflash_config": {**DFLASH.config()["dflash_config"], **values}}


def specforge(config: Config, weights: Config) -> tuple[Config, Config]:
    nested = {key: config[key] for key in (*_HEADS, *_TOLD)} | {"projector_type": "dspark"}
    config = without(config, *nested) | {"architectures": ["DSparkDraftModel"], "dflash_config": nested}
    return config, weights


def early_specforge(config: Config, weights: Config) -> tuple[Config, Config]:
    heads = ("markov_head.", "confidence_head.")
    weights = {f"logit_head.{n}" if n.startswith(heads) else n: w for n, w in weights.items()}
    return specforge(config, weights)


def speculators(config: Config, weights: Config) -> tuple[Config, Config]:
    """Layout of speculators for any kind of block drafter, with a nested layer config and boundary ids."""
    kind = "dflash2" if "candidate_selector.hidden_projection.weight" in weights else "dflash"
    kind = "dspark" if "markov_rank" in config else kind
    top = {"speculators_model_type": kind, "architectures": ["DSparkSpeculator"]}
    if kind == "dspark":
        top["sample_from_anchor"] = True
    flat = {**config, **config.pop("dflash_config", {})}
    top["aux_hidden_state_layer_ids"] = [k + 1 for k in flat["target_layer_ids"]]
    own = (*_HEADS, "mask_token_id", "block_size", "draft_vocab_size", "conv_kernel_size", "conv_group_size",
           "selector_rank", "selector_top_k")  # fmt: skip
    top |= {key: flat[key] for key in own if key in flat}
    layer = without(flat, *top, "target_layer_ids", "num_target_layers")
    return top | {"transformer_layer_config": layer}, {**weights, "verifier_norm.weight": np.ones(64, F32)}


def liquid(config: Config, weights: Config) -> tuple[Config, Config]:
    """Layout of Liquid, in which RoPE rotates neighbouring pairs."""

    def paired(value: NDArray[F32]) -> NDArray[F32]:
        return value.reshape(-1, 2, 8, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)

    turned = (".q_proj.", ".k_proj.", ".q_norm.", ".k_norm.")
    weights = {n: paired(w) if any(x in n for x in turned) else w for n, w in weights.items()}
    config, weights = specforge(config, weights)
    return config | {"architectures": ["Lfm2DSparkDraftModel"], "rope_is_neox_style": False}, weights


def muse(config: Config, weights: Config) -> tuple[Config, Config]:
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    config = {**without(config, "dflash_config"), **config["dflash_config"]}
    weights = {names.get(name, f"model.{name}"): value for name, value in weights.items()}
    return config | {"architectures": ["MuseGlimmerAssistantModel"]}, weights


def nemotron(config: Config, weights: Config) -> tuple[Config, Config]:
    ids = [k + 1 for k in config["target_layer_ids"]]
    weights = {name.replace(".sinks", ".attention_sink_bias"): value for name, value in weights.items()}
    return config | {"eagle_aux_hidden_state_layer_ids": ids, "attention_sink_bias": True}, weights


def model_optimizer(config: Config, weights: Config) -> tuple[Config, Config]:
    """Layout in which Model Optimizer exports a DSpark drafter."""
    nested = {key: config[key] for key in ("markov_rank", "markov_head_type", *_TOLD)}
    nested |= {"projector_type": "dspark", "shift_label": True, "use_confidence_head": True, "causal": False}
    weights = {
        name.replace("markov_head.", "").replace("confidence_head.proj.", "confidence_proj."): value
        for name, value in weights.items()
    }
    config = without(config, *_HEADS, *_TOLD)
    return config | {"architectures": ["DFlashDraftModel"], "dflash_config": nested}, weights


def torchspec(config: Config, weights: Config) -> tuple[Config, Config]:
    """Layout of TorchSpec, in which num_target_layers is the number of features."""
    return config | {"num_target_layers": 3, "target_num_hidden_layers": 8}, weights


def renamed(name: str) -> Layout:
    return lambda config, weights: (config | {"architectures": [name]}, weights)


Layout = Callable[[Config, Config], tuple[Config, Config]]
LAYOUTS: tuple[tuple[Layout, BlockShape, str], ...] = (
    (specforge, BARE, "specforge-block"),
    (early_specforge, BARE, "specforge-block"),
    (speculators, DFLASH, "speculators-block"),
    (speculators, DSPARK, "speculators-block"),
    (speculators, REDUCED, "speculators-block"),
    (speculators, DFLASH2, "speculators-block"),
    (liquid, BARE, "liquid"),
    (renamed("LingDSparkModel"), BARE, "deepspec-block"),
    (renamed("Qwen3DFlashDraftModel"), DFLASH, "z-lab"),
    (renamed("Qwen3DFlash2DraftModel"), DFLASH2, "z-lab"),
    (renamed("QwenDFlashDraftModel"), DFLASH, "z-lab"),
    (model_optimizer, BARE, "z-lab"),
    (torchspec, DFLASH, "z-lab"),
    (lambda config, w: (config | {"markov_head_type": "Vanilla"}, w), BARE, "deepspec-block"),
    (muse, DFLASH, "muse"),
    (nemotron, replace(BARE, sinks=True), "deepspec-block"),
)


@pytest.mark.parametrize(("layout", "shape", "family"), LAYOUTS)
def test_every_layout_becomes_the_same_file(
    layout: Layout, shape: BlockShape, family: str, convert: Convert, tmp_path: Path
) -> None:
    reference = convert(shape.write(tmp_path / "ref"), out=tmp_path / "ref.gguf")
    report = convert(write_files(tmp_path / "in", *layout(shape.config(), shape.weights())))
    assert key_of(report.out, "eaglecpp.family") == family
    assert keys(report.out) == keys(reference.out) | {"target_layers": [2, 4, 5]}
    check_same_tensors(report.out, reference.out)


@pytest.mark.parametrize(
    ("shape", "arch", "kind", "anchor_first", "n_drafts"),
    [
        (DFLASH, "dflash", "DFlash", False, 4),
        (DFLASH2, "dflash", "DFlash2", False, 4),
        (DSPARK, "dflash", "DSpark", True, 5),
        (PLAIN, "dflash_ex", "DFlash", True, 5),
        (replace(DSPARK, extra={"sample_from_anchor": False}), "dflash", "DSpark", False, 4),
        (replace(DFLASH, extra={"sample_from_anchor": True}), "dflash_ex", "DFlash", True, 5),
        (replace(DFLASH, window=6, full_layers=(1,)), "dflash_ex", "DFlash", False, 4),
        (replace(DFLASH, window=6, full_layers=(1,), causal=False), "dflash", "DFlash", False, 4),
        (replace(DFLASH, extra={"output_multiplier": 0.5}), "dflash", "DFlash", False, 4),
        (replace(DSPARK, extra={"output_multiplier": 0.5}), "dflash_ex", "DSpark", True, 5),
        (replace(DFLASH2, top_k=8), "dflash_ex", "DFlash2", False, 4),
        (LAGUNA, "dflash_ex", "DFlash", False, 4),
        (replace(DSPARK, target_head=True), "dflash_ex", "DSpark", True, 5),
        (GEMMA, "dflash_ex", "DSpark", True, 5),
        (replace(GEMMA, extra=UNCAPPED), "dflash", "DSpark", True, 5),
        (replace(GEMMA, gemma="values", extra=UNCAPPED), "dflash_ex", "DSpark", True, 5),
    ],
)  # fmt: skip
def test_slots_and_architecture(
    shape: BlockShape,
    arch: str,
    kind: str,
    anchor_first: bool,
    n_drafts: int,
    convert: Convert,
    tmp_path: Path,
) -> None:
    """Tests that the slots follow from the drafter's class, unless the config states the slots. If llama.cpp
    would run a file wrongly, the file must not get llama.cpp's architecture name.
    """
    report = convert(shape.write(tmp_path / "in"))
    block = report.spec.block
    assert block is not None
    assert (report.spec.architecture, block.kind, block.anchor_first, block.n_drafts) == (
        arch, kind, anchor_first, n_drafts
    )  # fmt: skip
    assert DraftFile(str(report.out)).info["n_parallel"] == n_drafts
    assert keys(report.out)["sample_from_anchor"] is anchor_first
    assert ("rope.type" in keys(report.out)) == (arch == "dflash_ex")
    facts = inspect_file(report.out)
    assert (facts["kind"], facts["rope"]["type"], facts["switches"]["bias"]) == ("drafter", "neox", False)
    assert facts["runs_in_llama_cpp"] == (arch == "dflash")
    assert (facts["block"]["kind"], facts["block"]["anchor_first"]) == (kind, anchor_first)


@pytest.mark.parametrize(
    ("shape", "causal", "layout"),
    [
        (DFLASH, (False, False), None),
        (replace(DFLASH, window=6), (True, True), None),
        (replace(DFLASH, window=6, full_layers=(0,)), (False, True), None),
        (replace(DFLASH, window=6, extra=dflash_config(causal=False)), (False, False), None),
        (replace(DFLASH, window=6, causal=True, full_layers=(0,)), (True, True), None),
        (replace(DFLASH, extra={"use_swa": True, "swa_window_size": 6}), (False, False), None),
        (replace(DFLASH, extra={"use_swa": True, "swa_window_size": 6, "causal": True}), (True, True), None),
        (replace(DFLASH, window=6, extra={"use_swa": True, "swa_window_size": 6}), (True, True), None),
        (replace(DFLASH, window=6, extra={"sliding_window_non_causal": True}), (False, False), None),
        # The rows of DSpark and DFlash see only rows before them, and the rows of DFlash2 the whole block.
        *((replace(x, window=6), (x is not DFLASH2,) * 2, speculators) for x in (DFLASH, DSPARK, DFLASH2)),
    ],
)  # fmt: skip
def test_visible_rows_of_a_block(
    shape: BlockShape, causal: tuple[bool, ...], layout: Layout | None, convert: Convert, tmp_path: Path
) -> None:
    files = (shape.config(), shape.weights())
    block = convert(write_files(tmp_path / "in", *(layout(*files) if layout else files))).spec.block
    assert block is not None
    assert (block.causal, block.anchor_first) == (causal, shape.kind == "dspark")


def test_speculative_tokens_decide_the_first_slot_of_speculators_dspark(
    convert: Convert, target: TinyTarget, tmp_path: Path
) -> None:
    """Without speculative_tokens, the first slot is a choice. By default the anchor's slot is unused, as in
    the first release.
    """
    config, weights = speculators(DSPARK.config(), DSPARK.weights())
    size, both = config["block_size"], ("in-place", "anchor-first")
    for i, (tokens, values, anchor_first) in enumerate(
        ((size - 1, None, False), (size, None, True), (3, both, False), (None, both, False))
    ):
        methods = [{"proposal_type": "greedy", "speculative_tokens": tokens}]
        edited = {**config, "sample_from_anchor": None, "speculators_config": {"proposal_methods": methods}}
        checkpoint = write_files(tmp_path / str(i), edited, weights)
        choices = {choice.name: choice.values for choice in open_choices(checkpoint, target.gguf)}
        assert choices.get("slots") == values
        block = convert(checkpoint).spec.block
        assert block is not None and block.anchor_first == anchor_first
        if tokens == size - 1:
            write_files(checkpoint, {**edited, "sample_from_anchor": True}, weights)
            with pytest.raises(
                errors.ConfigError, match=r"sample_from_anchor is True.*speculative_tokens .* found 4"
            ):
                convert(checkpoint)


def test_a_nested_window_wins(convert: Convert, tmp_path: Path) -> None:
    """Tests that the window in the nested config takes precedence, as in vLLM and llama.cpp, also without
    use_swa.
    """
    shape = replace(DFLASH, window=9, extra=dflash_config(swa_window_size=6))
    assert convert(shape.write(tmp_path / "in")).spec.sliding_window == 6


def test_a_missing_block_size_must_be_given(convert: Convert, target: TinyTarget, tmp_path: Path) -> None:
    checkpoint = replace(DFLASH, extra={"block_size": None}).write(tmp_path / "in")
    (choice,) = open_choices(checkpoint, target.gguf)
    assert (choice.name, choice.is_open) == ("block_size", True)
    with pytest.raises(errors.ConfigError, match=r"no block_size.*--reading block_size=16 or"):
        convert(checkpoint)
    block = convert(checkpoint, readings={"block_size": 5}).spec.block
    assert block is not None and block.size == 5
    with pytest.raises(errors.ConfigError, match=r"block_size: expected a positive integer, found 5\.5"):
        convert(checkpoint, readings={"block_size": 5.5})


def test_partly_rotated_heads_are_a_choice(convert: Convert, target: TinyTarget, tmp_path: Path) -> None:
    """Tests partial_rotary_factor, which DeepSpec copies from Qwen3.5 and 3.6. DeepSpec's class ignores the
    key and rotates whole heads, but vLLM rotates only a part of each head, so the user must choose.
    """
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1], "mrope_interleaved": True}  # fmt: skip
    checkpoint = replace(DSPARK, extra={"rope_parameters": rope, "rope_theta": None}).write(tmp_path / "in")
    (choice,) = open_choices(checkpoint, target.gguf)
    assert (choice.name, choice.values) == ("partial_rotary", ("ignored", "applied"))
    for reading, n_dims in ((None, 16), ("ignored", 16), ("applied", 4)):
        report = convert(checkpoint, readings={"partial_rotary": reading} if reading else {})
        assert keys(report.out)["rope.dimension_count"] == n_dims
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64} | THETA
    checkpoint = replace(DSPARK, extra={"rope_parameters": yarn, "partial_rotary_factor": 0.25})
    with pytest.raises(errors.UnsupportedError, match="RoPE covers whole heads"):
        convert(checkpoint.write(tmp_path / "yarn"))


def test_a_head_left_out_by_the_converter(convert: Convert, target: TinyTarget, tmp_path: Path) -> None:
    """Tests files whose head llama.cpp's converter left out. It drops DeepSpec's copy of the head, and
    llama.cpp then uses the embeddings as the head.
    """
    whole = convert(DSPARK.write(tmp_path / "in"))
    silent = rewrite(
        whole.out,
        tmp_path / "silent.gguf",
        lambda tensors: tensors.pop("output.weight"),
        {"dflash.sample_from_anchor": None},
    )
    (choice,) = open_choices(silent, target.gguf)
    assert (choice.name, choice.values) == ("head", ("target", "embeddings"))
    for readings, has_head in (({}, False), ({"head": "embeddings"}, True)):
        report = convert(silent, out=tmp_path / "again.gguf", readings=readings)
        assert report.spec.block is not None
        assert (report.spec.has_head, report.spec.block.target_head) == (has_head, not has_head)
        assert any("uses the embeddings as the head" in note for note in report.notes) != has_head


@pytest.mark.parametrize(
    ("edit", "layers", "rule"),
    [
        ({}, (2, 4, 5), "post+1"),
        ({"target_layer_ids": [-1, 3, 4]}, (0, 4, 5), "post+1"),
        ({"target_layer_ids": [2, 4, 5]}, (3, 5, 6), "post+1"),  # these layer ids look like EAGLE's default
        ({"target_layer_ids": [1, 3, 7]}, (2, 4, 8), "post+1"),
        ({"target_layer_ids": None, "num_hidden_layers": 3}, (2, 4, 6), "post+1"),
        (
            {"target_layer_ids": None, "num_target_layers": 3, "target_num_hidden_layers": 8},
            (2, 4, 6),
            "post+1",
        ),
        ({"target_layer_ids": None, "eagle_aux_hidden_state_layer_ids": [0, 4, 5]}, (0, 4, 5), "post+1"),
    ],
)
def test_layer_ids_count_the_block_before(
    edit: Config, layers: tuple[int, ...], rule: str, convert: Convert, tmp_path: Path
) -> None:
    shape = replace(BARE, n_layers=edit.get("num_hidden_layers", 2), extra=edit)
    report = convert(shape.write(tmp_path / "in"))
    assert (report.spec.aux_layers, report.spec.layer_ids_rule) == (layers, rule)
    assert report.spec.architecture == ("dflash_ex" if 8 in layers else "dflash")
    assert any("before the norm" in note for note in report.notes) == (8 in layers)


def test_layer_ids_can_be_given(convert: Convert, tmp_path: Path) -> None:
    checkpoint = DFLASH.write(tmp_path / "in")
    assert convert(checkpoint, readings={"layer_ids": "boundary"}).spec.aux_layers == (1, 3, 4)
    assert convert(checkpoint, aux_layers=(1, 2, 3)).spec.aux_layers == (1, 2, 3)
    with pytest.raises(errors.ConfigError, match="reading feed is for EAGLE drafters"):
        convert(checkpoint, readings={"feed": "post"})


def test_a_confidence_head_without_markov_part_gets_zeros(convert: Convert, tmp_path: Path) -> None:
    weights = DSPARK.weights()
    narrow = weights["confidence_head.proj.weight"][:, :64].copy()
    weights["confidence_head.proj.weight"] = narrow
    report = convert(write_files(tmp_path / "in", DSPARK.config(), weights))
    found = tensors_of(report.out)["conf_proj.weight"]
    np.testing.assert_array_equal(found, np.pad(narrow, ((0, 0), (0, 8))))


@pytest.mark.parametrize("shape", [DSPARK, DFLASH2])
def test_rows_above_the_targets_tokens_are_left_out(
    shape: BlockShape, convert: Convert, tmp_path: Path
) -> None:
    report = convert(replace(shape, n_vocab=370, n_draft_vocab=370).write(tmp_path / "in"))
    assert report.spec.architecture == "dflash"
    tables = ("markov", "selector_p", "output.")
    assert {one.shape[0] for one in report.tensors if one.name.startswith(tables)} == {367}


_TRANSFORMERS = {"transformers_version": "5.5.3", "dtype": "bfloat16", "use_cache": False, "bos_token_id": 1,
                 "eos_token_id": [1, 2], "initializer_range": 0.02, "attention_dropout": 0.0,
                 "max_window_layers": 5, "_attn_implementation": "flex_attention"}  # fmt: skip
_NEMOTRON = {"dflash_query_causal": False, "dspark_fixup_head_type": None, "dspark_markov_rank": None,
             "eagle_aux_hidden_state_layer_ids": [2, 4, 5], "has_embed_tokens": True, "has_lm_head": False,
             "num_aux_layers": 3, "pard_token": 5, "train_embed_tokens": False,
             "sample_from_anchor": False}  # fmt: skip
_QWEN36 = {"attn_output_gate": True, "output_gate_type": "swish", "full_attention_interval": 4,
           "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_conv_kernel_dim": 4,
           "mamba_ssm_dtype": "float32", "mlp_only_layers": [], "mtp_num_hidden_layers": 1,
           "mtp_use_dedicated_embeddings": False, "text_config": {"model_type": "qwen3_5_text"},
           "vision_config": {"depth": 27}, "num_experts": 256, "moe_intermediate_size": 512}  # fmt: skip
PUBLISHED: dict[str, tuple[BlockShape, Config]] = {
    "nvidia Nemotron DFlash": (DFLASH, _NEMOTRON | {"attention_sink_bias": False}
        | dflash_config(attention_sink_bias=False, causal=False, use_swa=False, sample_from_anchor=False)),
    "nvidia Nemotron DSpark": (replace(BARE, sinks=True), _NEMOTRON | {"dflash_query_causal": True,
        "dspark_bonus_anchor": True, "dspark_fixup_head_type": "markov", "dspark_markov_rank": 8,
        "dflash_config": {"attention_sink_bias": True, "causal": True, "swa_window_size": 6,
        "use_swa": True, "sample_from_anchor": False}}),
    "satgeze, target's keys": (DSPARK, _QWEN36 | _TRANSFORMERS),
    "RadixArk, SpecForge": (BARE, {"architectures": ["DSparkDraftModel"],
        "dflash_config": {"attention_mode": "gqa", "confidence_head_alpha": 1.0, "projector_type": "dspark",
        "confidence_head_with_markov": True, "enable_confidence_head": True, "markov_rank": 8}}),
    "Model Optimizer": (DFLASH, {"torch_dtype": "bfloat16"} | dflash_config(causal=False)),
    "poolside Laguna": (LAGUNA, {"num_attention_heads_per_layer": [4, 4], "num_experts": 0, "mlp_layer_types":
        ["dense", "dense"], "swa_attention_sink_enabled": False, "qkv_bias": False, "rope_parameters":
        {"full_attention": {"rope_theta": 5e5}, "sliding_attention": THETA}}),
    "poolside Laguna, older keys": (LAGUNA, {"gating": True, "rope_parameters": {"rope_theta": 5e5},
        "swa_rope_parameters": THETA}),
    "z-lab DFlash2": (DFLASH2, _TRANSFORMERS | {"is_causal": False}),
    "deepseek-ai Gemma 4": (GEMMA, {"target_model_type": "gemma4", "target_text_model_type": "gemma4_text",
        "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "vocab_size_per_layer_input": 262144,
        "top_k_experts": None, "use_bidirectional_attention": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_keys_without_effect_change_nothing(name: str, convert: Convert, tmp_path: Path) -> None:
    """Published configs have keys that engines ignore or that only repeat the shapes of tensors."""
    shape, edit = PUBLISHED[name]
    report = convert(replace(shape, extra=edit).write(tmp_path / "in"))
    reference = convert(shape.write(tmp_path / "ref"), out=tmp_path / "ref.gguf")
    check_same_tensors(report.out, reference.out)


@pytest.mark.parametrize(
    ("layout", "edit"),
    [
        (None, {"scale_depth": 1.4}),
        (None, dflash_config(linear_context={"variant": "gdn"})),
        (None, {"norm_output": True}),
        (None, {"use_parallel_residual": False}),
        (None, {"rope_parameters": {"rope_type": "default", "ntk_alpha": 2.0}}),
        (speculators, {"attn_logit_softcapping": 50.0}),
    ],
)
def test_an_unknown_key_is_refused(
    layout: Layout | None, edit: Config, convert: Convert, tmp_path: Path
) -> None:
    """Tests unknown keys at the top level and in dflash_config, transformer_layer_config and rope_parameters.
    They are refused, unless their value is null, which counts as absent.
    """
    config, weights = {**DFLASH.config(), **edit}, DFLASH.weights()
    key, value = list(edit.items())[-1]
    key, value = list(value.items())[-1] if isinstance(value, dict) else (key, value)
    if layout is not None:
        config, weights = layout(config, weights)
    with pytest.raises(errors.UnsupportedError, match=f"{key} = .*may change what the drafter computes"):
        convert(write_files(tmp_path / "in", config, weights))
    if layout is None and key in config:
        convert(write_files(tmp_path / "in", config | {key: None}, weights))


def test_a_separate_mask_vector_is_refused(convert: Convert, tmp_path: Path) -> None:
    checkpoint = DFLASH.write(tmp_path / "in")
    (checkpoint / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(errors.UnsupportedError, match=r"mask_embedding\.pt.*MiMo"):
        convert(checkpoint)
