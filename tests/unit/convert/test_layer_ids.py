# SPDX-License-Identifier: MIT
"""Tests the rules that turn a checkpoint's layer ids into boundary ids, with one case per rule and per
refusal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eaglecpp.convert.errors import LayerIdError
from helpers.checkpoints import Convert, write_checkpoint
from helpers.random_drafter import DraftShape

IDS = "eagle_aux_hidden_state_layer_ids"
BOUNDARY, POST = {"readings": {"layer_ids": "boundary"}}, {"readings": {"layer_ids": "post"}}


DEFAULT = (2, 4, 5)


@pytest.mark.parametrize(
    ("ids", "given", "expected"),
    [
        (None, {}, (DEFAULT, "default")),
        ([], {}, (DEFAULT, "default")),
        ([2, 4, 5], {}, (DEFAULT, "boundary")),
        ([1, 3, 4], {}, (DEFAULT, "post+1")),  # the default ids in the other convention
        ([1, 3, 4], BOUNDARY, ((1, 3, 4), "boundary")),
        # boundary ids, because block 8 does not exist
        ([1, 3, 8], {}, ((1, 3, 8), "boundary")),
        ([9, 9, 9], {"aux_layers": [0, 3, 8]}, ((0, 3, 8), "given")),
        (None, {"aux_layers": [1, 3, 4], **POST}, (DEFAULT, "given")),
        ([4, 2, 5], BOUNDARY, "distinct ascending"),
        ([2, 2, 5], BOUNDARY, "distinct ascending"),
        ([2, 4, 9], BOUNDARY, "from 0 to 8"),
        ([2, 4, 8], POST, "from 0 to 8"),
        ([-1, 4, 5], BOUNDARY, "from 0 to 8"),
        (None, {"aux_layers": [2, 4]}, "expected 3 ids, as fc.weight reads 3 states, found 2"),
    ],
)
def test_ids_of_families_without_a_convention(
    ids: list[int] | None, given: dict[str, Any], expected: Any, convert: Convert, tmp_path: Path
) -> None:
    """Tests layer ids of families without a convention. expected: the ids and their rule, or the reason of a
    refusal.
    """
    checkpoint = write_checkpoint(tmp_path / "in", edit={IDS: ids})
    if isinstance(expected, str):
        with pytest.raises(LayerIdError, match=expected):
            convert(checkpoint, **given)
    else:
        spec = convert(checkpoint, **given).spec
        assert (spec.aux_layers, spec.layer_ids_rule) == expected


@pytest.mark.parametrize(
    ("family", "layers", "edit"),
    [
        *((family, (2, 4, 7), {}) for family in ("specforge", "torchspec", "modelopt", "speculators")),
        ("speculators", (1, 3, 4), {}),
        ("deepspec", (1, 2, 4, 5, 7), {}),
        # Both keys have the same ids, so the ids are boundary ids in either convention.
        ("torchspec", (1, 3, 6), {IDS: [1, 3, 6]}),
        # the number of layers follows from the size of fc
        ("speculators", (1, 3, 5, 7), {"num_aux_hidden_states": 3}),
    ],
)
def test_families_with_a_convention_need_no_flag(
    family: str, layers: tuple[int, ...], edit: dict[str, Any], convert: Convert, tmp_path: Path
) -> None:
    qwen3 = {"qk_norm": True, "n_draft_vocab": 367} if family == "deepspec" else {}
    shape = DraftShape(layers=layers, **qwen3)
    report = convert(write_checkpoint(tmp_path / "in", family, shape, edit=edit))
    assert report.spec.aux_layers == layers
    assert (report.spec.layer_ids_rule == "boundary") == (family == "speculators" or IDS in edit)
    assert any("layer_ids: read as boundary" in note for note in report.notes) == (layers == (1, 3, 4))


@pytest.mark.parametrize("family", ["eagle", "vllm", "automodel"])
def test_families_without_a_convention_need_a_reading(family: str, convert: Convert, tmp_path: Path) -> None:
    shape = DraftShape(layers=(1, 3, 6))
    checkpoint = write_checkpoint(tmp_path / "in", family, shape, edit={IDS: [1, 3, 6]})
    with pytest.raises(LayerIdError, match="ambiguous"):
        convert(checkpoint)
    assert convert(checkpoint, **POST).spec.aux_layers == (2, 4, 7)
    assert convert(checkpoint, aux_layers=[1, 3, 5]).spec.aux_layers == (1, 3, 5)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [((2, 5, 7), None), ((2, 4, 5), (2, 4, 5)), ((1, 3, 4), (2, 4, 5)), ((1, 3, 8), (1, 3, 8))],
)
def test_torchspecs_layer_0_of_kimi_is_recognised_by_its_ids_or_refused(
    ids: tuple[int, ...], expected: tuple[int, ...] | None, convert: Convert, tmp_path: Path
) -> None:
    """TorchSpec's export for vLLM writes boundary ids for kimi_k2. Since June 2026 it writes the ids of the
    blocks before the boundaries.
    """
    edit = {"model_type": "kimi_k2", "architectures": ["LlamaForCausalLMEagle3"]}
    checkpoint = write_checkpoint(tmp_path / "in", "kimi", DraftShape(layers=ids), edit=edit)
    if expected:
        report = convert(checkpoint)
        assert (report.family, report.spec.aux_layers) == ("TorchSpec", expected)
        return
    with pytest.raises(LayerIdError, match="--reading layer_ids=boundary or --reading layer_ids=post"):
        convert(checkpoint)
    assert convert(checkpoint, **POST).spec.aux_layers == tuple(k + 1 for k in ids)


def test_contradicting_and_missing_ids_are_refused(convert: Convert, tmp_path: Path) -> None:
    with pytest.raises(LayerIdError, match="at the top level and"):
        convert(write_checkpoint(tmp_path / "in", "torchspec", edit={IDS: [1, 3, 4]}))
    four = write_checkpoint(tmp_path / "four", shape=DraftShape(layers=(1, 2, 4, 6)), edit={IDS: None})
    with pytest.raises(LayerIdError, match="the default has 3 layers"):
        convert(four)
