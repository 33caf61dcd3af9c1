# SPDX-License-Identifier: MIT
"""Rotary position embedding in the half-split layout of checkpoints, computed in fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from eaglecpp.convert import DraftSpec, rope_divisors


def inv_freq(spec: DraftSpec) -> Tensor:
    """Angle per position, f64 [rope_dim / 2], on the CPU: not every device has f64."""
    rope = spec.rope
    freq = rope.theta ** -(np.arange(0, spec.rope_dim, 2) / spec.rope_dim)
    if rope.scaling == "linear":
        freq = freq / rope.factor
    elif rope.scaling == "llama3":
        freq = freq / rope_divisors(rope, spec.rope_dim)
    return torch.from_numpy(freq)


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
