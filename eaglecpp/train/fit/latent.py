# SPDX-License-Identifier: MIT
"""Multi-head latent attention as it is trained: queries, keys and values of all heads, made from the latent.

The expanded form: training has the keys and values of every row, so that there is no cache to keep small.
What comes out fits `attention.Attention`, which wants one width for queries, keys and values and divides
scores by its root.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from eaglecpp.convert import DraftSpec, LatentSpec
from eaglecpp.train.fit.rope import rotate

__all__ = ["latent_heads", "n_first_rows"]


def n_first_rows(spec: DraftSpec, latent: LatentSpec) -> int:
    """Rows of the matrix that layer 0 multiplies its input with: queries (or their low rank), then the latent
    and the rotated part of the key.
    """
    return (latent.q_rank or spec.n_heads * latent.key_dim) + latent.cached_dim


def latent_heads(
    spec: DraftSpec, latent: LatentSpec, rows: Tensor, cos: Tensor, sin: Tensor, w: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """`[n_heads, n_rows, width]` each, from the first product `[n_rows, n_first_rows]`.
    Values are the first `latent.value_dim` of their width.
    """
    eps, rope = spec.rms_norm_eps, latent.rope_dim
    q, c, shared = torch.split(rows, [rows.shape[-1] - latent.cached_dim, latent.kv_rank, rope], dim=-1)
    if latent.q_rank:
        q = F.linear(F.rms_norm(q, (latent.q_rank,), w["q_a_norm"], eps), w["q_b"])
    q = q.reshape(*q.shape[:-1], spec.n_heads, latent.key_dim)
    kv = F.linear(F.rms_norm(c, (latent.kv_rank,), w["kv_a_norm"], eps), w["kv_b"])
    kv = kv.view(*kv.shape[:-1], spec.n_heads, latent.nope_dim + latent.value_dim)
    turned = rotate(_halves(torch.cat([q[..., latent.nope_dim :], shared.unsqueeze(-2)], dim=-2)), cos, sin)
    shared = turned[..., -1:, :].expand(*turned.shape[:-2], spec.n_heads, rope)
    width = max(latent.key_dim, latent.value_dim)
    # attention divides by sqrt(width)
    q = torch.cat([q[..., : latent.nope_dim], turned[..., :-1, :]], dim=-1) * (latent.scale * width**0.5)
    k = torch.cat([kv[..., : latent.nope_dim], shared], dim=-1)
    q, k, v = (F.pad(x, (0, width - x.shape[-1])) for x in (q, k, kv[..., latent.nope_dim :]))
    return q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)


def _halves(pairs: Tensor) -> Tensor:
    """Rotated pairs lie side by side in checkpoints and as halves here: scores do not see the order."""
    return torch.cat([pairs[..., ::2], pairs[..., 1::2]], dim=-1)
