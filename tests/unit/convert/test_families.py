# SPDX-License-Identifier: MIT
"""Every layout of the same drafter becomes the same file, whatever it is stored in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from eaglecpp.convert import ConvertReport
from eaglecpp.convert.errors import CheckpointError, EagleError, LayerIdError, SourceError, UnsupportedError
from helpers.checkpoints import (
    FAMILIES,
    MISTRAL_PARAMS,
    mistral_weights,
    save_bin,
    save_shards,
    write_checkpoint,
)
from helpers.gguf_writer import check_same_tensors, key_of, tensors_of
from helpers.random_drafter import DraftShape, LatentShape

Convert = Callable[..., ConvertReport]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "kimi"])
def test_every_family_becomes_the_same_plain_eagle3_file(
    family: str, convert: Convert, tmp_path: Path
) -> None:
    shape = DraftShape(own_embedding=family not in ("specforge", "modelopt"))
    readings = {"feature_norm": "once"} if family == "modelopt" else None
    report = convert(write_checkpoint(tmp_path / "in", family, shape), readings=readings)
    reference = convert(write_checkpoint(tmp_path / "ref", "vllm", shape), out=tmp_path / "ref.gguf")
    assert report.spec.architecture == "eagle3"
    assert report.spec.aux_layers == (2, 4, 5)
    assert key_of(report.out, "eaglecpp.family") == family
    check_same_tensors(report.out, reference.out)


@pytest.mark.parametrize("family", ["specforge", "torchspec", "speculators", "automodel", "vllm"])
def test_eagle_31_switches_survive_in_every_family_that_has_them(
    family: str, convert: Convert, tmp_path: Path
) -> None:
    shape = DraftShape(fc_norm=True, norm_output=True, own_embedding=family != "specforge")
    report = convert(write_checkpoint(tmp_path / "in", family, shape))
    assert (report.spec.fc_norm, report.spec.norm_output) == (True, True)
    assert report.spec.architecture == "eagle31"
    assert {f"fc_norm.{i}.weight" for i in range(3)} <= tensors_of(report.out).keys()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((f"Eagle3{x}ForCausalLM", DraftShape()) for x in ("MiniMaxM2", "Qwen2_5vl", "Qwen3vl")),
        ("PeagleLlamaForCausalLM", DraftShape(n_parallel=6)),
        ("Eagle3Qwen3ForCausalLM", DraftShape(qk_norm=True)),
        ("PeagleQwen3ForCausalLM", DraftShape(n_parallel=6, qk_norm=True)),
    ],
)
def test_what_vllm_runs_with_its_llama_and_qwen3_code_is_the_same_drafter(
    name: str, shape: DraftShape, convert: Convert, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "vllm", shape, edit={"architectures": [name]})
    reference = convert(write_checkpoint(tmp_path / "ref", "vllm", shape), out=tmp_path / "ref.gguf")
    report = convert(checkpoint)
    assert report.spec == reference.spec
    check_same_tensors(report.out, reference.out)


EAGLE1 = DraftShape(eagle1=True, own_head=False, n_draft_vocab=367)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle"])
@pytest.mark.parametrize("save", [None, save_bin], ids=["safetensors", "bin"])
def test_eagle_1_is_a_file_of_its_own(
    name: str, save: Callable[[Path, dict[str, Any]], None] | None, convert: Convert, tmp_path: Path
) -> None:
    shape = replace(EAGLE1, fc_bias=True, attention_bias=True)
    report = convert(
        write_checkpoint(tmp_path / "in", shape=shape, edit={"architectures": [name]}, save=save)
    )
    assert (report.spec.architecture, report.spec.aux_layers, report.spec.layer_ids_rule) == (
        "eagle",
        (9,),
        "final",
    )
    assert key_of(report.out, "general.architecture") == "eagle"
    assert key_of(report.out, "eaglecpp.family") == "eagle1"
    assert key_of(report.out, "eagle.norm_output") is False
    found = tensors_of(report.out)
    assert found["fc.weight"].shape == (64, 128) and found["fc.bias"].shape == (64,)
    assert found["blk.0.attn_q.weight"].shape == (64, 64)
    assert not {"blk.0.attn_norm.weight", "blk.0.attn_norm_2.weight", "output_norm.weight"} & found.keys()
    assert "written as eagle, which llama.cpp does not support" in " ".join(report.notes)


@pytest.mark.parametrize("option", [{"aux_layers": [2]}, {"layer_ids": "post"}, {"feed": "pre"}])
def test_what_eagle_1_has_no_choice_in_is_refused(
    option: dict[str, Any], convert: Convert, tmp_path: Path
) -> None:
    with pytest.raises(LayerIdError, match="are for EAGLE-3"):
        convert(write_checkpoint(tmp_path / "in", shape=EAGLE1), **option)


def test_deepspec_counts_the_block_before(convert: Convert, tmp_path: Path) -> None:
    shape = DraftShape(layers=(1, 2, 4, 5, 7), qk_norm=True, n_draft_vocab=367)
    checkpoint = write_checkpoint(tmp_path / "in", "deepspec", shape)
    report = convert(checkpoint)
    assert report.spec.aux_layers == (1, 2, 4, 5, 7)
    assert (report.spec.architecture, report.spec.layer_ids_rule) == ("eagle31", "post+1")
    assert convert(checkpoint, layer_ids="boundary").spec.aux_layers == (
        0,
        1,
        3,
        4,
        6,
    )  # what others would read


@pytest.mark.parametrize(
    ("family", "edit", "depth"),
    [
        ("vllm", {}, 6),
        ("vllm", {"architectures": ["LlamaForCausalLMEagle3"], "para_depths": None, "pard_token": "5"}, 8),
        ("speculators", {"architectures": ["PEagleSpeculator"], "speculators_model_type": "peagle"}, 6),
        ("vllm", {"architectures": ["PEagleDraftModel"], "para_depths": None, "num_depths": 4}, 4),
        ("automodel", {}, 6),
        ("eagle", {}, 6),
    ],
)
def test_p_eagle_is_eagle_31_with_a_mask(
    family: str, edit: dict[str, Any], depth: int, convert: Convert, tmp_path: Path
) -> None:
    shape = DraftShape(n_parallel=6, n_layers=2)
    report = convert(write_checkpoint(tmp_path / "in", family, shape, edit=edit), aux_layers=shape.layers)
    assert report.spec.architecture == "eagle31" and "parallel drafting" in report.spec.stock_blockers
    assert key_of(report.out, "eagle31.mask_token_id") == 5
    assert key_of(report.out, "eagle31.parallel_depth") == depth
    np.testing.assert_array_equal(
        tensors_of(report.out)["mask_feature.weight"], shape.weights()["mask_hidden"].reshape(-1)
    )
    assert any("at once: using at most 8" in note for note in report.notes) == (depth == 8)


@pytest.mark.parametrize("kind", ["keys", "values"])
def test_gemmas_own_layer_has_a_key_for_each_difference(kind: str, convert: Convert, tmp_path: Path) -> None:
    shape = DraftShape(gemma=kind, n_draft_vocab=367, head_dim=32)
    out = convert(write_checkpoint(tmp_path / "in", shape=shape)).out
    for name, value in {
        "attention.scale": 1.0,
        "attention.value_norm": True,
        "hidden_activation": "gelu",
        "embedding_scale": 8.0,
        "final_logit_softcapping": 5.0,
        "attention.key_length": 32,
    }.items():
        assert key_of(out, f"eagle31.{name}") == value
    found, weights = tensors_of(out), shape.weights()
    assert ("blk.0.attn_v.weight" in found) == (kind == "values")
    for name, source in {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }.items():
        np.testing.assert_array_equal(found[f"blk.0.{name}.weight"], weights[f"layers.0.{source}.weight"])
    np.testing.assert_array_equal(found["rope_freqs.weight"], [1.0] * 4 + [np.float32(1e15)] * 12)


MISTRAL = replace(EAGLE1, eagle1_norms=True)


def write_mistral(directory: Path, **params: Any) -> Path:
    """MISTRAL in Mistral's own layout."""
    directory.mkdir()
    save_file(mistral_weights(MISTRAL.weights()), directory / "consolidated.safetensors")
    (directory / "params.json").write_text(json.dumps(MISTRAL_PARAMS | params))
    return directory


def test_mistrals_own_layout_is_the_same_drafter(convert: Convert, tmp_path: Path) -> None:
    report = convert(write_mistral(tmp_path / "in"))
    reference = convert(write_checkpoint(tmp_path / "ref", shape=MISTRAL), out=tmp_path / "ref.gguf")
    assert (report.spec.family, report.spec.architecture) == ("mistral", "eagle")
    assert key_of(report.out, "eagle.norm_output") is True
    check_same_tensors(report.out, reference.out)
    assert "output_norm.weight" in tensors_of(report.out)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"q_lora_rank": 1536}, "multi-head latent attention in Mistral's layout"),
        ({"sliding_window": 4096}, "sliding_window: expected None, found 4096"),
        ({"new_thing": 1}, "new_thing: unknown key"),
        ({"quantization": {"qformat_weight": "nvfp4"}}, "expected qformat_weight fp8_e4m3"),
        ({"dim": "64"}, "hidden_size: expected a positive integer"),
    ],
)
def test_what_mistrals_layout_says_else_is_refused(
    params: dict[str, Any], message: str, convert: Convert, tmp_path: Path
) -> None:
    with pytest.raises(EagleError, match=message):
        convert(write_mistral(tmp_path / "in", **params))


def test_mistrals_layout_of_something_else_is_refused(convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "params.json").write_text(json.dumps(MISTRAL_PARAMS))
    save_file({"norm.weight": np.ones(64, np.float32)}, tmp_path / "in" / "consolidated.safetensors")
    with pytest.raises(UnsupportedError, match=r"without eagle_linear\.weight"):
        convert(tmp_path / "in")


def test_a_window_that_only_the_engine_was_told_of_can_be_given(convert: Convert, tmp_path: Path) -> None:
    report = convert(write_checkpoint(tmp_path / "in", "eagle"), window=64)
    assert (report.spec.architecture, report.spec.sliding_window) == ("eagle31", 64)
    assert key_of(report.out, "eagle31.attention.sliding_window_pattern") == [True]
    with pytest.raises(ValueError, match="expected a positive number of rows"):
        convert(write_checkpoint(tmp_path / "in", "eagle"), window=0)


@pytest.mark.parametrize("family", ["vllm", "modelopt", "torchspec", "specforge", "kimi"])
def test_latent_attention_is_the_same_drafter_in_every_family(
    family: str, convert: Convert, tmp_path: Path
) -> None:
    own = family not in ("specforge", "modelopt")
    shape = DraftShape(latent=LatentShape(), fc_norm=True, norm_output=True, own_embedding=own)
    readings = {"feature_norm": "once"} if family == "modelopt" else None
    report = convert(write_checkpoint(tmp_path / "in", family, shape), readings=readings)
    reference = convert(write_checkpoint(tmp_path / "ref", "vllm", shape), out=tmp_path / "ref.gguf")
    assert report.spec.latent is not None and report.spec.latent.kv_rank == 32
    assert report.spec.aux_layers == (2, 4, 5)
    check_same_tensors(report.out, reference.out)


@pytest.mark.parametrize(
    ("family", "edit", "expected"),
    [
        ("kimi", {"model_type": "deepseek_v3"}, (2, 4, 7)),  # where it leaves the ids as they were
        ("torchspec", {"_torchspec_version": "1"}, (1, 3, 6)),
        ("modelopt", {}, (1, 3, 6)),
    ],
)
def test_the_layer_ids_of_latent_drafters_are_read_as_their_exporter_counts(
    family: str, edit: dict[str, Any], expected: tuple[int, ...], convert: Convert, tmp_path: Path
) -> None:
    shape = DraftShape(latent=LatentShape(), layers=(1, 3, 6))
    assert convert(write_checkpoint(tmp_path / "in", family, shape, edit=edit)).spec.aux_layers == expected


def test_ids_that_two_exporters_count_differently_must_be_explained(convert: Convert, tmp_path: Path) -> None:
    shape = DraftShape(latent=LatentShape(), layers=(1, 3, 6))
    checkpoint = write_checkpoint(tmp_path / "in", "kimi", shape, edit={"_torchspec_version": None})
    with pytest.raises(LayerIdError, match="ambiguous for NVIDIA Model Optimizer"):
        convert(checkpoint)
    assert convert(checkpoint, layer_ids="post").spec.aux_layers == (2, 4, 7)


def test_rows_of_q_and_k_are_paired_and_nothing_else_is_moved(convert: Convert, tmp_path: Path) -> None:
    shape = DraftShape()
    weights = shape.weights()
    found = tensors_of(convert(write_checkpoint(tmp_path / "in", "vllm", shape)).out)
    q = weights["layers.0.self_attn.q_proj.weight"]
    half = shape.head_dim // 2
    for head in range(shape.n_heads):
        for i in range(half):
            row = head * shape.head_dim
            np.testing.assert_array_equal(found["blk.0.attn_q.weight"][row + 2 * i], q[row + i])
            np.testing.assert_array_equal(found["blk.0.attn_q.weight"][row + 2 * i + 1], q[row + half + i])
    np.testing.assert_array_equal(found["blk.0.attn_v.weight"], weights["layers.0.self_attn.v_proj.weight"])
    np.testing.assert_array_equal(found["output.weight"], weights["lm_head.weight"])
    np.testing.assert_array_equal(found["d2t"], weights["d2t"] + np.arange(shape.n_draft_vocab))


def test_the_older_names_of_feature_norms_are_known(convert: Convert, tmp_path: Path) -> None:
    shape = DraftShape(fc_norm=True)
    weights = shape.weights()
    old = {
        f"aux_norm_{x}.weight": weights[f"fc_norm.{i}.weight"] for i, x in enumerate(("low", "mid", "high"))
    }
    checkpoint = write_checkpoint(
        tmp_path / "in",
        "vllm",
        shape,
        edit={"fc_norm": None, "use_aux_norm": True},
        add=old,
        drop=[f"fc_norm.{i}.weight" for i in range(3)],
    )
    found = tensors_of(convert(checkpoint).out)
    for i in range(3):
        np.testing.assert_array_equal(found[f"fc_norm.{i}.weight"], weights[f"fc_norm.{i}.weight"])


def test_buffers_that_inference_never_uses_are_skipped(convert: Convert, tmp_path: Path) -> None:
    stale = {
        "midlayer.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
        "verifier_lm_head.weight": np.ones((4, 4), np.float32),
        "verifier_norm.weight": np.ones(4, np.float32),
    }
    report = convert(write_checkpoint(tmp_path / "in", "eagle", add=stale))
    assert not [t.name for t in report.tensors if "verifier" in t.name or "inv_freq" in t.name]


@pytest.mark.parametrize("save", [save_shards, save_bin], ids=["shards", "bin"])
def test_shards_and_torch_files_hold_the_same_drafter(
    save: Callable[[Path, dict[str, Any]], None], convert: Convert, tmp_path: Path
) -> None:
    found = convert(write_checkpoint(tmp_path / "in", "eagle", save=save)).out
    expected = convert(write_checkpoint(tmp_path / "ref", "eagle"), out=tmp_path / "ref.gguf").out
    check_same_tensors(found, expected, 2**-8 if save is save_bin else 0.0)  # the .bin is bfloat16


def test_a_weight_file_can_be_named_instead_of_its_directory(convert: Convert, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "draft-x", "eagle")
    report = convert(directory / "model.safetensors")
    assert key_of(report.out, "eaglecpp.source") == "draft-x"


def test_safetensors_win_over_a_bin_beside_them(convert: Convert, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "in", "eagle")
    (directory / "pytorch_model.bin").write_bytes(b"not read")
    assert any("safetensors" in note for note in convert(directory).notes)


def test_a_missing_shard_is_named(convert: Convert, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "in", "eagle", save=save_shards)
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"shard model-00002-of-00002\.safetensors is missing"):
        convert(directory)


def test_an_index_cannot_reach_outside_its_directory(convert: Convert, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "in", "eagle", save=save_shards)
    index = directory / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00001", "../model-00001"))
    with pytest.raises(CheckpointError, match="expected plain file names"):
        convert(directory)


def test_what_a_checkpoint_was_downloaded_from_is_its_source(convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "torchspec", DraftShape(fc_norm=True))
    (checkpoint / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    report = convert(checkpoint, hub_id="owner/draft")
    assert key_of(report.out, "eaglecpp.source") == "owner/draft"
    assert key_of(report.out, "general.license") == "apache-2.0"
    assert key_of(report.out, "general.name") == "Draft"


def test_what_is_not_here_says_where_it_could_be(convert: Convert, tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"owner/nothing: expected a checkpoint directory.*hf\.co/OWNER/NAME"
    ):
        convert("owner/nothing")  # type: ignore[arg-type]
