# SPDX-License-Identifier: MIT
"""Quantised checkpoints are read as what their format says, and refused where it does not say."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eaglecpp.convert import ConvertReport, errors
from eaglecpp.convert.tensor import TensorSource
from helpers.checkpoints import MISTRAL_PARAMS, mistral_weights, write_checkpoint
from helpers.gguf_writer import check_same_tensors, tensors_of
from helpers.random_drafter import DraftShape

Convert = Callable[..., ConvertReport]
Array = np.ndarray[Any, Any]
NAMES = ("mlp.up_proj", "mlp.down_proj", "self_attn.q_proj")
MISTRAL = DraftShape(eagle1=True, eagle1_norms=True, own_head=False, n_draft_vocab=367)
SHAPE = DraftShape(n_ff=128)  # every width is a multiple of 64


def e4m3(values: Array) -> tuple[Array, Array]:
    """The nearest 8-bit floats: codes and what they stand for. Written from the format, not the reader."""
    table = np.array([_value(code) for code in range(256)], np.float32)
    finite = np.flatnonzero(~np.isnan(table))
    order = finite[np.argsort(table[finite], kind="stable")]
    at = np.clip(np.searchsorted(table[order], values), 1, len(order) - 1)
    low, high = order[at - 1], order[at]
    codes = np.where(np.abs(table[low] - values) <= np.abs(table[high] - values), low, high)
    return codes.astype(np.uint8), table[codes]


def _value(code: int) -> float:
    sign, exponent, mantissa = -1.0 if code & 128 else 1.0, (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


def scale_of(weight: Array, block: tuple[int, int], largest: float) -> Array:
    rows, columns = block
    shaped = np.abs(weight).reshape(len(weight) // rows, rows, -1, columns)
    return (shaped.max(axis=(1, 3)) / largest).astype(np.float32)


def spread(scale: Array, block: tuple[int, int]) -> Array:
    return scale.repeat(block[0], axis=0).repeat(block[1], axis=1)


def fp8(block: tuple[int, int] | None, suffix: str) -> Callable[[str, Array], tuple[dict[str, Any], Array]]:
    def make(name: str, weight: Array) -> tuple[dict[str, Any], Array]:
        size = block or weight.shape
        scale = scale_of(weight, size, 448.0)
        codes, values = e4m3(weight / spread(scale, size))
        stored = scale if block else scale.reshape(())
        tensors = {f"{name}.weight": codes.view(Fp8), f"{name}.{suffix}": stored}
        return tensors | {f"{name}.input_scale": np.ones((), np.float32)}, values * spread(scale, size)

    return make


class Fp8(np.ndarray):
    """Bytes to be stored as F8_E4M3, a type numpy has not."""


def int8(name: str, weight: Array) -> tuple[dict[str, Any], Array]:
    scale = scale_of(weight, (1, weight.shape[1]), 127.0)
    codes = np.rint(weight / scale).astype(np.int8)
    return {f"{name}.weight": codes, f"{name}.weight_scale": scale}, codes * scale


def packed_int4(name: str, weight: Array) -> tuple[dict[str, Any], Array]:
    scale = scale_of(weight, (1, 32), 7.0)
    codes = np.clip(np.rint(weight / spread(scale, (1, 32))), -8, 7).astype(np.int64)
    words = np.zeros((len(weight), weight.shape[1] // 8), np.uint32)
    for i in range(8):
        words |= (codes[:, i::8] + 8).astype(np.uint32) << np.uint32(4 * i)
    tensors = {
        f"{name}.weight_packed": words.view(np.int32),
        f"{name}.weight_scale": scale,
        f"{name}.weight_shape": np.array(weight.shape, np.int64),
    }
    return tensors, codes * spread(scale, (1, 32))


def awq(name: str, weight: Array) -> tuple[dict[str, Any], Array]:
    group, columns = 32, np.ascontiguousarray(weight.T)
    shaped = columns.reshape(-1, group, columns.shape[1])
    low, high = shaped.min(axis=1), shaped.max(axis=1)
    scales = ((high - low) / 15.0).astype(np.float16)
    zeros = np.clip(np.rint(-low / scales.astype(np.float32)), 0, 15).astype(np.int64)
    wide = scales.astype(np.float32).repeat(group, axis=0)
    codes = np.clip(np.rint(columns / wide) + zeros.repeat(group, axis=0), 0, 15).astype(np.int64)
    tensors = {
        f"{name}.qweight": awq_words(codes),
        f"{name}.qzeros": awq_words(zeros),
        f"{name}.scales": scales,
    }
    return tensors, ((codes - zeros.repeat(group, axis=0)) * wide).T


def awq_words(codes: Array) -> Array:
    words = np.zeros((len(codes), codes.shape[1] // 8), np.uint32)
    for nibble, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        words |= codes[:, column::8].astype(np.uint32) << np.uint32(4 * nibble)
    return words.view(np.int32)


def compressed(**weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


INT4 = compressed(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
FORMATS: dict[str, tuple[dict[str, Any], Callable[[str, Array], tuple[dict[str, Any], Array]]]] = {
    "fp8 per tensor": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8(None, "weight_scale")),
    "fp8 per row": (compressed(num_bits=8, type="float", strategy="channel"), fp8((1, 64), "weight_scale")),
    "fp8 in blocks": (
        {"quant_method": "fp8", "weight_block_size": [32, 32]},
        fp8((32, 32), "weight_scale_inv"),
    ),
    "int8 per row": (compressed(num_bits=8, type="int", symmetric=True, strategy="channel"), int8),
    "int4 packed": (INT4, packed_int4),
    "awq": (AWQ, awq),
}


def quantised(
    make: Callable[[str, Array], tuple[dict[str, Any], Array]],
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Some tensors of SHAPE in a format, and the values they then have."""
    weights, stored, values = SHAPE.weights(), {}, {}
    for name in NAMES:
        full = f"layers.0.{name}"
        weight = weights[f"{full}.weight"]
        if make is FORMATS["fp8 per row"][1]:
            made, value = fp8((1, weight.shape[1]), "weight_scale")(full, weight)
        else:
            made, value = make(full, weight)
        stored |= made
        values[f"{full}.weight"] = value.astype(np.float32)
    return stored, values


def save(directory: Path, weights: Mapping[str, Any]) -> None:
    """model.safetensors, with a type that the library's numpy writer has not."""
    header: dict[str, Any] = {}
    data = b""
    names = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int8": "I8", "bool": "BOOL"}
    for name, value in weights.items():
        raw = np.ascontiguousarray(value)
        kind = "F8_E4M3" if isinstance(value, Fp8) else names[raw.dtype.name]
        header[name] = {
            "dtype": kind,
            "shape": list(value.shape),
            "data_offsets": [len(data), len(data) + raw.nbytes],
        }
        data += raw.tobytes()
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def write(directory: Path, stored: Mapping[str, Any], config: Mapping[str, Any] | None) -> Path:
    directory.mkdir()
    plain = {
        n: v
        for n, v in SHAPE.weights().items()
        if n.removesuffix(".weight").removeprefix("layers.0.") not in NAMES
    }
    made = SHAPE.config() | ({"quantization_config": dict(config)} if config else {})
    (directory / "config.json").write_text(json.dumps(made))
    save(directory, plain | dict(stored))
    return directory


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantised_checkpoint_becomes_the_file_of_its_values(
    name: str, convert: Convert, tmp_path: Path
) -> None:
    config, make = FORMATS[name]
    stored, values = quantised(make)
    report = convert(write(tmp_path / "in", stored, config))
    reference = convert(
        write_checkpoint(tmp_path / "ref", "vllm", SHAPE, add=values, drop=tuple(values)),
        out=tmp_path / "ref.gguf",
    )
    check_same_tensors(report.out, reference.out, 1e-6, 1e-7)
    assert any("3 quantised tensors" in note for note in report.notes)


@pytest.mark.parametrize("rows", [(0, 3), (5, 64), (31, 33)])
def test_any_range_of_rows_can_be_read(rows: tuple[int, int], tmp_path: Path) -> None:
    from eaglecpp.convert.quantised import dequantised
    from eaglecpp.convert.safetensors_file import read_index

    for name, (config, make) in FORMATS.items():
        stored, values = quantised(make)
        directory = write(tmp_path / name.replace(" ", "-"), stored, config)
        found, _ = dequantised(read_index(directory / "model.safetensors"), {"quantization_config": config})
        for tensor, value in values.items():
            source: TensorSource = found[tensor]
            np.testing.assert_allclose(source.read_rows(*rows), value[slice(*rows)], rtol=1e-6, err_msg=name)


def test_a_scale_turned_the_other_way_is_seen(convert: Convert, tmp_path: Path) -> None:
    """Negative control: dividing by the scale gives another file."""
    config, make = FORMATS["fp8 in blocks"]
    stored, values = quantised(make)
    wrong = {n: 1.0 / v if n.endswith("_inv") else v for n, v in stored.items()}
    found = tensors_of(convert(write(tmp_path / "in", wrong, config)).out)
    assert not np.allclose(found["blk.0.ffn_up.weight"], values["layers.0.mlp.up_proj.weight"], rtol=0.1)


def save_mistral(directory: Path, scale_shape: tuple[int, ...]) -> dict[str, Array]:
    """Mistral's layout in fp8; returns the values, under Hugging Face's names and in its order of rows."""
    weights, values = MISTRAL.weights(), {}
    scales: dict[str, Array] = {}
    for name in ("layers.0.self_attn.q_proj.weight", "layers.0.mlp.up_proj.weight"):
        scale = np.float32(np.abs(weights[name]).max() / 448.0)
        codes, value = e4m3(weights[name] / scale)
        weights[name], values[name] = codes, value * scale
        scales[name] = np.full(scale_shape, scale, np.float32)
    stored: dict[str, Any] = {}
    for name, value in mistral_weights(weights).items():
        stored[name] = value.view(Fp8) if value.dtype == np.uint8 else value
    stored["layers.0.attention.wq.qscale_weight"] = scales["layers.0.self_attn.q_proj.weight"]
    stored["layers.0.feed_forward.w3.qscale_weight"] = scales["layers.0.mlp.up_proj.weight"]
    directory.mkdir()
    save(directory, stored)
    (directory / "model.safetensors").rename(directory / "consolidated.safetensors")
    params = MISTRAL_PARAMS | {"quantization": {"qformat_weight": "fp8_e4m3"}}
    (directory / "params.json").write_text(json.dumps(params))
    return values


def test_mistrals_fp8_has_one_scale_for_a_matrix(convert: Convert, tmp_path: Path) -> None:
    values = save_mistral(tmp_path / "in", ())
    found = convert(tmp_path / "in").out
    reference = write_checkpoint(tmp_path / "ref", shape=MISTRAL, add=values)
    check_same_tensors(found, convert(reference, out=tmp_path / "ref.gguf").out, 1e-6, 1e-7)


def test_mistrals_fp8_with_a_scale_for_each_row_is_refused(convert: Convert, tmp_path: Path) -> None:
    """Rows of q and k are put into another order; their scales would not be."""
    save_mistral(tmp_path / "in", (64, 1))
    with pytest.raises(errors.TensorError, match=r"qscale_weight \[64, 1\]: expected one scale"):
        convert(tmp_path / "in")


def edited(config: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {**config, **changes}


FP8_ROWS = FORMATS["fp8 per row"]
REFUSED: dict[str, tuple[str, dict[str, Any] | None, Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "no config": ("fp8 per row", None, lambda t: t, "quant_method: expected one of"),
    "another method": ("awq", {"quant_method": "gptq", "bits": 4}, lambda t: t, "quantised checkpoint"),
    "no scale": (
        "fp8 per row",
        FP8_ROWS[0],
        lambda t: {n: v for n, v in t.items() if not n.endswith("weight_scale")},
        "F8_E4M3 without a scale",
    ),
    "odd scale": (
        "fp8 per row",
        FP8_ROWS[0],
        lambda t: {n: v[:-1] if n.endswith("weight_scale") else v for n, v in t.items()},
        "expected one scale for the whole",
    ),
    "zero points": (
        "int4 packed",
        INT4,
        lambda t: t | {"layers.0.mlp.up_proj.weight_zero_point": np.zeros(4, np.int32)},
        "quantised checkpoint",
    ),
    "asymmetric": (
        "int4 packed",
        compressed(num_bits=4, type="int", symmetric=False),
        lambda t: t,
        "symmetric int",
    ),
    "words": (
        "int4 packed",
        INT4,
        lambda t: {n: v[:, :-1] if n.endswith("weight_packed") else v for n, v in t.items()},
        r"weight_packed .*expected",
    ),
    "awq version": ("awq", edited(AWQ, version="gemv"), lambda t: t, "version gemm"),
    "awq groups": (
        "awq",
        AWQ,
        lambda t: {n: v[:-1] if n.endswith("qzeros") else v for n, v in t.items()},
        "expected the same columns",
    ),
    "several groups": (
        "int4 packed",
        {"quant_method": "compressed-tensors", "config_groups": {"a": {}, "b": {}}},
        lambda t: t,
        "expected one group",
    ),
    "config type": ("awq", {"quant_method": "awq", "bits": 3}, lambda t: t, "expected 4 bits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_format_does_not_say_is_refused(name: str, convert: Convert, tmp_path: Path) -> None:
    kind, config, change, message = REFUSED[name]
    stored, _ = quantised(FORMATS[kind][1])
    with pytest.raises(errors.EagleError, match=message):
        convert(write(tmp_path / "in", change(stored), config))
