# SPDX-License-Identifier: MIT
"""Rotary embedding: converts the keys of a draft config to the arguments of ggml_rope_ext.

The config's keys are `rope_parameters` (transformers 5), or `rope_scaling` and `rope_theta` (transformers 4).
Nothing is inherited from the target. Scalings whose frequencies depend on the context length (dynamic,
longrope) are rejected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .config import number, positive, shown
from .errors import ConfigError, UnsupportedError
from .spec import RopeSpec
from .tensor import TensorSource, computed


def stated_theta(config: Mapping[str, Any]) -> float:
    """Returns the base of the rotation in a flat draft config. Raises ConfigError."""
    block = scaling_block(config)[1]
    return positive(config if block.get("rope_theta") is None else block, "rope_theta", 10000.0)


def rope_kind(config: Mapping[str, Any]) -> str:
    """Returns the rope type of a flat draft config; "default" if the config does not name one."""
    return _kind(scaling_block(config)[1])


WITHOUT_SCALING = ("default", "none", "mrope")


def partial_rotary(config: Mapping[str, Any]) -> float:
    """Returns the rotated share of a head, from a flat draft config. Raises ConfigError."""
    factors = [number(b, "partial_rotary_factor", 1.0) for b in (config, scaling_block(config)[1])]
    part = next((value for value in factors if value != 1.0), 1.0)
    if not 0.0 < part <= 1.0:
        raise ConfigError(f"config.json: partial_rotary_factor: expected above 0 and up to 1, found {part}")
    return part


def parse_rope(
    config: Mapping[str, Any],
    *,
    deepseek: bool = False,
    theta: float | None = None,
    unscaled: bool = False,
    partial: str = "",
) -> tuple[RopeSpec, str]:
    """Returns the rope of a flat draft config, and a note for the user (or ""). Raises ConfigError,
    UnsupportedError.

    deepseek: parse for latent attention, which only supports yarn with DeepSeek's factors. theta: replaces
    the config's theta. unscaled: ignore the config's scaling, because the trainer never applied it. partial:
    the reading partial_rotary; "" = partial_rotary_factor must be 1.
    """
    block_name, block = scaling_block(config)
    theta = stated_theta(config) if theta is None else theta
    kind = _kind(block)
    if unscaled:
        return RopeSpec(theta), ""
    if deepseek and kind not in ("default", "none", "yarn", "deepseek_yarn"):
        raise UnsupportedError(
            f"{block_name}: rope type {shown(kind)}: expected default or yarn, the only types that trainers "
            "and engines support for latent attention"
        )
    if kind == "proportional":
        return _proportional(theta, block, block_name), ""
    part = partial_rotary(config)
    if part != 1.0 and not (partial and kind in WITHOUT_SCALING):
        raise UnsupportedError(f"partial_rotary_factor: expected 1, found {part}; RoPE covers whole heads")
    plain = RopeSpec(theta, part=part if partial == "applied" else 1.0)
    if kind in ("default", "none"):
        return plain, _mrope_note(block)
    if kind == "mrope":
        return plain, _mrope_note(block) or "rope type mrope: right for text, not for images"
    if kind == "linear":
        return RopeSpec(theta, "linear", factor=_factor(block, block_name)), ""
    if kind == "llama3":
        return _llama3(theta, block, block_name), ""
    if kind == "yarn" or (deepseek and kind == "deepseek_yarn"):
        return _yarn(theta, block, block_name, deepseek), "" if deepseek else _mscale_note(block, block_name)
    raise UnsupportedError(
        f"{block_name}: rope type {shown(kind)} is not supported; expected default, linear, llama3 or yarn"
    )


def rope_divisors(rope: RopeSpec, head_dim: int) -> npt.NDArray[np.float32]:
    """Returns `rope_freqs.weight` `[head_dim / 2]`, which divides the frequencies. With llama3 scaling, long
    wavelengths are divided by the factor and short wavelengths stay.

    llama.cpp's converter computes the same values in float32 with torch, and the results agree to 2e-6 of
    each value. In partly rotated heads, values that are not rotated have huge divisors (ggml-org/llama.cpp:
    conversion/gemma.py).
    """
    if rope.scaling == "proportional":
        turned = np.arange(head_dim // 2) < int(rope.factor * head_dim / 2)
        # The divisor 1e15 stops the rotation, and its square still fits into a float.
        return np.where(turned, 1.0, 1e15).astype(np.float32)
    context, low, high = float(rope.original_context or 8192), rope.low_freq_factor, rope.high_freq_factor
    wavelengths = 2 * math.pi * rope.theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (context / wavelengths - low) / (high - low)
    divisors = 1 / ((1 - smooth) / rope.factor + smooth)
    divisors = np.where(wavelengths > context / low, rope.factor, divisors)
    return np.where(wavelengths < context / high, 1.0, divisors).astype(np.float32)


def pair_rows(values: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """Permutes the rows of heads from Hugging Face's half-split order to the adjacent pairs that ggml's NORM
    rope needs.
    """
    halves = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def unpair_rows(values: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """Permutes the rows of heads from adjacent pairs to Hugging Face's half-split order, the inverse of
    `pair_rows`.
    """
    pairs = values.reshape(-1, head_dim // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def halves(source: TensorSource, head_dim: int) -> TensorSource:
    """Returns a tensor with the rows of heads permuted by `unpair_rows`, from adjacent pairs to half-split
    order.
    """

    def rows(start: int, stop: int) -> npt.NDArray[Any]:
        first, last = start // head_dim * head_dim, min(-(-stop // head_dim) * head_dim, source.n_rows)
        return unpair_rows(source.read_rows(first, last), head_dim)[start - first : stop - first]

    return computed(source, rows)


def scaling_block(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Returns the name and the content of the config's object with the rope scaling. transformers 5 may nest
    one object per kind of layer; equal objects count as one.
    """
    names = [name for name in ("rope_parameters", "rope_scaling") if config.get(name) is not None]
    blocks = [_flat_block(name, config[name]) for name in names]
    if len(blocks) == 2:
        _check_same(*blocks)
    return (names[0], blocks[0]) if blocks else ("rope_scaling", {})


def _flat_block(name: str, block: Any) -> Mapping[str, Any]:
    if not isinstance(block, Mapping):
        raise ConfigError(f"{name}: expected an object, found {type(block).__name__}")
    nested = [value for value in block.values() if isinstance(value, Mapping)]
    if any(value != nested[0] for value in nested):
        raise UnsupportedError(f"{name}: layers with different rope settings are not supported")
    return nested[0] if nested else block


def _check_same(parameters: Mapping[str, Any], scaling: Mapping[str, Any]) -> None:
    """Raises ConfigError if rope_parameters and rope_scaling contradict each other. Engines on transformers 5
    read rope_parameters, and engines on transformers 4 read rope_scaling.
    """
    one, other = (
        {key: value for key, value in block.items() if value is not None and key != "type"}
        | {"rope_type": _kind(block)}
        for block in (parameters, scaling)
    )
    for key in sorted(one.keys() & other.keys()):
        if one[key] != other[key]:
            raise ConfigError(
                f"config.json: rope_parameters and rope_scaling contradict each other: {key} is "
                f"{shown(one[key])} and {shown(other[key])}; keep the value of the training"
            )


def _kind(block: Mapping[str, Any]) -> str:
    return str(block.get("rope_type") or block.get("type") or "default")


def _mrope_note(block: Mapping[str, Any]) -> str:
    return "mrope_section is ignored: right for text, not for images" if block.get("mrope_section") else ""


def _factor(block: Mapping[str, Any], where: str) -> float:
    return positive(block, "factor", where=f"config.json: {where}.")


def _proportional(theta: float, block: Mapping[str, Any], where: str) -> RopeSpec:
    """Parses Gemma 4's scaling. The frequencies are computed for the whole head, but only the first part of
    the head is rotated.
    """
    part = number(block, "partial_rotary_factor", 1.0, where=f"config.json: {where}.")
    if not 0 < part <= 1 or number(block, "factor", 1.0, where=f"config.json: {where}.") != 1.0:
        raise ConfigError(f"{where}: expected partial_rotary_factor above 0, up to 1, and factor 1 or none")
    return RopeSpec(theta, "proportional", factor=part)


def _llama3(theta: float, block: Mapping[str, Any], where: str) -> RopeSpec:
    low = number(block, "low_freq_factor", 1.0, where=f"config.json: {where}.")
    high = number(block, "high_freq_factor", 4.0, where=f"config.json: {where}.")
    context = number(block, "original_max_position_embeddings", 8192, where=f"config.json: {where}.")
    if not (0 < low < high and context > 0):
        raise ConfigError(f"{where}: expected 0 < low_freq_factor < high_freq_factor, found {low} and {high}")
    factor = _factor(block, where)
    return RopeSpec(
        theta,
        "llama3",
        factor=factor,
        original_context=int(context),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(theta: float, block: Mapping[str, Any], where: str, deepseek: bool) -> RopeSpec:
    factor = _factor(block, where)
    context = number(block, "original_max_position_embeddings", None, where=f"config.json: {where}.")
    if context is None or not 1 <= context < 2**31:
        raise ConfigError(f"{where}.original_max_position_embeddings: expected a length, found {context}")
    if factor < 1:
        raise ConfigError(f"{where}.factor: expected 1 or more for yarn, found {factor}")
    if block.get("truncate") is False:
        raise UnsupportedError(f"{where}.truncate: expected true, as ggml always truncates, found false")
    # ggml itself multiplies cos and sin by 1 + 0.1 ln(factor). So the checkpoint's multiplier is divided by
    # this value.
    multiplier = (_deepseek_multiplier if deepseek else _cos_sin_multiplier)(block, where, factor)
    attn_factor = multiplier / (1.0 + 0.1 * math.log(factor))
    return RopeSpec(
        theta,
        "yarn",
        factor=factor,
        original_context=int(context),
        attn_factor=1.0 if math.isclose(attn_factor, 1.0, rel_tol=1e-6) else attn_factor,
        ext_factor=number(block, "extrapolation_factor", None, where=f"config.json: {where}."),
        beta_fast=number(block, "beta_fast", None, where=f"config.json: {where}."),
        beta_slow=number(block, "beta_slow", None, where=f"config.json: {where}."),
    )


def _cos_sin_multiplier(block: Mapping[str, Any], where: str, factor: float) -> float:
    """Returns the checkpoint's factor on cos and sin (huggingface/transformers: modeling_rope_utils.py).

    The key attention_factor is the multiplier itself. The keys mscale and mscale_all_dim form a ratio. vLLM's
    key attn_factor multiplies the default.
    """
    absolute = number(block, "attention_factor", None, where=f"config.json: {where}.")
    if absolute is not None:
        return absolute
    numerator = number(block, "mscale", 0.0, where=f"config.json: {where}.")
    denominator = number(block, "mscale_all_dim", 0.0, where=f"config.json: {where}.")
    if numerator and denominator:
        return _mscale(factor, numerator) / _mscale(factor, denominator)
    return _mscale(factor, 1.0) * number(block, "attn_factor", 1.0, where=f"config.json: {where}.")


def _mscale_note(block: Mapping[str, Any], where: str) -> str:
    one, other = block.get("mscale"), block.get("mscale_all_dim")
    if one in (None, 1) or other or block.get("attention_factor") is not None:
        return ""
    return (
        f"{where}: mscale {one:g} has no effect without mscale_all_dim, as in transformers and vLLM; "
        "SpecForge and TorchSpec do multiply by mscale"
    )


def _deepseek_multiplier(block: Mapping[str, Any], where: str, factor: float) -> float:
    """Returns the factor on cos and sin by DeepSeek's rules (vLLM: deepseek_scaling_rope.py; TorchSpec:
    LlamaYarnRotaryEmbedding).
    """
    for key, neutral in (("attention_factor", None), ("attn_factor", 1.0)):
        if number(block, key, neutral, where=f"config.json: {where}.") != neutral:
            raise UnsupportedError(f"{where}.{key}: latent attention supports only mscale and mscale_all_dim")
    numerator = number(block, "mscale", 1.0, where=f"config.json: {where}.")
    denominator = number(block, "mscale_all_dim", 0.0, where=f"config.json: {where}.")
    return _mscale(factor, numerator) / _mscale(factor, denominator)


def score_multiplier(config: Mapping[str, Any]) -> float:
    """Returns the factor by which DeepSeek's yarn multiplies attention scores, in addition to its factor on
    cos and sin. Returns 1 without yarn.
    """
    where, block = scaling_block(config)
    if _kind(block) not in ("yarn", "deepseek_yarn"):
        return 1.0
    weight = number(block, "mscale_all_dim", 0.0, where=f"config.json: {where}.")
    return _mscale(_factor(block, where), weight) ** 2


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
