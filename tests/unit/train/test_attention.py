# SPDX-License-Identifier: MIT
"""Compares the outputs and all gradients of merged attention with those of dense attention."""

from __future__ import annotations

import pytest
import torch

from eaglecpp.train.fit.attention import Spans, dense, merged


def step_inputs(n_rows: int, n_later: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(3, n_rows, 16, generator=generator).to(dtype).requires_grad_()
        for _ in range(3 + 2 * n_later)
    ]


def all_of(*lengths: int) -> Spans:
    return Spans(lengths, lengths, None)


def run(attention: object, inputs: list[torch.Tensor], n_later: int, layout: Spans) -> list[torch.Tensor]:
    q, k0, v0, *later = inputs
    out = attention(q, k0, v0, later[:n_later], later[n_later:], layout)  # type: ignore[operator]
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float32).view(out.shape)
    return [out, *torch.autograd.grad((out.float() * weight).sum(), inputs)]


@pytest.mark.parametrize("n_later", [0, 1, 3])
@pytest.mark.parametrize("lengths", [(1,), (7,), (130,), (7, 1, 40)])
def test_merged_equals_dense_in_output_and_gradients(lengths: tuple[int, ...], n_later: int) -> None:
    inputs, layout = step_inputs(sum(lengths), n_later, torch.float32), all_of(*lengths)
    results = run(merged, inputs, n_later, layout), run(dense, inputs, n_later, layout)
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chosen_rows_see_the_same_as_among_all(dtype: torch.dtype) -> None:
    """Tests that chosen rows see the same rows as in a computation of all rows. The chosen rows belong to the
    first and the third of three samples.
    """
    n_later, lengths, rows = 2, (9, 3, 6), torch.tensor([0, 3, 4, 8, 13, 17])
    layout = Spans(lengths, (4, 0, 2), torch.tensor([0, 3, 4, 8, 1, 5]))
    q, k0, v0, *later = (x.detach() for x in step_inputs(18, n_later, dtype))
    whole = dense(q, k0, v0, later[:n_later], later[n_later:], all_of(*lengths))
    chosen = [x[:, rows].requires_grad_() for x in (q, *later)]
    leaves = [chosen[0], k0.requires_grad_(), v0.requires_grad_(), *chosen[1:]]
    results = []
    for attention in (merged, dense):
        out = attention(*leaves[:3], leaves[3 : 3 + n_later], leaves[3 + n_later :], layout)
        error = (out.float() - whole[:, rows].float()).norm() / whole.float().norm()
        assert error < (0.02 if dtype is torch.bfloat16 else 1e-5)
        weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
        results.append(torch.autograd.grad((out.float() * weight).sum(), leaves))
    for found, expected in zip(*results, strict=True):
        error = (found.float() - expected.float()).norm() / expected.float().norm()
        assert error < (0.03 if dtype is torch.bfloat16 else 1e-4)
