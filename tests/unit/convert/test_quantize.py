# SPDX-License-Identifier: MIT
"""Tests quantisation. Every type round-trips within its error limit, the table offers every type that ggml
can write, and no tensor is stored in a wrong type.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q

from eaglecpp.convert.errors import QuantTypeError, TensorError
from eaglecpp.convert.ggml_lib import _library as ggml
from eaglecpp.convert.quantize import TYPES, ErrorSum, encode, file_type, parse_type, plan_type
from helpers.checkpoints import Convert
from helpers.random_drafter import DraftShape

# Maximum relative RMS error for normally distributed values. Each limit is a third above the present error of
# ggml's quantiser.
LIMITS = {
    "F32": 0.0, "F16": 3e-4, "BF16": 3e-3, "Q8_0": 8e-3, "Q6_K": 0.03, "Q5_K": 0.05,
    "Q5_1": 0.06, "Q5_0": 0.06,
    "Q4_K": 0.1, "Q4_1": 0.1, "Q4_0": 0.12, "IQ4_NL": 0.11, "IQ4_XS": 0.11, "MXFP4": 0.16, "NVFP4": 0.14,
    "Q3_K": 0.2, "IQ3_S": 0.2, "IQ3_XXS": 0.27, "Q2_K": 0.4, "IQ2_S": 0.4,
    "IQ1_M": 0.75, "TQ2_0": 1.0, "TQ1_0": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return np.random.default_rng(5).normal(0, 0.02, (24, 512)).astype(np.float32)


def encoded(values: np.ndarray, kind: Q, n_workers: int = 2) -> tuple[bytes, float]:
    errors = ErrorSum()
    with ThreadPoolExecutor(n_workers) as pool:
        data = b"".join(encode(values, kind, errors, "t", pool, n_workers))
    return data, errors.relative_rms


# IQ1_M is left out. ggml builds a search grid when a type such as IQ1_M is first used, which takes 17 s.
@pytest.mark.parametrize("name", sorted(set(TYPES) - {"IQ1_M"}))
def test_round_trip_within_the_types_error(name: str, values: np.ndarray) -> None:
    kind = Q[name]
    data, reported = encoded(values, kind)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    assert len(data) == values.size // block * block_bytes
    decoded = gguf.quants.dequantize(np.frombuffer(data, np.uint8).reshape(len(values), -1), kind)
    error = float(np.linalg.norm(decoded - values) / np.linalg.norm(values))
    assert reported == pytest.approx(error, rel=1e-3, abs=1e-7)
    assert error <= LIMITS[name]


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "IQ3_XXS"])
def test_the_number_of_threads_does_not_matter(name: str, values: np.ndarray) -> None:
    assert encoded(values, Q[name], 1)[0] == encoded(values, Q[name], 7)[0]


def test_the_table_has_every_type_ggml_writes_without_an_importance_matrix() -> None:
    readable = {kind for kind in Q if kind in gguf.quants._type_traits} | {Q.F32, Q.F16}
    assert set(TYPES) == {k.name for k in readable if not ggml().ggml_quantize_requires_imatrix(k) & 1}


@pytest.mark.parametrize("name", TYPES)
def test_fc_and_head_are_never_stored_worse_than_the_rest(name: str) -> None:
    plan = parse_type(name)
    assert LIMITS[plan.raised.name] <= LIMITS[plan.body.name]
    assert plan.raised is plan.body or LIMITS[plan.body.name] > LIMITS["Q6_K"]
    assert file_type(plan) in set(gguf.LlamaFileType)


@pytest.mark.parametrize(
    ("name", "role", "row", "expected"),
    [
        ("Q4_K", "matrix", 512, "Q4_K"),
        ("Q4_K", "fc", 512, "Q5_K"),
        ("Q4_K", "head", 512, "Q5_K"),
        ("Q4_K", "matrix", 96, "Q5_0"),
        ("Q5_K", "matrix", 576, "Q5_1"),
        ("Q4_1", "head", 576, "Q5_1"),
        ("Q2_K", "matrix", 576, "Q4_0"),
        ("IQ4_XS", "matrix", 576, "IQ4_NL"),
        ("Q6_K", "head", 576, "Q8_0"),
        ("Q8_0", "matrix", 100, "F16"),
        ("F32", "matrix", 101, "F32"),
        ("Q4_K", "norm", 512, "F32"),
        ("Q4_K", "map", 512, "I64"),
    ],
)
def test_types_by_role_and_row(name: str, role: str, row: int, expected: str) -> None:
    kind, note = plan_type(parse_type(name), role, row)  # type: ignore[arg-type]
    assert kind.name == expected
    assert (f"{expected}: rows of {row} are not divisible" in note) == (row in (96, 100, 576))


@pytest.mark.parametrize(
    ("name", "message"),
    [("Q9_9", "type Q9_9 is unknown; expected one of F32"), ("IQ2_XXS", "without an importance matrix")],
)
def test_other_types_are_refused_with_the_list(name: str, message: str) -> None:
    with pytest.raises(QuantTypeError, match=message):
        parse_type(name)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_are_refused(bad: float, values: np.ndarray) -> None:
    with pytest.raises(TensorError, match="tensor t: contains NaN or infinite"):
        encoded(np.where(np.arange(512) == 7, np.float32(bad), values).astype(np.float32), Q.Q8_0)


def test_values_beyond_f16_are_refused() -> None:
    with pytest.raises(TensorError, match="F16 cannot hold its values; use BF16"):
        encoded(np.full((1, 32), 1e5, np.float32), Q.F16)


def test_a_quantised_file_reports_and_falls_back(converted: Convert) -> None:
    report = converted("vllm", DraftShape(), type="Q5_K")
    by_name = {tensor.name: tensor for tensor in report.tensors}
    assert by_name["fc.weight"].type == "Q8_0"
    assert "Q8_0: rows of 192 are not divisible into Q6_K blocks of 256" in by_name["fc.weight"].note
    assert by_name["output_norm.weight"].type == "F32"
    assert by_name["output_norm.weight"].rel_rms_error == 0
    assert 0 < by_name["fc.weight"].rel_rms_error < 0.01
    assert report.type == "Q5_K"
