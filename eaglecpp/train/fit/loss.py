# SPDX-License-Identifier: MIT
"""The loss through the draft head, and which rows count.

The label of a row is the target's own next-token distribution: its most probable tokens with their
probabilities under the whole vocabulary. Tokens outside the draft vocabulary are left out and the rest is
not renormalised, so a row's weight is the probability mass that the drafter can reach. Dropping such rows
would lose data; renormalising would teach the drafter to be confident about wrong tokens.

Two losses. Cross-entropy wants the drafter's distribution q near the target's p everywhere; a drafter is too
small for that, and what serving pays for is the chance that a draft is accepted, `a = sum_v min(p(v), q(v))`.
The gradient of `1 - a` is small where q is far off. So the other loss is their mixture per row,
`w CE + (1 - w) (1 - a)` with `w = exp(-3 a)`, treated as a constant in the gradient: cross-entropy to begin
with, then more and more of what counts (the hybrid of Samarin et al., "LK losses", arXiv:2602.23881).

Head product, softmax and gradient are formed together, with the softmax in fp32 (in bf16 its gradient is off
by up to 30 %, vllm-project/speculators#788): fp32 logits a few rows at a time, so that the passes over them
stay in the cache, and their gradient in the compute type for many rows at a time, so that the products with
it are few and the fp32 gradient of the head is added to rarely.

The products with the head are most of a small drafter's training. So a step may look at a part of the draft
vocabulary: the tokens to which its labels give the most mass, and every m-th of the others, which then count
m times in the softmax's sum. The expectation is that of the whole sum, and since the labels of all rows are
in it, what is left to chance has little mass.

Beside the loss comes `a` of each row, which a confidence head learns. Labels are only the likeliest tokens;
of what p and q have beyond them, between nothing and the smaller one is in `a`: half of that is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Loss = Literal["cross-entropy", "lk"]
_BLOCK_BYTES = 8 << 20
"""Of fp32 logits at a time."""
_GRADIENT_BYTES = 128 << 20
"""Of the logits' gradient at a time."""
_LABEL_SHARE = 0.75
"""Of the tokens looked at, those taken for what the labels say of them."""
_STEP_DECAY = 0.8
"""Weight of a step over that of the one before."""
_LK_DECAY = 3.0
"""How fast cross-entropy makes room for acceptance, the paper's best value."""


def step_weights(n_steps: int) -> list[float]:
    """Weight of each step's rows, over their sum."""
    raw = [_STEP_DECAY**k for k in range(n_steps)]
    return [w / sum(raw) for w in raw]


def counted_rows(turns: NDArray[np.int16], n_steps: int) -> list[NDArray[np.int64]]:
    """Which rows p of each step k have loss: those whose tokens p+1..p+2+k lie in one assistant turn.

    These are the rows that occur when serving: a round starts at a token of the answer, and the answer's own
    end can still be drafted. The mask of most trainers, at p itself, never trains the second token of a reply
    (sgl-project/SpecForge#885).

    turns: i16 [N], a number for each assistant turn, 0 outside. Returns the rows of each step, ascending.
    """
    n_tokens = len(turns)
    together = (turns[1:] == turns[:-1]) & (turns[1:] > 0)  # token i and i + 1 in one turn
    valid = np.zeros(n_tokens, np.bool_)
    valid[: max(n_tokens - 2, 0)] = together[1:]
    rows = []
    for k in range(n_steps):
        n = max(n_tokens - 2 - k, 0)
        if k:
            valid[:n] &= together[1 + k :]
            valid[n:] = False
        rows.append(np.flatnonzero(valid))
    return rows


class Labels(NamedTuple):
    """What rows are to draft. ids: i64 [n_rows, n_top], draft ids; p: f32 [n_rows, n_top], 0 where a token is
    not in the draft vocabulary; best: i64 [n_rows], -1 = none; weight: f32 [n_rows].

    n_seen: estimate the loss from so many tokens of the draft vocabulary, chosen by these labels alone; 0 =
    from all. kind: see above. outside: f32 [n_rows], mass that labels have outside the draft vocabulary,
    None = none.
    """

    ids: Tensor
    p: Tensor
    best: Tensor
    weight: Tensor
    n_seen: int = 0
    kind: Loss = "cross-entropy"
    outside: Tensor | None = None


def head_loss(states: Tensor, heads: Sequence[Tensor], labels: Labels) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted sum of the rows' losses; bool [n_rows], whether the largest logit is `best`'s; f32 [n_rows],
    `a`. Only the loss has a gradient, in states and heads.

    states: [n_rows, width], normed; heads: side by side [n_draft_vocab, width], multiplied in the type of the
    states.
    """
    offset = None
    if 0 < labels.n_seen < len(heads[0]):
        chosen, offset, labels = _seen(len(heads[0]), labels)
        heads = [head.index_select(0, chosen) for head in heads]
    head = torch.cat([head.to(states.dtype) for head in heads], dim=1)
    loss, hit, accepted = _HeadLoss.apply(states, head, labels, offset)  # type: ignore[no-untyped-call]
    return loss, hit, accepted


def _seen(n_vocab: int, labels: Labels) -> tuple[Tensor, Tensor, Labels]:
    """Which tokens a step looks at: i64 [n], draft ids; f32 [n], log of how many tokens each stands for; and
    the labels with ids among the chosen ones, those left out with no mass. Which of the others come is drawn
    from the labels, not from a generator: a resumed run must find the same.
    """
    ids, p, best, n_seen, device = labels.ids, labels.p, labels.best, labels.n_seen, labels.ids.device
    given = (p * labels.weight[:, None]).flatten()
    mass = torch.zeros(n_vocab, device=device).scatter_add_(0, ids.flatten(), given)
    frequent = mass.topk(max(1, int(_LABEL_SHARE * n_seen))).indices
    is_rest = torch.ones(n_vocab, dtype=torch.bool, device=device)
    is_rest[frequent] = False
    rest = is_rest.nonzero()[:, 0]
    every = math.ceil(len(rest) / max(1, n_seen - len(frequent)))
    chosen = torch.cat([frequent, rest[int(ids.sum()) % every :: every]])
    offset = torch.full((len(chosen),), math.log(every), device=device)
    offset[: len(frequent)] = 0.0
    place = torch.full((n_vocab,), -1, dtype=torch.long, device=device)
    place[chosen] = torch.arange(len(chosen), device=device)
    ids = place[ids]
    best = torch.where(best < 0, best, place[best.clamp(min=0)])
    return chosen, offset, labels._replace(ids=ids.clamp(min=0), p=p.masked_fill(ids < 0, 0.0), best=best)


def _mixed(
    entropy: Tensor, share: Tensor, mass: Tensor, q: Tensor, p: Tensor, weight: Tensor, accepted: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The LK loss of rows from their cross-entropy. Its gradient in the logits has the same form, `mass Q -
    share`, with the share and the mass that are returned.

    q, p, share: [n_rows, n_top], at the labels; entropy, mass, weight, accepted: [n_rows, 1].
    """
    part = torch.exp(-_LK_DECAY * accepted)
    rest = (1.0 - part) * weight
    short = q * (q < p)  # more of these tokens is more accepted
    return (
        part * entropy + rest * (1.0 - accepted),
        part * share + rest * short,
        part * mass + rest * short.sum(-1, keepdim=True),
    )


class _HeadLoss(torch.autograd.Function):
    """Forms the gradients in the forward pass, where each block's logits are at hand."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Tensor, labels: Labels, offset: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        ids, p, best, weight, _, kind, outside = labels
        rest = 1.0 - (p.new_zeros(len(p)) if outside is None else outside)  # what the vocabulary may have
        want_states, want_head = ctx.needs_input_grad[:2]
        loss = torch.zeros((), device=states.device)
        hit = torch.empty(len(states), dtype=torch.bool, device=states.device)
        accepted = torch.empty(len(states), device=states.device)
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
                if offset is not None:
                    logits += offset
                share = p[rows] * weight[rows, None]
                mass = share.sum(-1, keepdim=True)
                picked = logits.gather(1, ids[rows])
                total = logits.sub_(top).exp_().sum(-1, keepdim=True)
                of_rows = mass * (top + total.log()) - (share * picked).sum(-1, keepdim=True)
                q = logits.gather(1, ids[rows]) / total
                if offset is not None:  # a token that stands for several has its own part of the sum
                    q /= offset[ids[rows]].exp()
                at_labels = torch.minimum(p[rows], q).sum(-1)
                q_rest = 1.0 - (q * (p[rows] > 0)).sum(-1)
                unseen = torch.minimum(rest[rows] - p[rows].sum(-1), q_rest).clamp(min=0)
                accepted[rows] = at_labels + 0.5 * unseen
                if kind == "lk":
                    given = q, p[rows], weight[rows, None], at_labels[:, None]
                    of_rows, share, mass = _mixed(of_rows, share, mass, *given)
                loss += of_rows.sum()
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
        ctx.mark_non_differentiable(hit, accepted)
        return loss, hit, accepted

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        d_states, d_head = ctx.gradients
        ctx.gradients = (None, None)
        return (
            None if d_states is None else d_states * grad,
            None if d_head is None else (d_head * grad).to(ctx.head_dtype),
            None,
            None,
        )
