# SPDX-License-Identifier: MIT
"""Rotary position embedding in the half-split layout of checkpoints, computed in fp32.

YaRN is computed as in ggml (ggml/src/ggml.c: ggml_rope_yarn_corr_dims), because ggml will run the drafter.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglecpp.convert import DraftSpec, rope_divisors

__all__ = ["inv_freq", "magnitude", "rotate"]


def inv_freq(spec: DraftSpec) -> Tensor:
    """Angle per position, f64 [rope_dim / 2], on the CPU: not every device has f64."""
    rope = spec.rope
    freq = rope.theta ** -(np.arange(0, spec.rope_dim, 2) / spec.rope_dim)
    if rope.scaling == "linear":
        freq = freq / rope.factor
    elif rope.scaling == "llama3":
        freq = freq / rope_divisors(rope, spec.rope_dim)
    elif rope.scaling == "yarn":
        kept = _yarn_kept(spec)
        freq = freq * (kept + (1 - kept) / rope.factor)
    return torch.from_numpy(freq)


def magnitude(spec: DraftSpec) -> float:
    """What cos and sin are multiplied by."""
    rope = spec.rope
    return rope.attn_factor * (1 + 0.1 * math.log(rope.factor)) if rope.scaling == "yarn" else 1.0


def _yarn_kept(spec: DraftSpec) -> NDArray[np.float64]:
    """How much of each frequency yarn leaves as it is, 0..1, [rope_dim / 2]."""
    rope, n = spec.rope, spec.rope_dim

    def at(turns: float) -> float:
        """The place of the frequency that turns so often within the original context."""
        context = rope.original_context or spec.context_length
        return n * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(0.0, math.floor(at(rope.beta_fast or 32.0)))
    high = min(n - 1.0, math.ceil(at(rope.beta_slow or 1.0)))
    ramp = np.clip((np.arange(n // 2) - low) / max(0.001, high - low), 0.0, 1.0)
    kept: NDArray[np.float64] = (1.0 - ramp) * (1.0 if rope.ext_factor is None else rope.ext_factor)
    return kept


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates heads [n_rows, n_heads, rope_dim] by angles given as fp32 [n_rows, rope_dim / 2]."""
    out: Tensor = _Rotate.apply(x, cos.unsqueeze(-2), sin.unsqueeze(-2))  # type: ignore[no-untyped-call]
    return out


class _Rotate(torch.autograd.Function):
    """A rotation's gradient is the rotation back, which autograd would not find in half the passes; a factor
    on cos and sin stays the same.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, -sin), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    out = torch.empty_like(x)
    out[..., : a.shape[-1]] = a * cos - b * sin
    out[..., a.shape[-1] :] = b * cos + a * sin
    return out
