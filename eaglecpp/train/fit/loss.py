# SPDX-License-Identifier: MIT
"""Computes the training loss through the draft head, and selects the rows that have loss.

The label of a row is the target's own next-token distribution: its most probable tokens with their
probabilities over the whole vocabulary. Tokens outside the draft vocabulary are left out and the rest is not
renormalised, so a row's weight is the probability mass that the drafter can reach. Dropping rows with tokens
outside the draft vocabulary would lose data, and renormalising would make the drafter confident about wrong
tokens.

There are two losses. Cross-entropy pulls the drafter's distribution q towards the target's distribution p
everywhere. A drafter is too small to match p everywhere, and serving only needs a high chance of acceptance,
`a = sum_v min(p(v), q(v))`. The gradient of `1 - a` is small where q is far from p. So the second loss mixes
cross-entropy and acceptance per row: `w CE + (1 - w) (1 - a)` with `w = exp(-3 a)`, where w is a constant in
the gradient. The loss is cross-entropy at first, and then more and more acceptance (the hybrid of Samarin et
al., "LK losses", arXiv:2602.23881).

Head product, softmax and gradient are computed together, with the softmax in fp32 (in bf16 its gradient is
off by up to 30 %, vllm-project/speculators#788). The fp32 logits are computed for a few rows at a time, so
that they stay in the cache. The gradient of the logits is kept in the compute type for many rows at a time,
so that few products with this gradient are needed, and few additions to the head's fp32 gradient.

The products with the head take most of a small drafter's training time. So a step may use a part of the draft
vocabulary: the tokens to which the step's labels give the most mass, and every m-th of the other tokens. Each
of these others counts m times in the softmax's sum. The expectation of this sum is the sum over all tokens.
Since the labels of all rows are included, the sampled tokens have little mass.

Besides the loss, `a` of each row is returned for training a confidence head. Labels are only the most
probable tokens. The other tokens of p and q add between 0 and the smaller of their two masses to `a`; half of
this maximum is counted.
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
"""Bytes of fp32 logits computed at once."""
_GRADIENT_BYTES = 128 << 20
"""Bytes of the logits' gradient kept at once."""
_LABEL_SHARE = 0.75
"""Share of the used tokens that is chosen by the labels."""
_STEP_DECAY = 0.8
"""Weight of a step relative to the previous one."""
_LK_DECAY = 3.0
"""Rate at which acceptance replaces cross-entropy, the paper's best value."""


def step_weights(n_steps: int) -> list[float]:
    """Returns for each step the weight of its rows in the loss. The weights add up to 1."""
    raw = [_STEP_DECAY**k for k in range(n_steps)]
    return [w / sum(raw) for w in raw]


def counted_rows(turns: NDArray[np.int16], n_steps: int) -> list[NDArray[np.int64]]:
    """Returns for each step k the rows p that have loss: the tokens p+1..p+2+k of such a row are in one
    assistant turn.

    The same rows occur when serving: a round starts at a token of the answer, and the answer's end token can
    still be drafted. Most trainers test token p itself, so they never train the second token of a reply
    (sgl-project/SpecForge#885).

    turns: i16 [N], number of the assistant turn, 0 outside. Returns ascending rows.
    """
    n_tokens = len(turns)
    together = (turns[1:] == turns[:-1]) & (turns[1:] > 0)  # true if tokens i and i + 1 are in the same turn
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
    """Labels of the rows of a step. ids: i64 [n_rows, n_top], draft ids; p: f32 [n_rows, n_top], 0 outside
    the draft vocabulary; best: i64 [n_rows], -1 = outside; weight: f32 [n_rows].

    n_seen: number of tokens of the draft vocabulary from which the loss is estimated, and which these labels
    choose; 0 = all tokens. kind: one of the two losses. outside: f32 [n_rows], mass of the labels outside the
    draft vocabulary, None = 0.
    """

    ids: Tensor
    p: Tensor
    best: Tensor
    weight: Tensor
    n_seen: int = 0
    kind: Loss = "cross-entropy"
    outside: Tensor | None = None


def head_loss(states: Tensor, heads: Sequence[Tensor], labels: Labels) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the loss of rows through the draft head. Returns three values: the weighted sum of the rows'
    losses; bool [n_rows], True if the token `best` of the row has the largest logit; and f32 [n_rows], the
    row's probability of acceptance `a`. Only the loss has a gradient, with respect to states and heads.

    states: [n_rows, width], normalised; heads: [n_draft_vocab, width] when concatenated, multiplied in the
    type of the states.
    """
    offset = None
    if 0 < labels.n_seen < len(heads[0]):
        chosen, offset, labels = _seen(len(heads[0]), labels)
        heads = [head.index_select(0, chosen) for head in heads]
    head = torch.cat([head.to(states.dtype) for head in heads], dim=1)
    loss, hit, accepted = _HeadLoss.apply(states, head, labels, offset)  # type: ignore[no-untyped-call]
    return loss, hit, accepted


def _seen(n_vocab: int, labels: Labels) -> tuple[Tensor, Tensor, Labels]:
    """Selects the tokens of the draft vocabulary that the loss of a step uses. Returns the draft ids of the
    selected tokens, i64 [n]; the log of the number of tokens for which each selected token stands, f32 [n];
    and the labels as indices into the selection, with zero mass for labels that are not selected. The sampled
    tokens depend on the labels instead of a random generator, so that a resumed run samples the same tokens.
    """
    ids, p, best, n_seen, device = labels.ids, labels.p, labels.best, labels.n_seen, labels.ids.device
    weighted = (p * labels.weight[:, None]).flatten()
    mass = torch.zeros(n_vocab, device=device).scatter_add_(0, ids.flatten(), weighted)
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
    """Returns the LK loss of rows from their cross-entropy. For both losses, the gradient with respect to the
    logits has the form `mass Q - share`. The function also returns the share and the mass for the LK loss.

    q, p, share: [n_rows, n_top], values at the labels; entropy, mass, weight, accepted: [n_rows, 1].
    """
    part = torch.exp(-_LK_DECAY * accepted)
    rest = (1.0 - part) * weight
    short = q * (q < p)  # for these tokens, a larger q means more acceptance
    return (
        part * entropy + rest * (1.0 - accepted),
        part * share + rest * short,
        part * mass + rest * short.sum(-1, keepdim=True),
    )


class _HeadLoss(torch.autograd.Function):
    """Computes the gradients in the forward pass, while each block's logits are available."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Tensor, labels: Labels, offset: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        ids, p, best, weight, _, kind, outside = labels
        # Probability mass inside the draft vocabulary.
        rest = 1.0 - (p.new_zeros(len(p)) if outside is None else outside)
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
                # Each logit is compared with the largest logit, because torch's argmax would take as long as
                # the matrix product.
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
                # If a token stands for several tokens, its q is only its own share of their sum.
                if offset is not None:
                    q /= offset[ids[rows]].exp()
                at_labels = torch.minimum(p[rows], q).sum(-1)
                q_rest = 1.0 - (q * (p[rows] > 0)).sum(-1)
                unseen = torch.minimum(rest[rows] - p[rows].sum(-1), q_rest).clamp(min=0)
                accepted[rows] = at_labels + 0.5 * unseen
                if kind == "lk":
                    inputs = q, p[rows], weight[rows, None], at_labels[:, None]
                    of_rows, share, mass = _mixed(of_rows, share, mass, *inputs)
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
