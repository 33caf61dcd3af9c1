# SPDX-License-Identifier: MIT
"""The rules that turn a checkpoint's layer ids into boundary ids, one row per rule and refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.convert import ConvertReport
from eaglecpp.convert.errors import LayerIdError
from eaglecpp.convert.readings import layer_ids_choice, resolve_layer_ids
from helpers.checkpoints import rewrite_config, write_checkpoint
from helpers.random_drafter import DraftShape

Convert = Callable[..., ConvertReport]


@pytest.mark.parametrize(
    ("ids", "n_blocks", "options", "expected", "rule"),
    [
        (None, 32, {}, (2, 16, 29), "default"),
        ([], 32, {}, (2, 16, 29), "default"),
        ([2, 16, 29], 32, {}, (2, 16, 29), "boundary"),
        ([24, 30, 36], 36, {}, (24, 30, 36), "boundary"),
        ([24, 30, 36], 36, {"convention": "post"}, (24, 30, 36), "boundary"),
        ([1, 17, 33], 36, {"convention": "post"}, (2, 18, 34), "post+1"),
        ([1, 17, 33], 36, {"convention": "boundary"}, (1, 17, 33), "boundary"),
        ([1, 15, 28], 32, {"convention": "post"}, (2, 16, 29), "post+1"),
        ([1, 15, 28], 32, {"convention": "boundary"}, (1, 15, 28), "boundary"),
        ([1, 21, 40], 43, {"forced": "post"}, (2, 22, 41), "post+1"),
        ([1, 21, 40], 43, {"forced": "boundary"}, (1, 21, 40), "boundary"),
        ([1, 15, 28], 32, {"forced": "boundary"}, (1, 15, 28), "boundary"),
        ([9, 9, 9], 32, {"given": [2, 16, 29]}, (2, 16, 29), "given"),
        (None, 32, {"given": [1, 15, 28], "forced": "post"}, (2, 16, 29), "given"),
        (None, 6, {"given": [0, 3, 6]}, (0, 3, 6), "given"),
    ],
)  # fmt: skip
def test_rules(
    ids: list[int] | None, n_blocks: int, options: dict[str, Any], expected: tuple[int, ...], rule: str
) -> None:
    found = resolve_layer_ids(ids, n_blocks, 3, **options)
    assert (found.ids, found.rule) == (expected, rule)


@pytest.mark.parametrize(
    ("ids", "n_blocks", "n_aux", "options", "message"),
    [
        (None, 32, 4, {}, "default exists only for 3"),
        (None, 6, 3, {}, "distinct ascending"),
        ([2, 16, 29], 32, 4, {}, "expected 4, one per feature of fc.weight, found 3"),
        ([16, 2, 29], 32, 3, {"forced": "boundary"}, "distinct ascending"),
        ([2, 2, 29], 32, 3, {"forced": "boundary"}, "distinct ascending"),
        ([2, 16, 33], 32, 3, {"forced": "boundary"}, "from 0 to 32"),
        ([2, 16, 32], 32, 3, {"forced": "post"}, "from 0 to 32"),
        ([-1, 16, 29], 32, 3, {"forced": "boundary"}, "from 0 to 32"),
        (None, 32, 3, {"given": [2, 16]}, "found 2"),
    ],
)  # fmt: skip
def test_refusals(
    ids: list[int] | None, n_blocks: int, n_aux: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LayerIdError, match=message):
        resolve_layer_ids(ids, n_blocks, n_aux, **options)


@pytest.mark.parametrize(
    ("ids", "n_blocks", "convention", "values"),
    [
        (None, 32, None, ()),
        ([1, 21, 43], 43, None, ()),  # n is a boundary
        ([1, 21, 40], 43, "post", ()),
        ([1, 21, 40], 43, "boundary", ()),
        ([2, 16, 29], 32, None, ()),
        ([2, 16, 29], 32, "post", ("boundary", "post")),
        ([1, 15, 28], 32, "post", ()),
        ([1, 15, 28], 32, "boundary", ("boundary", "post")),  # speculators writes boundaries
        ([1, 15, 28], 32, None, ("post", "boundary")),
    ],
)
def test_what_ids_can_mean_beside_their_default(
    ids: list[int] | None, n_blocks: int, convention: Any, values: tuple[str, ...]
) -> None:
    found = layer_ids_choice(ids, n_blocks, "this family", convention)
    assert [choice.values for choice in found] == ([values] if values else [])
    assert not any(choice.is_open for choice in found)


def test_ids_that_explain_nothing_have_no_default() -> None:
    (choice,) = layer_ids_choice([1, 21, 40], 43, "this family", None)
    assert choice.is_open and "ambiguous for this family" in choice.why


@pytest.mark.parametrize("ids", [(1, 3, 4), (1, 3, 6)])
def test_ids_of_speculators_are_boundaries_whatever_they_look_like(
    ids: tuple[int, ...], convert: Convert, tmp_path: Path
) -> None:
    report = convert(write_checkpoint(tmp_path / "in", "speculators", DraftShape(layers=ids)))
    assert (report.spec.aux_layers, report.spec.layer_ids_rule) == (ids, "boundary")
    assert any("layer_ids: read as boundary" in note for note in report.notes) == (ids == (1, 3, 4))


@pytest.mark.parametrize("family", ["specforge", "torchspec", "modelopt", "speculators"])
def test_families_with_a_convention_need_no_flag(family: str, convert: Convert, tmp_path: Path) -> None:
    report = convert(write_checkpoint(tmp_path / "in", family, DraftShape(layers=(2, 4, 7))))
    assert report.spec.aux_layers == (2, 4, 7)


@pytest.mark.parametrize("family", ["eagle", "vllm", "automodel"])
def test_families_without_one_are_refused_until_told(family: str, convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", family, DraftShape(layers=(1, 3, 6)))
    rewrite_config(checkpoint, eagle_aux_hidden_state_layer_ids=[1, 3, 6])
    with pytest.raises(LayerIdError, match="ambiguous"):
        convert(checkpoint)
    assert convert(checkpoint, readings={"layer_ids": "post"}).spec.aux_layers == (2, 4, 7)
    assert convert(checkpoint, aux_layers=[1, 3, 5]).spec.aux_layers == (1, 3, 5)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [((2, 5, 7), None), ((2, 4, 5), (2, 4, 5)), ((1, 3, 4), (2, 4, 5)), ((1, 3, 8), (1, 3, 8))],
)
def test_torchspecs_layers_0_of_kimi_is_told_apart_by_its_ids_or_refused(
    ids: tuple[int, ...], expected: tuple[int, ...] | None, convert: Convert, tmp_path: Path
) -> None:
    """Its export for vLLM writes boundaries there, and exports since June 2026 the blocks before them."""
    checkpoint = write_checkpoint(
        tmp_path / "in",
        "kimi",
        DraftShape(layers=ids),
        edit={"model_type": "kimi_k2", "architectures": ["LlamaForCausalLMEagle3"]},
    )
    if expected:
        report = convert(checkpoint)
        assert (report.family, report.spec.aux_layers) == ("TorchSpec", expected)
        return
    with pytest.raises(LayerIdError, match="--reading layer_ids=boundary or --reading layer_ids=post"):
        convert(checkpoint)
    assert convert(checkpoint, readings={"layer_ids": "post"}).spec.aux_layers == tuple(k + 1 for k in ids)


def test_ids_in_two_places_are_boundary_ids_where_both_conventions_agree(
    convert: Convert, tmp_path: Path
) -> None:
    shape = DraftShape(layers=(1, 3, 6))
    edit = {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}
    checkpoint = write_checkpoint(tmp_path / "in", "torchspec", shape, edit=edit)
    assert convert(checkpoint).spec.aux_layers == (1, 3, 6)


def test_ids_in_two_places_that_disagree_are_refused(convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(
        tmp_path / "in", "torchspec", edit={"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    )
    with pytest.raises(LayerIdError, match="given twice"):
        convert(checkpoint)


def test_four_features_are_counted_from_fc(convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "speculators", DraftShape(layers=(1, 3, 5, 7)))
    rewrite_config(checkpoint, num_aux_hidden_states=3)
    assert convert(checkpoint).spec.aux_layers == (1, 3, 5, 7)
