# SPDX-License-Identifier: MIT
"""Tests the table of PARAMETER names: Go's number syntax, ranges, defaults, and names of the engine's own
options.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from eaglecpp.modelfile.parameters import (
    PARAMETERS,
    ParameterError,
    from_json,
    parameter_options,
    parse_number,
)
from eaglecpp.options import ModelOptions, SamplingOptions, Strategy

GROUPS = {"model": ModelOptions, "sampling": SamplingOptions}


NUMBERS: dict[str, dict[str, Any]] = {
    "int": {"+5": 5, "007": 7, "-9223372036854775808": -(2**63)},
    "float": {".5": 0.5, "5.": 5.0, "9e-1": 0.9, "1e-50": 1e-50, "0x1p-2": 0.25, "-0X.8P1": -1.0},
    "bool": {"t": True, "FALSE": False},
}
OTHER_TEXTS = {
    "int": ("", "1_000", "0x10", "5.0", "٣", "9223372036854775808", "9" * 5000),
    "float": ("1_0", "0x1", "0x1p128", "0x1p99999", "1e39", "+nan", "nan", "inf", "-Infinity"),
    "bool": ("no", "tRUE"),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_number_syntax_equals_gos(kind: str) -> None:
    assert {text: parse_number(kind, text) for text in NUMBERS[kind]} == NUMBERS[kind]
    for text in OTHER_TEXTS[kind]:
        with pytest.raises(ParameterError, match=rf"invalid {kind} value \["):
            parse_number(kind, text)


@pytest.mark.parametrize("parameter", PARAMETERS.values(), ids=lambda p: p.name)
@pytest.mark.parametrize("wild", [-(10**6), 0, 10**6])
def test_fitted_values_are_accepted_by_the_engine(parameter: Any, wild: int) -> None:
    value = {"int": wild, "float": float(wild), "bool": True, "strings": ("x",)}[parameter.kind_name]
    options = parameter_options({parameter.name: value})
    for group, cls in GROUPS.items():
        cls(**{key.partition(".")[2]: value for key, value in options.items() if key.startswith(f"{group}.")})
    Strategy.parse(str(options.get("strategy", "auto")))


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("top_k", 5, 5),
        ("top_k", 5.9, 5),
        ("temperature", 1, 1.0),
        ("use_mmap", False, False),
        ("stop", "x", ("x",)),
    ],
)
def test_json_values(name: str, given: Any, value: Any) -> None:
    result = from_json(name, given)
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("top_k", True, 'option "top_k" must be of type integer'),
        ("top_k", math.nan, 'option "top_k" must be of type integer'),
        ("temperature", math.inf, 'option "temperature" must be of type float32'),
        ("temperature", 1e39, 'option "temperature" must be of type float32'),
        ("temperature", None, 'option "temperature" must be of type float32'),
        ("use_mmap", 1, 'option "use_mmap" must be of type boolean'),
        ("stop", [1], 'option "stop" must be of type array of strings'),
        ("nope", 1, "unknown parameter 'nope'"),
    ],
)
def test_json_of_the_wrong_type_is_refused(name: str, given: Any, problem: str) -> None:
    with pytest.raises(ParameterError) as caught:
        from_json(name, given)
    assert str(caught.value) == problem
