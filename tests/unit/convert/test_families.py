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

NEW, PARALLEL = DraftShape(fc_norm=True, norm_output=True), DraftShape(n_parallel=6)
SAME: list[tuple[str, DraftShape, str]] = [
    *((x, DraftShape(own_embedding=x not in ("specforge", "modelopt")), "") for x in FAMILIES if x != "kimi"),
    *((x, NEW, "") for x in ("torchspec", "speculators", "automodel")),
    ("specforge", replace(NEW, own_embedding=False), ""),
    # vLLM runs these drafters with its Llama and Qwen3 code.
    *(("vllm", DraftShape(), f"Eagle3{x}ForCausalLM") for x in ("MiniMaxM2", "Qwen2_5vl", "Qwen3vl")),
    ("vllm", PARALLEL, "PeagleLlamaForCausalLM"),
    ("vllm", DraftShape(qk_norm=True), "Eagle3Qwen3ForCausalLM"),
    ("vllm", replace(PARALLEL, qk_norm=True), "PeagleQwen3ForCausalLM"),
]


@pytest.mark.parametrize(("family", "shape", "name"), SAME)
def test_every_family_becomes_the_same_file(
    family: str, shape: DraftShape, name: str, convert: Convert, tmp_path: Path
) -> None:
    edit = {"architectures": [name]} if name else {}
    readings = {"feature_norm": "once"} if family == "modelopt" else None
    spec = convert(write_checkpoint(tmp_path / "in", family, shape, edit=edit), readings=readings).spec
    reference = convert(write_checkpoint(tmp_path / "ref", "vllm", shape), out=tmp_path / "ref.gguf")
    assert key_of(tmp_path / "out.gguf", "eaglecpp.family") == family
    same = replace(spec, family="vllm", layer_ids_rule=reference.spec.layer_ids_rule, readings=())
    assert same == replace(reference.spec, readings=())
    check_same_tensors(tmp_path / "out.gguf", reference.out)


@pytest.mark.parametrize(
    ("name", "save"),
    [("LlamaForCausalLM", save_bin), ("LlamaForCausalLMEagle", None), ("Qwen2ForCausalLMEagle", None)],
)
def test_eagle_1_has_its_own_file(
    name: str, save: Callable[[Path, dict[str, Any]], None] | None, converted: Convert
) -> None:
    shape = replace(EAGLE1, fc_bias=True, attention_bias=True)
    report = converted(shape=shape, edit={"architectures": [name]}, save=save)
    assert (report.spec.aux_layers, report.spec.layer_ids_rule) == ((9,), "final")
    assert key_of(report.out, "general.architecture") == report.spec.architecture == "eagle"
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
def test_eagle_1_refuses_other_readings(option: dict[str, Any], converted: Convert) -> None:
    with pytest.raises(LayerIdError, match="are for EAGLE-3"):
        converted(shape=EAGLE1, **option)


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
    family: str, edit: dict[str, Any], depth: int, converted: Convert
) -> None:
    shape = DraftShape(n_parallel=6, n_layers=2)
    report = converted(family, shape, edit=edit, aux_layers=shape.layers)
    assert report.spec.architecture == "eagle31" and "parallel drafting" in report.spec.stock_blockers
    assert key_of(report.out, "eagle31.mask_token_id") == 5
    assert key_of(report.out, "eagle31.parallel_depth") == depth
    np.testing.assert_array_equal(
        tensors_of(report.out)["mask_feature.weight"], shape.weights()["mask_hidden"].reshape(-1)
    )
    assert any("at once; using at most 8" in note for note in report.notes) == (depth == 8)
