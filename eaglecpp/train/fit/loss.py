# SPDX-License-Identifier: MIT
"""Soft cross-entropy through the draft head, and which rows count.

The label of a row is the target's own next-token distribution: its most probable tokens with their
probabilities under the whole vocabulary. Tokens outside the draft vocabulary are left out and the rest is not
renormalised, so a row counts by the mass the drafter could have: dropping rows loses data, renormalising
teaches confident wrong tokens.

Head product, softmax and gradient are formed together, with the softmax in fp32 (in bf16 its gradient is off
by up to 30 %, vllm-project/speculators#788): fp32 logits a few rows at a time, so that the passes over them
stay in the cache, and their gradient in the compute type for many rows at a time, so that the products with
it are few and the fp32 gradient of the head is added to rarely.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["counted_rows", "head_loss", "step_weights"]

_BLOCK_BYTES = 8 << 20
"""Of fp32 logits at a time."""
_GRADIENT_BYTES = 128 << 20
"""Of the logits' gradient at a time."""


def step_weights(n_steps: int, decay: float) -> list[float]:
    """Weight of each step's rows: decay^k, over their sum."""
    raw = [decay**k for k in range(n_steps)]
    return [w / sum(raw) for w in raw]


def counted_rows(turns: NDArray[np.int16], n_steps: int) -> list[NDArray[np.int64]]:
    """Which rows p of each step k have loss: those whose tokens p+1..p+2+k lie in one assistant turn.

    These are the rows that occur when serving: a round starts at a token of the answer, and the answer's own
    end can still be drafted. The mask of most trainers, at p itself, never trains the second token of a reply
    (sgl-project/SpecForge#885).

    turns: i16 [n_batch, S]. Returns for each step the flat indices b * S + p, ascending.
    """
    n_batch, n_tokens = turns.shape
    together = (turns[:, 1:] == turns[:, :-1]) & (turns[:, 1:] > 0)  # token i and i + 1 in one turn
    valid = np.zeros((n_batch, n_tokens), np.bool_)
    valid[:, : n_tokens - 2] = together[:, 1:]
    rows = []
    for k in range(n_steps):
        if k:
            valid[:, : max(n_tokens - 2 - k, 0)] &= together[:, 1 + k :]
            valid[:, max(n_tokens - 2 - k, 0) :] = False
        rows.append(np.flatnonzero(valid))
    return rows


def head_loss(
    states: Tensor, head: Tensor, ids: Tensor, p: Tensor, best: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Weighted sum over rows of `-sum_v p(v) log Q(v)`; bool [n_rows], whether the largest logit is `best`'s.

    states: [n_rows, n_embd], normed; head: [n_draft_vocab, n_embd], of one dtype. ids: i64 [n_rows, n_top],
    draft ids; p: f32 [n_rows, n_top], 0 where a token is not in the draft vocabulary; best: i64 [n_rows],
    -1 = none; weight: f32 [n_rows].
    Differentiable in states and head.
    """
    loss, hit = _HeadLoss.apply(states, head, ids, p, best, weight)  # type: ignore[no-untyped-call]
    return loss, hit


class _HeadLoss(torch.autograd.Function):
    """Forms the gradients in the forward pass, where each block's logits are at hand."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Tensor, ids: Tensor, p: Tensor, best: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        want_states, want_head = ctx.needs_input_grad[:2]
        loss = torch.zeros((), device=states.device)
        hit = torch.empty(len(states), dtype=torch.bool, device=states.device)
        d_states = torch.empty_like(states) if want_states else None
        d_head = torch.zeros_like(head, dtype=torch.float32) if want_head else None
        n_block = max(1, _BLOCK_BYTES // (4 * len(head)))
        n_part = n_block * max(1, _GRADIENT_BYTES // (n_block * len(head) * states.itemsize))
        wanted = d_states is not None or d_head is not None
        gradient = states.new_empty(min(n_part, len(states)) if wanted else 0, len(head))
        for first in range(0, len(states), n_part):
            part = slice(first, min(first + n_part, len(states)))
            for at in range(part.start, part.stop, n_block):
                rows = slice(at, min(at + n_block, part.stop))
                logits = (states[rows] @ head.T).float()
                # an argmax would take as long as the product: it is enough to know the largest logit
                top = logits.amax(-1, keepdim=True)
                of_best = logits.gather(1, best[rows, None].clamp(min=0))
                hit[rows] = ((of_best == top) & (best[rows, None] >= 0))[:, 0]
                share = p[rows] * weight[rows, None]
                mass = share.sum(-1, keepdim=True)
                picked = logits.gather(1, ids[rows])
                total = logits.sub_(top).exp_().sum(-1, keepdim=True)
                loss += (mass * (top + total.log())).sum() - (share * picked).sum()
                if wanted:
                    logits.mul_(mass / total).scatter_add_(1, ids[rows], -share)
                    gradient[at - first : rows.stop - first] = logits
            d_logits = gradient[: part.stop - first]
            if d_states is not None:
                torch.mm(d_logits, head, out=d_states[part])
            if d_head is not None:
                d_head += d_logits.T @ states[part]
        ctx.gradients = (d_states, d_head)
        ctx.head_dtype = head.dtype
        ctx.mark_non_differentiable(hit)
        return loss, hit

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        d_states, d_head = ctx.gradients
        ctx.gradients = (None, None)
        return (
            None if d_states is None else d_states * grad,
            None if d_head is None else (d_head * grad).to(ctx.head_dtype),
            None,
            None,
            None,
            None,
        )
