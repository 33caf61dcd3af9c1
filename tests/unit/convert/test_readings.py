# SPDX-License-Identifier: MIT
"""Tests the ambiguities of checkpoints in each family: the possible readings, the default reading, the effect
of a chosen reading on the file, and the recorded reasons. tests/parity compares the arithmetic of each
reading with PyTorch. The rules for layer ids have one case per rule and per refusal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eaglecpp.convert import open_choices
from eaglecpp.convert.errors import ConfigError, LayerIdError, UnsupportedError
from helpers.checkpoints import Convert, write_checkpoint
from helpers.gguf_writer import key_of, tensors_of
from helpers.random_drafter import DraftShape, LatentShape
from helpers.tiny import TinyTarget

PLAIN = DraftShape()
NEW = DraftShape(fc_norm=True, norm_output=True)
LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 5e5}
LLAMA3 = {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "rope_theta": 5e5}
YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
KIMI = DraftShape(latent=LatentShape(), rope=YARN)
THETA = {"rope_theta": 5e5}
UNSIGNED = {"eagle_config": {"use_aux_hidden_state": True}}
BOTH = ("500000", "10000")


@pytest.mark.parametrize(
    ("family", "shape", "edit", "expected"),
    [
        ("eagle", PLAIN, {}, {}),
        ("eagle", PLAIN, THETA, {"rope_theta": BOTH}),
        ("eagle", PLAIN, LLAMA3, {}),
        ("vllm", PLAIN, THETA, {"rope_theta": BOTH}),
        ("vllm", PLAIN, LINEAR, {"rope_theta": BOTH}),
        ("vllm", PLAIN, {"rope_theta": 1e4}, {}),
        ("specforge", PLAIN, THETA, {"rope_theta": BOTH}),
        ("specforge", PLAIN, LLAMA3, {"rope_theta": BOTH, "rope_scaling": ("config", "none")}),
        # a checkpoint from before the trainer's fix
        ("specforge", PLAIN, {"fc_norm": False, **THETA}, {}),
        ("specforge", NEW, THETA, {"feed": ("post", "pre")}),
        ("specforge", PLAIN, {"norm_output": False}, {"head_norm": ("yes", "no")}),
        ("speculators", PLAIN, THETA, {}),
        ("automodel", PLAIN, THETA, {}),
        ("torchspec", PLAIN, THETA, {}),
        ("torchspec", PLAIN, {"rope_scaling": YARN, **THETA}, {"rope_theta": BOTH}),
        ("torchspec", KIMI, THETA, {"rope_theta": BOTH}),
        ("modelopt", PLAIN, {}, {"feature_norm": ("twice", "once")}),
        ("modelopt", DraftShape(norm_before_fc=True), {}, {"feature_norm": ("once", "twice")}),
        ("modelopt", PLAIN, UNSIGNED, {"feature_norm": ("once", "twice")}),
        # eaglecpp's trainer wrote this checkpoint.
        ("torchspec", PLAIN, {"eaglecpp": {}, "rope_scaling": YARN, **THETA}, {}),
    ],
)  # fmt: skip
def test_the_choices_of_each_family(
    family: str,
    shape: DraftShape,
    edit: dict[str, Any],
    expected: dict[str, Any],
    target: TinyTarget,
    tmp_path: Path,
) -> None:
    choices = open_choices(write_checkpoint(tmp_path / "in", family, shape, edit=edit), target.gguf)
    assert {choice.name: choice.values for choice in choices} == expected
    assert not any(choice.is_open for choice in choices)


def test_a_given_reading_is_not_a_choice_any_more(target: TinyTarget, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "specforge", edit=LLAMA3)
    names = [choice.name for choice in open_choices(checkpoint, target.gguf, readings={"rope_theta": 10000})]
    assert names == ["rope_scaling"]


@pytest.mark.parametrize("family", ["eagle", "eagle1"])
def test_a_theta_that_trainer_and_engines_always_read_differently_has_no_default(
    family: str, convert: Convert, target: TinyTarget, tmp_path: Path
) -> None:
    shape = DraftShape(eagle1=True, own_head=False, n_draft_vocab=367) if family == "eagle1" else PLAIN
    checkpoint = write_checkpoint(tmp_path / "in", "eagle", shape, edit=LINEAR)
    (choice,) = open_choices(checkpoint, target.gguf)
    assert choice.is_open and choice.values == BOTH
    with pytest.raises(ConfigError, match="--reading rope_theta=500000 or --reading rope_theta=10000"):
        convert(checkpoint)
    assert convert(checkpoint, readings={"rope_theta": 10000}).spec.rope.theta == 1e4


def test_a_given_theta_overrides_the_config_of_any_family(converted: Convert) -> None:
    report = converted("speculators", readings={"rope_theta": 20000})
    assert report.spec.rope.theta == 2e4
    assert report.spec.readings == ("rope_theta=20000 (given)",)


def test_scaling_that_was_never_applied_is_left_out(convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "specforge", edit=LLAMA3)
    assert any(t.name == "rope_freqs.weight" for t in convert(checkpoint).tensors)
    report = convert(checkpoint, readings={"rope_theta": "10000", "rope_scaling": "none"})
    assert report.spec.rope.theta == 1e4 and report.spec.rope.scaling == "none"
    assert not any(t.name == "rope_freqs.weight" for t in report.tensors)


def test_readings_and_their_reasons_are_in_the_file(convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "specforge", edit=LLAMA3)
    report = convert(checkpoint, readings={"rope_theta": "10000"}, reasons={"rope_theta": "measured: better"})
    assert key_of(report.out, "eaglecpp.readings") == [
        "rope_scaling=config (default, not measured)",
        "rope_theta=10000 (measured: better)",
    ]
    plain = convert(checkpoint, readings={"rope_theta": "10000", "rope_scaling": "none"})
    assert (
        convert(plain.out, out=tmp_path / "again.gguf").spec.readings
        == plain.spec.readings
        == ("rope_theta=10000 (given)", "rope_scaling=none (given)")
    )


def test_an_unmeasured_choice_is_reported(converted: Convert) -> None:
    (note,) = (n for n in converted("eagle", edit=THETA).notes if "theta" in n)
    assert "rope_theta: read as 500000, but 10000 is also possible" in note
    assert "--reading rope_theta=10000" in note


@pytest.mark.parametrize(
    ("readings", "message"),
    [
        ({"norms": "two"}, "expected one of layer_ids"),
        ({"feed": "both"}, "expected pre or post"),
        ({"rope_theta": "-1"}, "expected a positive number"),
        ({"rope_theta": "nan"}, "expected a positive number"),
    ],
)
def test_unknown_readings_are_a_usage_error(
    readings: dict[str, str], message: str, converted: Convert
) -> None:
    with pytest.raises(ValueError, match=message):
        converted(readings=readings)


def test_readings_that_exclude_each_other_are_refused(converted: Convert) -> None:
    with pytest.raises(ConfigError, match=r"head_norm=no and feed=post"):
        converted("torchspec", NEW, readings={"head_norm": "no"})


def test_a_head_without_a_norm_has_no_norm_in_the_file(convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "specforge", edit={"norm_output": False})
    report = convert(checkpoint, readings={"head_norm": "no"})
    assert report.spec.architecture == "eagle31"
    assert not any(t.name == "output_norm.weight" for t in report.tensors)
    assert key_of(report.out, "eagle31.head_norm") is False
    with pytest.raises(UnsupportedError, match="a head without a norm cannot be read back"):
        convert(report.out, out=tmp_path / "again.gguf")


def test_two_norms_become_one(convert: Convert, tmp_path: Path) -> None:
    weights = PLAIN.weights()
    w1, w2 = (weights[f"layers.0.{name}.weight"] for name in ("input_layernorm", "hidden_norm"))
    checkpoint = write_checkpoint(tmp_path / "in", "modelopt", PLAIN)
    found = tensors_of(convert(checkpoint).out)["blk.0.attn_norm_2.weight"]
    np.testing.assert_allclose(found, w1 * w2 / np.sqrt(np.mean(w1**2)), rtol=1e-6)
    once = convert(checkpoint, readings={"feature_norm": "once"})
    np.testing.assert_array_equal(tensors_of(once.out)["blk.0.attn_norm_2.weight"], w2)
    np.testing.assert_array_equal(tensors_of(once.out)["blk.0.attn_norm.weight"], w1)


def test_megatron_names_of_model_optimizer_have_one_norm(target: TinyTarget, tmp_path: Path) -> None:
    weights = {name.replace("layers.0.", "midlayer."): value for name, value in PLAIN.weights().items()}
    drop = ("embed_tokens.weight", "t2d")
    checkpoint = write_checkpoint(
        tmp_path / "in",
        "modelopt",
        PLAIN,
        drop=[name for name in PLAIN.weights() if name.startswith("layers.0.")],
        add={name: value for name, value in weights.items() if name not in drop},
    )
    assert open_choices(checkpoint, target.gguf) == ()


# Layer ids


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
    family: str, layers: tuple[int, ...], edit: dict[str, Any], converted: Convert
) -> None:
    qwen3 = {"qk_norm": True, "n_draft_vocab": 367} if family == "deepspec" else {}
    shape = DraftShape(layers=layers, **qwen3)
    report = converted(family, shape, edit=edit)
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
