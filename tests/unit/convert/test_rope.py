# SPDX-License-Identifier: MIT
"""Tests the rope settings of draft configs: the values that the converter writes for ggml's rope must give
the same angles.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from eaglecpp.convert.errors import ConfigError, UnsupportedError
from eaglecpp.convert.rope import parse_rope
from eaglecpp.convert.spec import RopeSpec

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("config", "theta"),
    [
        ({}, 10000.0),
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "default", "rope_theta": 1e6}}, 1e6),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 2e6}}, 2e6),
        ({"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 3e6}}}, 3e6),
    ],
)
def test_theta_is_found_where_each_version_writes_it(config: dict[str, Any], theta: float) -> None:
    assert parse_rope(config)[0] == RopeSpec(theta)


def test_mrope_is_plain_rope_with_a_note() -> None:
    rope, note = parse_rope({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}})
    assert rope == RopeSpec(1e4)
    assert "text, not" in note


@pytest.mark.parametrize(
    ("extra", "multiplier"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 1.0}, 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 1.0}, (0.0707 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
        ({"mscale": 0.707, "mscale_all_dim": 0.0}, 0.1 * math.log(4) + 1),
        ({"attn_factor": 2.0}, 2 * (0.1 * math.log(4) + 1)),
    ],
)
def test_yarn_scales_cos_and_sin_by_the_checkpoints_factor(extra: dict[str, Any], multiplier: float) -> None:
    rope, _ = parse_rope({"rope_scaling": {**YARN, **extra}})
    by_ggml = 1 + 0.1 * math.log(rope.factor)
    assert rope.attn_factor * by_ggml == pytest.approx(multiplier, rel=1e-6)
    assert (rope.scaling, rope.factor, rope.original_context) == ("yarn", 4.0, 4096)


def test_an_mscale_that_trainers_and_engines_read_differently_is_noted() -> None:
    _, note = parse_rope({"rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.0}})
    assert "mscale 0.707 has no effect without mscale_all_dim" in note
    for harmless in ({"mscale": 1.0, "mscale_all_dim": 0}, {"mscale": 0.7, "mscale_all_dim": 0.7}, {}):
        assert parse_rope({"rope_scaling": {**YARN, **harmless}})[1] == ""


def test_the_same_scaling_under_both_names_is_one() -> None:
    both = {"rope_scaling": YARN, "rope_parameters": {**YARN, "rope_type": "yarn", "rope_theta": 1e6}}
    assert parse_rope(both)[0].theta == 1e6


SCALINGS: list[tuple[Any, type[Exception], str]] = [
    ({"type": "dynamic", "factor": 2.0}, UnsupportedError, "'dynamic' is not supported"),
    ({"type": "longrope"}, UnsupportedError, "'longrope' is not supported"),
    ({"type": "linear"}, ConfigError, r"rope_scaling\.factor: expected a number, found no such key"),
    ({"type": "linear", "factor": -1}, ConfigError, "expected a number of 0 or more"),
    ({"type": "linear", "factor": "2"}, ConfigError, "expected a number of 0 or more, found '2'"),
    ({"type": "yarn", "factor": 2.0}, ConfigError, "original_max_position_embeddings: expected a length"),
    ({**YARN, "truncate": False}, UnsupportedError, "truncate: expected true"),
    (
        {"type": "llama3", "factor": 8.0, "high_freq_factor": 1.0},
        ConfigError,
        "low_freq_factor < high_freq_factor",
    ),
    ([1, 2], ConfigError, "expected an object, found list"),
    ({"a": {"rope_theta": 1}, "b": {"rope_theta": 2}}, UnsupportedError, "different rope settings"),
]
CONTRADICT = "rope_parameters and rope_scaling contradict each other: "


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        *(({"rope_scaling": scaling}, error, message) for scaling, error, message in SCALINGS),
        ({"partial_rotary_factor": 0.5}, UnsupportedError, "partial_rotary_factor"),
        (
            {"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": YARN},
            ConfigError,
            f"{CONTRADICT}rope_type is 'default' and 'yarn'",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"rope_theta": 5e5}},
            ConfigError,
            f"{CONTRADICT}rope_theta is 1000000.0 and",
        ),
    ],
)
def test_refusals(config: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_rope(config)
