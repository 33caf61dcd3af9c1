# SPDX-License-Identifier: MIT
"""Tests that every layout of a drafter becomes the same file, in any storage format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eaglecpp.convert.errors import LayerIdError
from helpers.checkpoints import FAMILIES, Convert, save_bin, write_checkpoint
from helpers.gguf_writer import check_same_tensors, key_of, tensors_of
from helpers.random_drafter import EAGLE1, DraftShape


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "kimi"])
def test_every_family_becomes_the_same_eagle3_file(family: str, convert: Convert, tmp_path: Path) -> None:
    shape = DraftShape(own_embedding=family not in ("specforge", "modelopt"))
    readings = {"feature_norm": "once"} if family == "modelopt" else None
    report = convert(write_checkpoint(tmp_path / "in", family, shape), readings=readings)
    reference = convert(write_checkpoint(tmp_path / "ref", "vllm", shape), out=tmp_path / "ref.gguf")
    assert report.spec.architecture == "eagle3"
    assert report.spec.aux_layers == (2, 4, 5)
    assert key_of(report.out, "eaglecpp.family") == family
    check_same_tensors(report.out, reference.out)


@pytest.mark.parametrize("family", ["specforge", "torchspec", "speculators", "automodel", "vllm"])
def test_eagle_31_switches_survive_in_their_families(family: str, convert: Convert, tmp_path: Path) -> None:
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
def test_drafters_that_vllm_runs_with_its_llama_and_qwen3_code_are_the_same(
    name: str, shape: DraftShape, convert: Convert, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "vllm", shape, edit={"architectures": [name]})
    reference = convert(write_checkpoint(tmp_path / "ref", "vllm", shape), out=tmp_path / "ref.gguf")
    report = convert(checkpoint)
    assert report.spec == reference.spec
    check_same_tensors(report.out, reference.out)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle"])
@pytest.mark.parametrize("save", [None, save_bin], ids=["safetensors", "bin"])
def test_eagle_1_has_its_own_file(
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
    assert "written as eagle, which llama.cpp does not run" in " ".join(report.notes)


@pytest.mark.parametrize(
    "option", [{"aux_layers": [2]}, {"readings": {"feed": "pre"}}, {"readings": {"feature_norm": "twice"}}]
)
def test_eagle_1_refuses_other_readings(option: dict[str, Any], convert: Convert, tmp_path: Path) -> None:
    with pytest.raises(LayerIdError, match="are for EAGLE-3"):
        convert(write_checkpoint(tmp_path / "in", shape=EAGLE1), **option)


def test_deepspec_counts_the_block_before(convert: Convert, tmp_path: Path) -> None:
    shape = DraftShape(layers=(1, 2, 4, 5, 7), qk_norm=True, n_draft_vocab=367)
    checkpoint = write_checkpoint(tmp_path / "in", "deepspec", shape)
    report = convert(checkpoint)
    assert report.spec.aux_layers == (1, 2, 4, 5, 7)
    assert (report.spec.architecture, report.spec.layer_ids_rule) == ("eagle31", "post+1")
    assert convert(checkpoint, readings={"layer_ids": "boundary"}).spec.aux_layers == (0, 1, 3, 4, 6)


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
    assert any("at once; using at most 8" in note for note in report.notes) == (depth == 8)
