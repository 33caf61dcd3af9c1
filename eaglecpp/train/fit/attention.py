# SPDX-License-Identifier: MIT
"""Attention of training-time test: block 0 causally, plus the row's own entries of the later steps.

Row p at step k sees the step-0 keys of rows <= p and its own keys of steps 1..k. The queries are all rows, or
those at the positions `rows`, i64 [n_batch, n_rows]. `merged` runs a flash kernel
on block 0 and merges the diagonals by log-sum-exp, so no score matrix is ever built; `dense` builds it, in
fp32, and is both the reference of the tests and the path of devices without a kernel. Tensors are
`[n_batch, n_heads, n_rows, head_dim]`; batches are right-padded, which a causal mask makes harmless.

The merge needs a backward of its own: flash kernels return their log-sum-exp but drop the gradient through it
(Dao-AILab/flash-attention#1817). Called with the merged output and the merged log-sum-exp, the kernel's
backward is exact, because it recomputes P = exp(S - LSE) and D = <dO, O> from just these two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Attention", "attention_for", "dense", "dense_weights", "merged", "mix"]

Attention = Callable[[Tensor, Tensor, Tensor, Sequence[Tensor], Sequence[Tensor], Tensor | None], Tensor]
"""`(q, k0, v0, later_k, later_v, rows) -> output`: queries of one step, block 0, the keys and values of steps
1..k with the rows of q, and which rows of block 0 these are; None: the first ones. All with the full number
of heads."""

aten = torch.ops.aten


def attention_for(device: torch.device, dtype: torch.dtype) -> Attention:
    """The fastest implementation that is right on this device: `merged` where a flash kernel exists and
    agrees with `dense` on a small example, else `dense`.
    """
    return merged if _kernel_works(device, dtype) else dense


def dense(
    q: Tensor,
    k0: Tensor,
    v0: Tensor,
    later_k: Sequence[Tensor],
    later_v: Sequence[Tensor],
    rows: Tensor | None = None,
) -> Tensor:
    """The definition: scores in fp32, one softmax over block 0 and the diagonals. Any device."""
    return mix(dense_weights(q, k0, later_k, rows), v0, later_v).to(q.dtype)


def dense_weights(q: Tensor, k0: Tensor, later_k: Sequence[Tensor], rows: Tensor | None = None) -> Tensor:
    """Where the rows look: fp32 [n_batch, n_heads, n_rows, n_first + n_later], block 0 before the row's own
    later entries; each row sums to one.
    """
    n_first = q.shape[2] if rows is None else k0.shape[2]
    q32, scale = q.float(), q.shape[3] ** -0.5
    scores = q32 @ k0[:, :, :n_first].float().transpose(-1, -2) * scale
    if rows is None:
        rows = torch.arange(n_first, device=q.device)[None]
    scores = scores.masked_fill(_future(rows, n_first), float("-inf"))
    own = [(q32 * k.float()).sum(-1, keepdim=True) * scale for k in later_k]
    return torch.cat([scores, *own], dim=-1).softmax(-1)


def mix(weights: Tensor, v0: Tensor, later_v: Sequence[Tensor]) -> Tensor:
    """The values at `dense_weights`, fp32."""
    n_first = weights.shape[3] - len(later_v)
    out = weights[..., :n_first] @ v0[:, :, :n_first].float()
    for i, v in enumerate(later_v):
        out = out + weights[..., n_first + i, None] * v.float()
    return out


def merged(
    q: Tensor,
    k0: Tensor,
    v0: Tensor,
    later_k: Sequence[Tensor],
    later_v: Sequence[Tensor],
    rows: Tensor | None = None,
) -> Tensor:
    """As `dense`, by a flash kernel on block 0 and elementwise diagonals. CUDA's flash kernel takes no mask:
    with `rows` it is `dense` there.
    """
    if rows is not None and q.device.type != "cpu":
        return dense(q, k0, v0, later_k, later_v, rows)
    n_first = q.shape[2] if rows is None else k0.shape[2]
    mask = None
    if rows is not None:
        mask = torch.zeros(rows.shape[0], 1, rows.shape[1], n_first, dtype=q.dtype, device=q.device)
        mask.masked_fill_(_future(rows, n_first), float("-inf"))
    first = k0[:, :, :n_first], v0[:, :, :n_first]
    out: Tensor = _Merged.apply(mask, q, *first, *later_k, *later_v)  # type: ignore[no-untyped-call]
    return out


def _future(rows: Tensor, n_first: int) -> Tensor:
    """What a row does not see of block 0, bool [n_batch, 1, n_rows, n_first]."""
    return torch.arange(n_first, device=rows.device) > rows[:, None, :, None]


class _Flash(NamedTuple):
    """What a flash forward gives; `rest` is handed to its backward unread."""

    out: Tensor
    lse: Tensor
    rest: tuple[Any, ...]


def _flash_forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> _Flash:
    if q.device.type == "cpu":
        forward = aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = forward(q, k, v, 0.0, mask is None, attn_mask=mask)
        return _Flash(out, lse, ())
    out, lse, seq_q, seq_k, max_q, max_k, seed, offset, _ = aten._scaled_dot_product_flash_attention(
        q, k, v, 0.0, True
    )
    return _Flash(out, lse, (seq_q, seq_k, max_q, max_k, 0.0, True, seed, offset))


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, forward: _Flash, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    if q.device.type == "cpu":
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return backward(  # type: ignore[no-any-return]
            grad, q, k, v, forward.out, forward.lse, 0.0, mask is None, attn_mask=mask
        )
    backward = aten._scaled_dot_product_flash_attention_backward
    return backward(grad, q, k, v, forward.out, forward.lse, *forward.rest)  # type: ignore[no-any-return]


class _Merged(torch.autograd.Function):
    """Arguments: mask of block 0 or None = causal, q, k0, v0, then the later keys, then the later values."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor | None, q: Tensor, k0: Tensor, v0: Tensor, *later: Tensor) -> Tensor:
        n_later, scale = len(later) // 2, q.shape[3] ** -0.5
        flash = _flash_forward(q, k0, v0, mask)
        out, lse = flash.out, flash.lse
        weights: tuple[Tensor, ...] = ()
        if n_later:
            own = [_dot(q, k) * scale for k in later[:n_later]]
            total = torch.logsumexp(torch.stack([lse, *own]), dim=0)
            weights = tuple((s - total).exp() for s in own)
            out, lse = out * (lse - total).exp().to(q.dtype)[..., None], total
            for w, v in zip(weights, later[n_later:], strict=True):
                out.addcmul_(w.to(q.dtype)[..., None], v)
        ctx.rest, ctx.mask = flash.rest, mask
        ctx.save_for_backward(q, k0, v0, out, lse, *weights, *later)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k0, v0, out, lse, *rest = ctx.saved_tensors
        n_later, scale = len(rest) // 3, q.shape[3] ** -0.5
        weights, later_k, later_v = rest[:n_later], rest[n_later : 2 * n_later], rest[2 * n_later :]
        merged = _Flash(out, lse, ctx.rest)
        grad = grad.contiguous()
        dq, dk0, dv0 = _flash_backward(grad, q, k0, v0, merged, ctx.mask)
        if not n_later:
            return None, dq, dk0, dv0
        delta = _dot(grad, out)
        dk, dv = [], []
        for w, k, v in zip(weights, later_k, later_v, strict=True):
            ds = (w * (_dot(grad, v) - delta) * scale).to(q.dtype)[..., None]
            dq = torch.addcmul(dq, ds, k)
            dk.append(ds * q)
            dv.append(w.to(q.dtype)[..., None] * grad)
        return None, dq, dk0, dv0, *dk, *dv


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products over the last axis, summed in fp32, `[n_batch, n_heads, n_rows]`. The products have the
    precision of the factors, which in bf16 adds less than their own rounding did and spares two copies.
    """
    return (a * b).sum(-1, dtype=torch.float32)


@functools.cache
def _kernel_works(device: torch.device, dtype: torch.dtype) -> bool:
    """One step with a diagonal, output and gradients, against `dense`. A kernel may be missing (MPS, fp32 on
    CUDA), or another release of torch may have changed it.
    """
    if device.type not in ("cpu", "cuda"):
        return False
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(1, 2, 40, 32, generator=generator).to(device, dtype) for _ in range(5)]
    try:
        with torch.enable_grad():
            found, expected = (_outputs(f, inputs) for f in (merged, dense))
    except (RuntimeError, NotImplementedError, AttributeError):
        return False
    tolerance = 0.05 if dtype.itemsize < 4 else 1e-4
    return all(
        torch.allclose(a.float(), b.float(), rtol=tolerance, atol=tolerance)
        for a, b in zip(found, expected, strict=True)
    )


def _outputs(attention: Attention, inputs: Sequence[Tensor]) -> list[Tensor]:
    q, k0, v0, k1, v1 = leaves = [x.clone().requires_grad_() for x in inputs]
    out = attention(q, k0, v0, [k1], [v1], None)
    if q.device.type == "cpu":  # the same rows the other way round, by a mask
        rows = torch.arange(q.shape[2] - 1, -1, -1)[None]
        out = out + attention(q, k0, v0, [k1], [v1], rows)
    return [out, *torch.autograd.grad(out.float().square().sum(), leaves)]
