# SPDX-License-Identifier: MIT
"""The arithmetic that target and drafter share: RMSNorm, RoPE with its scaling types, attention, SwiGLU.

All values are fp32. Rows have the shape `[n_rows, width]`, and heads `[n_rows, n_heads, head_dim]`. RoPE uses
the half-split (NeoX) layout of Hugging Face weights. The scaling types follow
`transformers/modeling_rope_utils.py` (linear, llama3, yarn).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from .checkpoint import Weights


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Computes RMSNorm: `weight * x / sqrt(mean(x^2) + eps)` over the last axis."""
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def linear(x: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
    """Computes a linear map: `x @ W.T`, plus the bias if the checkpoint has a bias."""
    bias = weights.get(f"{name}.bias")
    return torch.nn.functional.linear(x, weights[f"{name}.weight"], bias)


def mlp(x: torch.Tensor, weights: Weights, prefix: str, *, is_gemma: bool = False) -> torch.Tensor:
    """Computes a gated feed-forward layer, with SiLU, or with GELU for Gemma."""
    gate = linear(x, weights, f"{prefix}.gate_proj")
    F = torch.nn.functional
    gate = F.gelu(gate, approximate="tanh") if is_gemma else F.silu(gate)
    return linear(gate * linear(x, weights, f"{prefix}.up_proj"), weights, f"{prefix}.down_proj")


class Rope:
    """Rotary embedding, configured by `rope_parameters` (transformers 5), or else by `rope_scaling` and
    `rope_theta`.
    """

    def __init__(self, config: dict[str, Any], head_dim: int) -> None:
        scaling: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
        self.theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
        self.head_dim = head_dim
        self.magnitude = 1.0
        self.inv_freq = self.theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind == "linear":
            self.inv_freq /= scaling["factor"]
        elif kind == "llama3":
            self._llama3(scaling)
        elif kind in ("yarn", "deepseek_yarn"):
            self._yarn(scaling, config)
        elif kind != "default":
            raise ValueError(f"rope type {kind!r}")

    def _llama3(self, s: dict[str, Any]) -> None:
        wavelength = 2 * math.pi / self.inv_freq
        smooth = s["original_max_position_embeddings"] / wavelength - s["low_freq_factor"]
        smooth = (smooth / (s["high_freq_factor"] - s["low_freq_factor"])).clamp(0, 1)
        self.inv_freq = (1 - smooth) * self.inv_freq / s["factor"] + smooth * self.inv_freq

    def _yarn(self, s: dict[str, Any], config: dict[str, Any]) -> None:
        original = s.get("original_max_position_embeddings") or config["max_position_embeddings"]

        def dimension(n_rotations: float) -> float:
            ratio = original / (n_rotations * 2 * math.pi)
            return self.head_dim * math.log(ratio) / (2 * math.log(self.theta))

        low = max(math.floor(dimension(s.get("beta_fast") or 32)), 0)
        high = min(math.ceil(dimension(s.get("beta_slow") or 1)), self.head_dim - 1)
        ramp = (torch.arange(self.head_dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)
        ramp = ramp.clamp(0, 1)
        self.inv_freq = ramp * self.inv_freq / s["factor"] + (1 - ramp) * self.inv_freq
        self.magnitude = s.get("attention_factor") or 0.1 * math.log(s["factor"]) + 1

    def __call__(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotates heads `[n_rows, n_heads, head_dim]` at integer `positions` `[n_rows]`."""
        angle = positions[:, None].double() * self.inv_freq
        cos = (angle.cos() * self.magnitude).float()[:, None, :]
        sin = (angle.sin() * self.magnitude).float()[:, None, :]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


@dataclass(frozen=True)
class AttentionShape:
    """Numbers of heads and head sizes of one model, read from a flattened config."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    eps: float

    def cache(self) -> KV:
        return KV(self.n_kv_heads, self.head_dim, self.head_dim)

    @staticmethod
    def of(config: dict[str, Any]) -> AttentionShape:
        n_heads = int(config["num_attention_heads"])
        head_dim = int(config.get("head_dim") or config["hidden_size"] // n_heads)
        n_kv_heads = int(config.get("num_key_value_heads") or n_heads)
        return AttentionShape(n_heads, n_kv_heads, head_dim, float(config.get("rms_norm_eps") or 1e-6))


class KV:
    """KV cache of one layer: K (after RoPE) and V, `[n_rows, n_kv_heads, head_dim]`. New rows come last."""

    def __init__(self, n_heads: int, key_dim: int, value_dim: int) -> None:
        self.k = torch.zeros(0, n_heads, key_dim)
        self.v = torch.zeros(0, n_heads, value_dim)

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self.k, self.v = torch.cat([self.k, k]), torch.cat([self.v, v])

    def truncate(self, n_rows: int) -> None:
        self.k, self.v = self.k[:n_rows], self.v[:n_rows]


def sees(n_rows: int, n_past: int) -> torch.Tensor:
    """Returns which rows each new row sees, as bools `[n_rows, n_past + n_rows]`: all past rows, and the new
    rows up to itself.
    """
    return torch.ones(n_rows, n_past + n_rows, dtype=torch.bool).tril(diagonal=n_past)


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the attention output, `[n_rows, width]`. Several heads of `q` share each head of `keys` and
    `values`.

    sinks: an additional logit for each head, without keys and values.
    """
    groups = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(groups, dim=1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(q), 1)], dim=-1)
    shares = scores.softmax(-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", shares, values).flatten(1)


def attention(
    u: torch.Tensor,
    weights: Weights,
    prefix: str,
    shape: AttentionShape,
    rope: Rope,
    positions: torch.Tensor,
    visible: torch.Tensor,
    cache: KV,
    *,
    is_gemma: bool = False,
) -> torch.Tensor:
    """Computes grouped-query attention of new rows `u` over the rows of `cache` and the new rows. Appends K
    and V of the new rows to `cache`. Gemma 4 norms the values, which may be the keys before their norm, and
    does not scale the scores.

    `visible` is bool `[n_rows, n_past + n_rows]`. Returns the output projection, `[n_rows, hidden]`.
    """
    n_rows = u.shape[0]
    q = linear(u, weights, f"{prefix}.q_proj").view(n_rows, shape.n_heads, shape.head_dim)
    k = linear(u, weights, f"{prefix}.k_proj").view(n_rows, shape.n_kv_heads, shape.head_dim)
    v = k
    if f"{prefix}.v_proj.weight" in weights:
        v = linear(u, weights, f"{prefix}.v_proj").view(k.shape)
    if is_gemma:
        v = rms(v, torch.ones(shape.head_dim), shape.eps)
    if f"{prefix}.q_norm.weight" in weights:
        q = rms(q, weights[f"{prefix}.q_norm.weight"], shape.eps)
        k = rms(k, weights[f"{prefix}.k_norm.weight"], shape.eps)
    cache.append(rope(k, positions), v)
    scale = 1.0 if is_gemma else shape.head_dim**-0.5
    out = attend(rope(q, positions), cache.k, cache.v, visible, scale)
    return linear(out, weights, f"{prefix}.o_proj")


class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), in expanded form: the keys and values of
    every head are computed from the latents, as in the trainers. The cache holds the normed latent and the
    rotated part of the key that all heads share.

    RoPE rotates adjacent pairs. yarn uses DeepSeek's factors: cos and sin are multiplied by the factor of
    `mscale` divided by the factor of `mscale_all_dim`, and the scores by the square of the factor of
    `mscale_all_dim`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.n_heads = int(config["num_attention_heads"])
        self.nope, self.rotated = int(config["qk_nope_head_dim"]), int(config["qk_rope_head_dim"])
        self.value, self.rank = int(config["v_head_dim"]), int(config["kv_lora_rank"])
        self.eps = float(config.get("rms_norm_eps") or 1e-6)
        scaling: dict[str, Any] = dict(config.get("rope_scaling") or {})
        yarn = scaling.get("type") in ("yarn", "deepseek_yarn") or scaling.get("rope_type") == "yarn"
        self.magnify = 0.1 * math.log(scaling["factor"]) if yarn else 0.0
        all_dim = 1 + self.magnify * float(scaling.get("mscale_all_dim") or 0)
        if yarn:
            scaling["attention_factor"] = (1 + self.magnify * float(scaling.get("mscale") or 1)) / all_dim
        self.rope = Rope({**config, "rope_scaling": scaling}, self.rotated)
        self.scale = all_dim**2 / math.sqrt(self.nope + self.rotated)

    def cache(self) -> KV:
        return KV(1, self.rank + self.rotated, self.rank)

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotates adjacent pairs `[.., 2i]` and `[.., 2i + 1]` by reordering the pairs into halves."""
        halves = self.rope(torch.cat([x[..., ::2], x[..., 1::2]], dim=-1), positions)
        return torch.stack(halves.chunk(2, dim=-1), dim=-1).flatten(-2)

    def queries(self, u: torch.Tensor, weights: Weights, prefix: str) -> torch.Tensor:
        if f"{prefix}.q_proj.weight" in weights:
            return linear(u, weights, f"{prefix}.q_proj")
        low = rms(
            linear(u, weights, f"{prefix}.q_a_proj"), weights[f"{prefix}.q_a_layernorm.weight"], self.eps
        )
        return linear(low, weights, f"{prefix}.q_b_proj")

    def __call__(
        self,
        u: torch.Tensor,
        weights: Weights,
        prefix: str,
        positions: torch.Tensor,
        visible: torch.Tensor,
        cache: KV,
    ) -> torch.Tensor:
        """Computes latent attention with the arguments and the result of the function `attention`."""
        n_rows = u.shape[0]
        q = self.queries(u, weights, prefix).view(n_rows, self.n_heads, self.nope + self.rotated)
        q = torch.cat([q[..., : self.nope], self.rotate(q[..., self.nope :], positions)], dim=-1)
        row = linear(u, weights, f"{prefix}.kv_a_proj_with_mqa")
        latent = rms(row[:, : self.rank], weights[f"{prefix}.kv_a_layernorm.weight"], self.eps)[:, None]
        shared = self.rotate(row[:, None, self.rank :], positions)
        cache.append(torch.cat([latent, shared], dim=-1), latent)
        kv = linear(cache.v[:, 0], weights, f"{prefix}.kv_b_proj")
        keys, values = kv.view(-1, self.n_heads, self.nope + self.value).split(
            [self.nope, self.value], dim=-1
        )
        shared = cache.k[..., self.rank :].expand(-1, self.n_heads, -1)
        out = attend(q, torch.cat([keys, shared], dim=-1), values, visible, self.scale)
        return linear(out, weights, f"{prefix}.o_proj")
