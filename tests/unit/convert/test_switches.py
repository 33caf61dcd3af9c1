# SPDX-License-Identifier: MIT
"""Each switch of a drafter reaches its key and tensors; what llama.cpp would run wrong is `eagle31`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from eaglecpp.convert import ConvertReport, inspect_file
from eaglecpp.convert.errors import ConvertError
from helpers.checkpoints import write_checkpoint
from helpers.random_drafter import DraftShape, LatentShape
from helpers.tiny import TargetSpec, make_target

Convert = Callable[..., ConvertReport]
LN64 = math.log(64.0)


class Written:
    """A converted file, keys without their architecture prefix."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.arch: str = reader.fields["general.architecture"].contents()
        self.keys = {n.removeprefix(f"{self.arch}."): f.contents() for n, f in reader.fields.items()}
        self.tensors = {t.name: np.array(t.data) for t in reader.tensors}


@pytest.fixture
def written(convert: Convert, tmp_path: Path) -> Callable[..., Written]:
    def run(shape: DraftShape, *, options: dict[str, Any] | None = None, **changes: Any) -> Written:
        return Written(
            convert(write_checkpoint(tmp_path / "in", "vllm", shape, **changes), **(options or {})).out
        )

    return run


def test_plain_eagle3_has_exactly_llama_cpps_keys(written: Callable[..., Written]) -> None:
    file = written(DraftShape())
    own = {n for n in file.keys if not n.startswith(("GGUF.", "general.", "tokenizer.", "eaglecpp."))}
    assert file.arch == "eagle3"
    assert own == {
        "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
        "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "target_layers",
        "target_hidden_size", "norm_before_residual", "norm_before_fc",
    }  # fmt: skip


@pytest.mark.parametrize("switch", ["norm_before_residual", "norm_before_fc"])
def test_switches_that_llama_cpp_knows_stay_plain(written: Callable[..., Written], switch: str) -> None:
    file = written(DraftShape(**{switch: True}))
    assert file.arch == "eagle3"
    assert file.keys[switch] is True
    assert ("enc.output_norm.weight" in file.tensors) == (switch == "norm_before_fc")


@pytest.mark.parametrize(
    ("shape", "keys", "tensors"),
    [
        (DraftShape(fc_norm=True), {"fc_norm": True, "norm_output": False}, ["fc_norm.2.weight"]),
        (DraftShape(norm_output=True), {"norm_output": True, "fc_norm": False}, []),
        (
            DraftShape(qk_norm=True),
            {"rope.type": "neox"},
            ["blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight"],
        ),
        (DraftShape(attention_bias=True), {}, [f"blk.0.attn_{x}.bias" for x in "qkv"]),
        (DraftShape(mlp_bias=True), {}, [f"blk.0.ffn_{x}.bias" for x in ("gate", "up", "down")]),
        (DraftShape(fc_bias=True), {}, ["fc.bias"]),
        (DraftShape(n_layers=2), {"block_count": 2}, ["blk.1.attn_norm.weight", "blk.1.ffn_down.weight"]),
        (DraftShape(layers=(1, 3, 5, 7)), {"target_layers": [1, 3, 5, 7]}, []),
        (
            DraftShape(window=512, n_layers=2),
            {"attention.sliding_window": 512, "attention.sliding_window_pattern": [True, True]},
            [],
        ),
    ],
    ids=[
        "fc_norm",
        "norm_output",
        "qk_norm",
        "qkv bias",
        "mlp bias",
        "fc bias",
        "layers",
        "4 aux",
        "sliding",
    ],
)
def test_everything_else_is_eagle31(
    written: Callable[..., Written], shape: DraftShape, keys: dict[str, Any], tensors: list[str]
) -> None:
    ambiguous = shape.layers != (2, 4, 5)
    file = written(shape, options={"readings": {"layer_ids": "boundary"}} if ambiguous else None)
    assert file.arch == "eagle31"
    assert {name: file.keys[name] for name in keys} == keys
    assert set(tensors) <= file.tensors.keys()
    assert {
        "fc_norm",
        "norm_output",
        "norm_before_fc",
        "norm_before_residual",
        "draft_vocab_size",
        "rope.type",
    } <= (file.keys.keys())


def test_latent_attention_has_the_keys_and_tensors_of_deepseek2(written: Callable[..., Written]) -> None:
    latent, shape = LatentShape(), DraftShape(latent=LatentShape())
    weights = shape.weights()
    file = written(shape)
    assert file.arch == "eagle31"
    own = {name.removeprefix("attention."): value for name, value in file.keys.items()}
    cached = latent.kv_rank + latent.rope
    assert (own["head_count"], own["head_count_kv"]) == (4, 1)
    assert (own["key_length"], own["value_length"], own["kv_lora_rank"]) == (cached, 32, 32)
    assert (own["key_length_mla"], own["value_length_mla"], own["q_lora_rank"]) == (20, 16, 24)
    assert own["scale"] == pytest.approx(20**-0.5)
    assert (own["rope.dimension_count"], own["rope.type"]) == (8, "norm")
    for name, source in (("q_a", "q_a_proj"), ("q_b", "q_b_proj"), ("kv_a_mqa", "kv_a_proj_with_mqa")):
        expected = weights[f"layers.0.self_attn.{source}.weight"]
        np.testing.assert_array_equal(file.tensors[f"blk.0.attn_{name}.weight"], expected)
    heads = weights["layers.0.self_attn.kv_b_proj.weight"].reshape(4, latent.nope + latent.value, 32)
    np.testing.assert_array_equal(file.tensors["blk.0.attn_k_b.weight"], heads[:, :12].swapaxes(1, 2))
    np.testing.assert_array_equal(file.tensors["blk.0.attn_v_b.weight"], heads[:, 12:])
    assert not {"blk.0.attn_q.weight", "blk.0.attn_k.weight"} & file.tensors.keys()


def test_latent_attention_is_told(convert: Convert, tmp_path: Path) -> None:
    report = convert(write_checkpoint(tmp_path / "in", "vllm", DraftShape(latent=LatentShape())))
    assert inspect_file(report.out)["latent_attention"] == {
        "kv_rank": 32, "q_rank": 24, "key_length": 20, "value_length": 16,
    }  # fmt: skip
    plain = convert(write_checkpoint(tmp_path / "plain", "vllm"))
    assert inspect_file(plain.out)["latent_attention"] is None


def test_latent_queries_from_one_matrix(written: Callable[..., Written]) -> None:
    shape = DraftShape(latent=LatentShape(q_rank=0))
    file = written(shape)
    assert "attention.q_lora_rank" not in file.keys
    # rows rotate in pairs in the checkpoint already
    expected = shape.weights()["layers.0.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(file.tensors["blk.0.attn_q.weight"], expected)


@pytest.mark.parametrize("kind", ["yarn", "deepseek_yarn"])
@pytest.mark.parametrize(
    ("weights", "multiplier", "all_dim"),
    [
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0, 1.0),
        ({"mscale": 0.7, "mscale_all_dim": 0.4}, (1 + 0.07 * LN64) / (1 + 0.04 * LN64), 0.4),
        ({"mscale": 0.7}, 1 + 0.07 * LN64, 0.0),
        ({}, 1 + 0.1 * LN64, 0.0),
    ],
)
def test_yarn_of_latent_attention_is_deepseeks(
    kind: str, weights: dict[str, float], multiplier: float, all_dim: float, written: Callable[..., Written]
) -> None:
    rope = {"type": kind, "factor": 64.0, "original_max_position_embeddings": 4096, **weights}
    file = written(DraftShape(latent=LatentShape(), rope=rope))
    found = file.keys.get("rope.scaling.attn_factor", 1.0)
    assert found * (1 + 0.1 * LN64) == pytest.approx(multiplier)
    assert file.keys["attention.scale"] == pytest.approx((1 + 0.1 * all_dim * LN64) ** 2 / 20**0.5)


@pytest.mark.parametrize(
    ("family", "shape", "edit", "note"),
    [
        ("vllm", DraftShape(latent=LatentShape()), {"mla_use_nope": True}, "mla_use_nope"),
        (
            "vllm",
            DraftShape(),
            {"num_hidden_layers": 40},
            "num_hidden_layers 40, but there are tensors for 1",
        ),
        ("vllm", DraftShape(), {"sliding_window": 4096}, "sliding_window 4096 is not used"),
        ("specforge", DraftShape(fc_norm=True, norm_output=True), {}, "SpecForge 0.2.0"),
        (
            "vllm",
            DraftShape(n_draft_vocab=367),
            {"tie_word_embeddings": True},
            "tie_word_embeddings is true, but",
        ),
    ],
)
def test_what_a_config_says_otherwise_is_noted(
    family: str, shape: DraftShape, edit: dict[str, Any], note: str, convert: Convert, tmp_path: Path
) -> None:
    report = convert(write_checkpoint(tmp_path / "in", family, shape, edit=edit))
    assert any(note in found for found in report.notes), report.notes
    assert report.spec.n_layers == 1 and not any(report.spec.sliding_layers)


def test_rows_stay_as_they_are_with_qk_norms(written: Callable[..., Written]) -> None:
    shape = DraftShape(qk_norm=True)
    expected = shape.weights()["layers.0.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(written(shape).tensors["blk.0.attn_q.weight"], expected)


def test_q_and_k_biases_are_paired_like_their_rows(written: Callable[..., Written]) -> None:
    shape = DraftShape(attention_bias=True)
    bias = shape.weights()["layers.0.self_attn.k_proj.bias"].reshape(shape.n_kv_heads, 2, -1)
    np.testing.assert_array_equal(written(shape).tensors["blk.0.attn_k.bias"], bias.swapaxes(1, 2).ravel())


def test_the_later_layers_norm_may_be_called_hidden_norm(written: Callable[..., Written]) -> None:
    shape = DraftShape(n_layers=2)
    norm = shape.weights()["layers.1.input_layernorm.weight"]
    file = written(shape, drop=["layers.1.input_layernorm.weight"], add={"layers.1.hidden_norm.weight": norm})
    np.testing.assert_array_equal(file.tensors["blk.1.attn_norm.weight"], norm)


def test_the_whole_vocabulary_needs_no_map(written: Callable[..., Written]) -> None:
    file = written(DraftShape(n_draft_vocab=367, fc_norm=True), edit={"draft_vocab_size": None})
    assert "d2t" not in file.tensors
    assert file.keys["draft_vocab_size"] == 367


def test_a_map_can_come_from_the_mask_alone(written: Callable[..., Written]) -> None:
    shape = DraftShape()
    file = written(shape, drop=["d2t"])
    np.testing.assert_array_equal(file.tensors["d2t"], np.flatnonzero(shape.weights()["t2d"]))


def test_absent_head_and_embeddings_are_left_to_the_target(written: Callable[..., Written]) -> None:
    file = written(DraftShape(n_draft_vocab=367, own_head=False, own_embedding=False))
    assert file.arch == "eagle3"
    assert not {"output.weight", "token_embd.weight"} & file.tensors.keys()


def test_a_tied_head_is_written_out(written: Callable[..., Written]) -> None:
    shape = DraftShape(n_draft_vocab=367, own_head=False)
    file = written(shape, edit={"tie_word_embeddings": True})
    np.testing.assert_array_equal(file.tensors["output.weight"], file.tensors["token_embd.weight"])


@pytest.mark.parametrize("n_draft", [160, 367])
def test_a_head_in_the_file_is_not_tied_whatever_the_config_copied_from_its_target(
    n_draft: int, written: Callable[..., Written]
) -> None:
    shape = DraftShape(n_draft_vocab=n_draft)
    file = written(shape, edit={"tie_word_embeddings": True})
    np.testing.assert_array_equal(file.tensors["output.weight"], shape.weights()["lm_head.weight"])


def test_a_drafter_narrower_than_its_target(convert: Convert, tmp_path: Path) -> None:
    wide = make_target(tmp_path, TargetSpec(n_embd=96, n_heads=4, n_layers=8, mixing=0.1))
    checkpoint = write_checkpoint(tmp_path / "in", "vllm", DraftShape(n_embd_target=96))
    file = Written(convert(checkpoint, target=wide.gguf).out)
    assert (file.arch, file.keys["target_hidden_size"], file.keys["embedding_length"]) == ("eagle3", 96, 64)
    assert file.tensors["fc.weight"].shape == (64, 3 * 96)


def test_logit_scale_is_a_key_only_when_it_scales(written: Callable[..., Written]) -> None:
    assert written(DraftShape(), edit={"logit_scale": 0.5}).keys["logit_scale"] == 0.5
    assert written(DraftShape(), edit={"logit_scale": 1.0}).arch == "eagle3"


@pytest.mark.parametrize(("feed", "expected"), [("pre", False), ("post", True)])
def test_feed_overrides_norm_output(written: Callable[..., Written], feed: str, expected: bool) -> None:
    file = written(DraftShape(norm_output=True, fc_norm=True), options={"readings": {"feed": feed}})
    assert file.keys["norm_output"] is expected


def test_layer_types_decide_per_layer(written: Callable[..., Written]) -> None:
    types = ["full_attention", "sliding_attention"]
    file = written(DraftShape(n_layers=2, window=64), edit={"layer_types": types})
    assert file.keys["attention.sliding_window_pattern"] == [False, True]


def test_the_last_boundary_is_plain_only_where_llama_cpp_has_it(convert: Convert, tmp_path: Path) -> None:
    report = convert(write_checkpoint(tmp_path / "in", "vllm", DraftShape(layers=(2, 4, 8))))
    assert (report.spec.layer_ids_rule, report.spec.architecture) == ("boundary", "eagle31")


def test_the_tokenizer_of_the_target_is_copied(convert: Convert, tmp_path: Path, target: Any) -> None:
    report = convert(write_checkpoint(tmp_path / "in", "vllm"))
    ours, theirs = gguf.GGUFReader(report.out), gguf.GGUFReader(target.gguf)
    names = {name for name in theirs.fields if name.startswith("tokenizer.")}
    assert "tokenizer.chat_template" in names
    assert {name for name in ours.fields if name.startswith("tokenizer.")} == names
    for name in names:
        assert ours.fields[name].contents() == theirs.fields[name].contents()
        assert ours.fields[name].types == theirs.fields[name].types


def test_what_its_training_measured_goes_with_it(written: Callable[..., Written]) -> None:
    file = written(DraftShape(), edit={"eaglecpp": {"held_out": {"length": 2.0, "rates": [0.75, 0.5, 1]}}})
    assert file.keys["eaglecpp.held_out_rates"] == [0.75, 0.5, 1.0]
    assert "eaglecpp.held_out_rates" not in written(DraftShape(), edit={"eaglecpp": {"held_out": None}}).keys


@pytest.mark.parametrize("rates", ["high", [1.5], [None], {}])
def test_rates_that_are_none_are_refused(written: Callable[..., Written], rates: Any) -> None:
    with pytest.raises(ConvertError, match=r"eaglecpp\.held_out\.rates: expected numbers from 0 to 1"):
        written(DraftShape(), edit={"eaglecpp": {"held_out": {"rates": rates}}})
