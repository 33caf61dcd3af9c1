# SPDX-License-Identifier: MIT
"""Attention of training-time test: causal attention over block 0 (the rows of step 0), plus each row's own
entries of the later steps.

At step k, row p attends to the step-0 keys of rows <= p in its own sample, and to the keys of row p from
steps 1..k. The samples of a batch are concatenated; `Spans` has their lengths. `merged` runs a flash kernel
on block 0 of each sample and merges the diagonals by log-sum-exp, so it never builds a score matrix. `dense`
builds the score matrix in fp32. It is the reference for tests, and the fallback for devices without a kernel.
Tensors have the shape `[n_heads, n_rows, head_dim]`, and the keys and values of block 0 `[n_heads, N,
head_dim]`.

The merge has its own backward pass, because flash kernels return their log-sum-exp but drop the gradient
through it (Dao-AILab/flash-attention#1817). The kernel's backward pass recomputes P = exp(S - LSE) and D =
<dO, O> from the output and the log-sum-exp alone. So it is exact if it is called with the merged output and
the merged log-sum-exp.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spans:
    """Rows that attention computes. n_keys, n_queries: numbers of keys and of queries of each concatenated
    sample. at: i64 [n_rows], index of each query's row within its sample; None = all rows in order.
    """

    n_keys: tuple[int, ...]
    n_queries: tuple[int, ...]
    at: Tensor | None

    def parts(self) -> Iterator[SampleSpan]:
        """Yields the samples that have queries, each with its keys."""
        key = query = 0
        for n_keys, n_queries in zip(self.n_keys, self.n_queries, strict=True):
            queries = slice(query, query + n_queries)
            if n_queries:
                yield SampleSpan(
                    queries, slice(key, key + n_keys), None if self.at is None else self.at[queries]
                )
            key, query = key + n_keys, query + n_queries


class SampleSpan(NamedTuple):
    """The queries and keys of one sample. at: i64 [n_queries], row of each query; None = all rows in
    order.
    """

    queries: slice
    keys: slice
    at: Tensor | None

    def future(self, device: torch.device) -> Tensor:
        """Returns which keys of block 0 each query must not attend to, bool [n_queries, n_keys]."""
        places = torch.arange(self.keys.stop - self.keys.start, device=device)
        return places > (places if self.at is None else self.at)[:, None]


Attend = Callable[[Tensor, Tensor, Tensor, Sequence[Tensor], Sequence[Tensor], Spans], Tensor]
"""`(q, k0, v0, later_k, later_v, layout) -> output`: queries of one step, block 0, and the keys and values of
steps 1..k for the same rows as q. All have the full number of heads."""

aten = torch.ops.aten


def takes_mask(device: torch.device) -> bool:
    """Returns True if the device's flash kernel takes a mask. CUDA's kernel does not, so on CUDA attention
    over all rows is faster than over selected rows.
    """
    return device.type == "cpu"


def attention_for(device: torch.device, dtype: torch.dtype) -> Attend:
    """Returns the fastest correct implementation on this device. This is `merged` if a flash kernel exists
    and agrees with `dense` on a small example, otherwise `dense`.
    """
    return merged if _kernel_works(device, dtype) else dense


def dense(
    q: Tensor, k0: Tensor, v0: Tensor, later_k: Sequence[Tensor], later_v: Sequence[Tensor], layout: Spans
) -> Tensor:
    """Computes attention with fp32 scores and one softmax over block 0 and the diagonals. This reference
    implementation runs on any device.
    """
    scale, out = q.shape[2] ** -0.5, [q[:, :0]]
    for part in layout.parts():
        mine = part.queries
        q32 = q[:, mine].float() * scale
        scores = q32 @ k0[:, part.keys].float().transpose(-1, -2)
        scores = scores.masked_fill(part.future(q.device), float("-inf"))
        own = [(q32 * k[:, mine].float()).sum(-1, keepdim=True) for k in later_k]
        both = torch.cat([scores, *own], dim=-1).softmax(-1)
        weights, *of_later = torch.split(both, [scores.shape[-1], *[1] * len(own)], dim=-1)
        mixed = weights @ v0[:, part.keys].float()
        for weight, v in zip(of_later, later_v, strict=True):
            mixed = mixed + weight * v[:, mine].float()
        out.append(mixed.to(q.dtype))
    return torch.cat(out, dim=1)


def merged(
    q: Tensor, k0: Tensor, v0: Tensor, later_k: Sequence[Tensor], later_v: Sequence[Tensor], layout: Spans
) -> Tensor:
    """Computes attention like `dense`, but with a flash kernel on block 0 and elementwise diagonals. If rows
    are selected and the kernel takes no mask, calls `dense`.
    """
    if layout.at is not None and not takes_mask(q.device):
        return dense(q, k0, v0, later_k, later_v, layout)
    out: Tensor = _Merged.apply(layout, q, k0, v0, *later_k, *later_v)  # type: ignore[no-untyped-call]
    return out


class _Flash(NamedTuple):
    """Result of a flash kernel's forward pass. `rest` is passed unchanged to the kernel's backward pass."""

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


def _mask(part: SampleSpan, like: Tensor) -> Tensor | None:
    """Returns the mask that a kernel adds to the scores, [1, 1, n_queries, n_keys], or None for causal
    attention.
    """
    if part.at is None:
        return None
    future = part.future(like.device)
    mask = torch.zeros(future.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(future, float("-inf"))[None, None]


class _Merged(torch.autograd.Function):
    """Autograd function of `merged`. Arguments: layout, q, k0, v0, then the keys of later steps, then their
    values.
    """

    @staticmethod
    def forward(ctx: Any, layout: Spans, q: Tensor, k0: Tensor, v0: Tensor, *later: Tensor) -> Tensor:
        n_later, scale = len(later) // 2, q.shape[2] ** -0.5
        out = q.new_empty(q.shape[1], q.shape[0], q.shape[2]).transpose(0, 1)
        lse = q.new_empty(q.shape[:2], dtype=torch.float32)
        rests, masks = [], []
        for part in layout.parts():
            mask, (queries, keys, _) = _mask(part, q), part
            flash = _flash_forward(q[None, :, queries], k0[None, :, keys], v0[None, :, keys], mask)
            out[:, queries], lse[:, queries] = flash.out[0], flash.lse[0]
            rests.append(flash.rest)
            masks.append(mask)
        weights: tuple[Tensor, ...] = ()
        if n_later:
            own = [_dot(q, k) * scale for k in later[:n_later]]
            total = torch.logsumexp(torch.stack([lse, *own]), dim=0)
            weights = tuple((s - total).exp() for s in own)
            out.mul_((lse - total).exp().to(q.dtype)[..., None])
            lse = total
            for w, v in zip(weights, later[n_later:], strict=True):
                out.addcmul_(w.to(q.dtype)[..., None], v)
        ctx.layout, ctx.rests, ctx.masks = layout, rests, masks
        ctx.save_for_backward(q, k0, v0, out, lse, *weights, *later)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k0, v0, out, lse, *rest = ctx.saved_tensors
        n_later, scale = len(rest) // 3, q.shape[2] ** -0.5
        weights, later_k, later_v = rest[:n_later], rest[n_later : 2 * n_later], rest[2 * n_later :]
        dq, dk0, dv0 = torch.empty_like(q), torch.zeros_like(k0), torch.zeros_like(v0)
        parts = zip(ctx.layout.parts(), ctx.rests, ctx.masks, strict=True)
        for (queries, keys, _), of_flash, mask in parts:
            merged = _Flash(out[None, :, queries], lse[None, :, queries].contiguous(), of_flash)
            inputs = grad[None, :, queries], q[None, :, queries], k0[None, :, keys], v0[None, :, keys]
            dq[:, queries], dk0[:, keys], dv0[:, keys] = (
                x[0] for x in _flash_backward(*inputs, merged, mask)
            )
        if not n_later:
            return None, dq, dk0, dv0
        delta = _dot(grad, out)
        dk, dv = [], []
        for w, k, v in zip(weights, later_k, later_v, strict=True):
            ds = (w * (_dot(grad, v) - delta) * scale).to(q.dtype)[..., None]
            dq.addcmul_(ds, k)
            dk.append(ds * q)
            dv.append(w.to(q.dtype)[..., None] * grad)
        return None, dq, dk0, dv0, *dk, *dv


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Returns inner products over the last axis, summed in fp32, `[n_heads, n_rows]`. The products have the
    precision of the factors. In bf16 this adds less error than the rounding of the factors, and saves two
    copies.
    """
    return (a * b).sum(-1, dtype=torch.float32)


@functools.cache
def _kernel_works(device: torch.device, dtype: torch.dtype) -> bool:
    """Returns True if the flash kernel gives the output and gradients of `dense` for one step with a
    diagonal. A kernel may be missing (MPS, fp32 on CUDA) or changed in another release of torch.
    """
    if device.type not in ("cpu", "cuda"):
        return False
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, 40, 32, generator=generator).to(device, dtype) for _ in range(5)]
    try:
        with torch.enable_grad():
            outputs, expected = (_outputs(f, inputs) for f in (merged, dense))
    except (RuntimeError, NotImplementedError, AttributeError):
        return False
    allowed = 0.02 if dtype.itemsize < 4 else 1e-5
    errors = (
        (a.float() - b.float()).norm() / b.float().norm() for a, b in zip(outputs, expected, strict=True)
    )
    return all(bool(error < allowed) for error in errors)


def _outputs(attention: Attend, inputs: Sequence[Tensor]) -> list[Tensor]:
    q, k0, v0, k1, v1 = leaves = [x.clone().requires_grad_() for x in inputs]
    lengths = 30, q.shape[1] - 30
    out = attention(q, k0, v0, [k1], [v1], Spans(lengths, lengths, None))
    if takes_mask(q.device):  # compares the same rows once more, selected explicitly
        at = torch.cat([torch.arange(n) for n in lengths])
        out = out + attention(q, k0, v0, [k1], [v1], Spans(lengths, lengths, at))
    return [out, *torch.autograd.grad(out.float().square().sum(), leaves)]
