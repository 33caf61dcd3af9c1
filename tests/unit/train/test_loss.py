# SPDX-License-Identifier: MIT
"""Tests which rows have loss, and the gradient of the head loss, which the code computes itself."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from eaglecpp.train.fit import loss as loss_module
from eaglecpp.train.fit.loss import Labels, Loss, counted_rows, head_loss


def test_rows_count_while_all_their_tokens_are_in_one_answer() -> None:
    # The turns are: prompt, answer 1, user, answer 2.
    rows = counted_rows(np.array([0, 0, 0, 1, 1, 1, 1, 0, 0, 2, 2, 3, 3, 3], np.int16), 3)
    # At step k, row p counts if the tokens p+1 .. p+2+k are in one turn. So the first row that counts for
    # answer 1 is the last row of the prompt.
    assert [r.tolist() for r in rows] == [[2, 3, 4, 8, 10, 11], [2, 3, 10], [2]]


@pytest.mark.parametrize("n_tokens", [1, 2, 3])
def test_short_conversations_have_rows_only_where_tokens_follow(n_tokens: int) -> None:
    rows = counted_rows(np.ones(n_tokens, np.int16), 4)
    assert [len(r) for r in rows] == [max(n_tokens - 2 - k, 0) for k in range(4)]


@pytest.mark.parametrize("kind", get_args(Loss))
@pytest.mark.parametrize("block", [1 << 24, 7 * 4 * 50])
def test_loss_and_gradients_equal_autograds(block: int, kind: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "_BLOCK_BYTES", block)
    rng = torch.Generator().manual_seed(2)
    states = torch.randn(33, 16, generator=rng).requires_grad_()
    head = torch.randn(50, 16, generator=rng).requires_grad_()
    ids = torch.stack([torch.randperm(50, generator=rng)[:5] for _ in range(33)])
    p = torch.rand(33, 5, generator=rng) * 0.19
    p[:, 3] = 0.0
    weight = torch.rand(33, generator=rng)

    logits = states @ head.T
    best = logits.argmax(-1)
    best[::3] -= 1
    loss, hit, overlap = head_loss(states, [head], Labels(ids, p, best, weight, kind=kind))
    found = torch.autograd.grad(loss * 3, [states, head])
    rows = -(p * logits.log_softmax(-1).gather(1, ids)).sum(-1)
    if kind == "lk":
        accepted = torch.minimum(p, logits.softmax(-1).gather(1, ids)).sum(-1)
        share = torch.exp(-3 * accepted.detach())
        rows = share * rows + (1 - share) * (1 - accepted)
    plain = (weight * rows).sum()
    expected = torch.autograd.grad(plain * 3, [states, head])

    torch.testing.assert_close(loss, plain, rtol=1e-5, atol=1e-4)
    assert hit.tolist() == [i % 3 > 0 for i in range(33)]
    q = logits.softmax(-1)
    rest = torch.minimum(1 - p.sum(-1), 1 - (q.gather(1, ids) * (p > 0)).sum(-1))
    torch.testing.assert_close(overlap, torch.minimum(p, q.gather(1, ids)).sum(-1) + rest / 2)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_mass_outside_the_draft_vocabulary_is_left_out_not_renormalised() -> None:
    states, head = torch.randn(1, 8), torch.randn(10, 8)
    ids, best, one = torch.tensor([[3, 4]]), torch.tensor([-1]), torch.ones(1)
    full, *_ = head_loss(states, [head], Labels(ids, torch.tensor([[0.6, 0.3]]), best, one))
    half, *_ = head_loss(states, [head], Labels(ids, torch.tensor([[0.3, 0.15]]), best, one))
    assert float(half) == pytest.approx(float(full) / 2)


@pytest.mark.parametrize("kind", get_args(Loss))
def test_a_part_of_the_vocabulary_estimates_the_loss_of_all_of_it(kind: Loss) -> None:
    rng = torch.Generator().manual_seed(3)
    states = torch.randn(40, 16, generator=rng).requires_grad_()
    head = (torch.randn(600, 16, generator=rng) * 0.2).requires_grad_()
    # only few different tokens occur
    ids = torch.stack([torch.randperm(60, generator=rng)[:5] for _ in range(40)])
    p, weight = torch.full((40, 5), 0.19), torch.rand(40, generator=rng)
    best = ids[:, 0].clone()
    best[::4] = -1

    whole, _, exact = head_loss(states, [head], Labels(ids, p, best, weight, kind=kind))
    expected = torch.autograd.grad(whole, [states, head])
    losses, overlaps, sums = [], [], [torch.zeros_like(states), torch.zeros_like(head)]
    for k in range(60):
        # The label has no probability mass, so the loss samples other tokens.
        label = torch.cat([ids, torch.full((40, 1), k)], 1)
        mass = torch.cat([p, torch.zeros(40, 1)], 1)
        part, hit, overlap = head_loss(states, [head], Labels(label, mass, best, weight, 200, kind))
        assert not hit[::4].any()
        losses.append(float(part.detach()))
        overlaps.append(overlap)
        for total, one in zip(sums, torch.autograd.grad(part, [states, head]), strict=True):
            total += one / 60
    assert np.mean(losses) == pytest.approx(float(whole.detach()), rel=0.01)
    assert np.std(losses) < 0.01 * float(whole.detach())
    torch.testing.assert_close(torch.stack(overlaps).mean(0), exact, atol=0.02, rtol=0.0)
    for found, want in zip(sums, expected, strict=True):
        assert (found - want).norm() < 0.05 * want.norm()


def test_a_label_outside_the_sampled_tokens_has_no_mass() -> None:
    states, head = torch.randn(3, 8), torch.randn(40, 8)
    ids = torch.tensor([[0], [0], [1]])
    labels = Labels(ids, torch.ones(3, 1), ids[:, 0], torch.tensor([1.0, 1.0, 0.1]), 2)
    chosen, _, seen = loss_module._seen(40, labels)
    assert chosen[0] == 0 and seen.p[:2].all()
    assert (seen.best[2] < 0) == (1 not in chosen) == (seen.p[2, 0] == 0)
    assert torch.equal(chosen, loss_module._seen(40, labels)[0])  # a resumed run must choose the same tokens
    loss, *_ = head_loss(states, [head], Labels(ids, torch.ones(3, 1), ids[:, 0], torch.ones(3), 2))
    assert torch.isfinite(loss)
