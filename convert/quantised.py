# SPDX-License-Identifier: MIT
"""Quantised checkpoints: tensors in formats that say how to decode them, as float tensors.

fp8 (one scale per tensor, row or block), int8 and packed int4 of compressed-tensors
(vllm-project/compressed-tensors: compressors/), AWQ's GEMM layout (casper-hansen/AutoAWQ:
awq/utils/packing_utils.py). `quantization_config` has to name the method; everything else (NVFP4, GPTQ,
zero points of compressed-tensors, reordered groups) is left unchanged, and refused by name in
`dialects.refused`. Rows are decoded when they are read, so a big tensor costs no more than a plain one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .config import shown
from .errors import ConfigError, TensorError
from .tensor import TensorSource

F32Array = npt.NDArray[np.float32]

_SCALED_METHODS = frozenset({"compressed-tensors", "fp8", "modelopt"})
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column, of eight in a word, that each nibble holds, the lowest first."""
_UNUSED = (".input_scale", ".k_scale", ".v_scale")
"""Of activations, which a GGUF leaves in floating point."""


def dequantised(
    tensors: Mapping[str, TensorSource], config: Mapping[str, Any]
) -> tuple[dict[str, TensorSource], str]:
    """The tensors with every one that can be read back as floats, and a note (may be empty).

    Raises TensorError for parts that do not go together, ConfigError for a config that does not say how.
    """
    method, details = _method(config)
    found = dict(tensors)
    n_read = 0
    for name in tensors:
        made = _made(name, tensors, method, details)
        if made is None:
            continue
        base, parts = made.name.removesuffix(".weight"), _parts(name)
        for suffix in (*parts, *_UNUSED):
            found.pop(base + suffix, None)
        found[made.name] = made
        n_read += 1
    lonely = [n for n, t in found.items() if t.dtype == "F8_E4M3"]
    if lonely and method in _SCALED_METHODS:
        raise TensorError(
            f"tensor {lonely[0]} is in F8_E4M3 without a scale: expected {lonely[0]}_scale or "
            f"{lonely[0]}_scale_inv next to it; convert the original bf16 or fp16 checkpoint"
        )
    if lonely:
        raise ConfigError(
            f"config.json: quantization_config.quant_method: expected one of "
            f"{', '.join(sorted(_SCALED_METHODS))}, which say how to read tensor {lonely[0]} in F8_E4M3, "
            f"found {shown(method)}"
        )
    return found, f"converted {n_read} quantised tensors ({method}) to floating point" if n_read else ""


def _parts(name: str) -> tuple[str, ...]:
    if name.endswith(".qweight"):
        return (".qweight", ".qzeros", ".scales")
    if name.endswith(".weight_packed"):
        return (".weight_packed", ".weight_scale", ".weight_shape")
    return (".weight", ".weight_scale", ".weight_scale_inv")


def _method(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    details = config.get("quantization_config") or config.get("compression_config") or {}
    if not isinstance(details, Mapping):
        raise ConfigError(f"config.json: quantization_config: expected an object, found {shown(details)}")
    return str(details.get("quant_method") or ""), details


def _made(
    name: str, tensors: Mapping[str, TensorSource], method: str, details: Mapping[str, Any]
) -> TensorSource | None:
    """What tensor `name` stands for; None for a plain one, or one in a format that is not read."""
    codes = tensors[name]
    if name.endswith(".weight") and codes.dtype in ("F8_E4M3", "I8") and method in _SCALED_METHODS:
        scale = tensors.get(name + "_scale", tensors.get(name + "_scale_inv"))
        other = any(name + end in tensors for end in ("_scale_2", "_zero_point"))
        return None if scale is None or other else _scaled(name, codes, scale, details)
    if name.endswith(".weight_packed") and method == "compressed-tensors":
        base = name.removesuffix("_packed")
        if any(base + end in tensors for end in ("_zero_point", "_g_idx")):
            return None
        return _packed(base, codes, tensors, details)
    if name.endswith(".qweight") and method == "awq":
        return _awq(name, tensors, details)
    return None


def _scaled(name: str, codes: TensorSource, scale: TensorSource, details: Mapping[str, Any]) -> TensorSource:
    if len(codes.shape) != 2 or not scale.is_float:
        raise TensorError(f"tensor {name}: expected a matrix and a scale in floating point")
    return _Scaled(
        name, codes.shape, "F32", codes.path, 0, codes, scale, _block(name, codes.shape, scale, details)
    )


def _block(
    name: str, shape: tuple[int, ...], scale: TensorSource, details: Mapping[str, Any]
) -> tuple[int, int]:
    """Rows and columns that share a scale; the scale's shape has to be what they make of the matrix."""
    n_rows, n_columns = shape
    weights = _group(details)
    given = details.get("weight_block_size") or weights.get("block_structure") or ()
    size = weights.get("group_size")
    blocks = [(n_rows, n_columns), (1, n_columns)]
    if isinstance(given, list) and len(given) == 2 and all(isinstance(n, int) and n > 0 for n in given):
        blocks.append((given[0], given[1]))
    if isinstance(size, int) and size > 0:
        blocks.append((1, size))
    found = tuple(scale.shape)
    for rows, columns in blocks:
        expected = (-(-n_rows // rows), -(-n_columns // columns))
        plain = expected[1] == 1 and found in ((expected[0],), () if expected[0] == 1 else (expected[0],))
        if found == expected or plain:
            return rows, columns
    raise TensorError(
        f"tensor {scale.name} {list(found)}: expected one scale for the whole of {name} {list(shape)}, for "
        "each row, or for each block that quantization_config names (weight_block_size, block_structure, "
        "group_size)"
    )


def _group(details: Mapping[str, Any]) -> Mapping[str, Any]:
    """How compressed-tensors stores weights; drafters have one group."""
    groups = details.get("config_groups")
    if groups is None:
        return {}
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise ConfigError(
            "config.json: quantization_config.config_groups: expected one group of layers, all stored the "
            f"same way, found {len(groups) if isinstance(groups, Mapping) else shown(groups)}"
        )
    (group,) = groups.values()
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise ConfigError("config.json: quantization_config.config_groups: expected weights in the group")
    return weights


def _packed(
    name: str, words: TensorSource, tensors: Mapping[str, TensorSource], details: Mapping[str, Any]
) -> TensorSource:
    weights = _group(details)
    bits = weights.get("num_bits")
    if bits not in (4, 8) or weights.get("type") != "int" or weights.get("symmetric") is False:
        raise ConfigError(
            "config.json: quantization_config: packed weights: expected symmetric int of 4 or 8 bits, found "
            f"{weights.get('type')} of {bits}, symmetric {weights.get('symmetric')}"
        )
    scale, stored = tensors.get(name + "_scale"), tensors.get(name + "_shape")
    if scale is None or stored is None or words.dtype != "I32" or len(words.shape) != 2:
        raise TensorError(
            f"tensor {words.name}: expected int32 words with {name}_scale and {name}_shape next to it"
        )
    shape = tuple(int(n) for n in stored.read().reshape(-1))
    n_words = -(-shape[1] * bits // 32) if len(shape) == 2 else 0
    if words.shape != (shape[0], n_words):
        raise TensorError(
            f"tensor {words.name} {list(words.shape)}: expected {[shape[0], n_words]} for {list(shape)}"
        )
    codes = _Words(name, shape, "F32", words.path, 0, words, bits)
    return _Scaled(name, shape, "F32", words.path, 0, codes, scale, _block(name, shape, scale, details))


def _awq(name: str, tensors: Mapping[str, TensorSource], details: Mapping[str, Any]) -> TensorSource:
    base = name.removesuffix(".qweight")
    words, zeros, scales = tensors[name], tensors.get(base + ".qzeros"), tensors.get(base + ".scales")
    if details.get("bits") != 4 or str(details.get("version", "gemm")).lower() != "gemm":
        raise ConfigError(
            "config.json: quantization_config: AWQ: expected 4 bits in version gemm, found "
            f"{details.get('bits')} bits, version {shown(details.get('version'))}"
        )
    if zeros is None or scales is None or not scales.is_float or {words.dtype, zeros.dtype} != {"I32"}:
        raise TensorError(
            f"tensor {name}: expected int32 words with {base}.qzeros and {base}.scales next to it"
        )
    n_in, n_out = words.shape[0], 8 * words.shape[1]
    n_groups = scales.shape[0]
    if scales.shape != (n_groups, n_out) or zeros.shape != (n_groups, n_out // 8) or n_in % n_groups:
        raise TensorError(
            f"tensors {name} {list(words.shape)}, .qzeros {list(zeros.shape)}, .scales {list(scales.shape)}: "
            "expected the same columns, and groups that divide the rows"
        )
    return _Awq(base + ".weight", (n_out, n_in), "F32", words.path, 0, words, zeros, scales)


@dataclass(frozen=True)
class _Scaled(TensorSource):
    """Codes times the scale of their block."""

    codes: TensorSource
    scale: TensorSource
    block: tuple[int, int]

    def read_rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        rows, columns = self.block
        first, last = start // rows, -(-stop // rows)
        scale = self.scale.read().reshape(-(-self.shape[0] // rows), -1)[first:last]
        scale = np.repeat(scale, rows, axis=0)[start - first * rows :][: stop - start]
        if columns < self.shape[1]:
            scale = np.repeat(scale, columns, axis=1)[:, : self.shape[1]]
        values: F32Array = self.codes.read_rows(start, stop).astype(np.float32) * scale
        return values


@dataclass(frozen=True)
class _Words(TensorSource):
    """Signed numbers of few bits, along a row in 32-bit words, the lowest bits first, half their range
    added."""

    words: TensorSource
    bits: int

    def read_rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        words = self.words.read_rows(start, stop).view(np.uint32)
        shifts = np.arange(0, 32, self.bits, dtype=np.uint32)
        codes = (words[:, :, None] >> shifts) & np.uint32((1 << self.bits) - 1)
        flat = codes.reshape(stop - start, -1)[:, : self.shape[1]].astype(np.float32)
        values: F32Array = flat - float(1 << (self.bits - 1))
        return values


@dataclass(frozen=True)
class _Awq(TensorSource):
    """[in, out / 8] words of eight columns each, in AWQ's order; zero points alike, a scale for each
    group."""

    words: TensorSource
    zeros: TensorSource
    scales: TensorSource

    def read_rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        columns = slice(start // 8, -(-stop // 8))
        within = slice(start - 8 * columns.start, stop - 8 * columns.start)
        size = self.words.n_rows // self.scales.n_rows
        codes = _nibbles(self.words, columns)[:, within] - np.repeat(
            _nibbles(self.zeros, columns)[:, within], size, axis=0
        )
        values: F32Array = (codes * np.repeat(self.scales.read()[:, start:stop], size, axis=0)).T
        return np.ascontiguousarray(values)


def _nibbles(source: TensorSource, columns: slice) -> F32Array:
    words = source.read()[:, columns].view(np.uint32)
    out = np.empty((*words.shape, 8), np.float32)
    for i, column in enumerate(_AWQ_ORDER):
        out[:, :, column] = (words >> np.uint32(4 * i)) & np.uint32(15)
    return out.reshape(len(words), math.prod(words.shape[1:]) * 8)
