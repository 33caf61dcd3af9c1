# SPDX-License-Identifier: MIT
"""Merged attention against the dense definition, outputs and every gradient."""

from __future__ import annotations

import pytest
import torch

from eaglecpp.train.fit.attention import attention_for, dense, merged


def step_inputs(n_rows: int, n_later: int, dtype: torch.dtype, n_batch: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)

    def heads(rows: int) -> torch.Tensor:
        return torch.randn(n_batch, 3, rows, 16, generator=generator).to(dtype).requires_grad_()

    return [heads(n_rows), heads(n_rows + n_later), heads(n_rows + n_later)] + [
        heads(n_rows) for _ in range(2 * n_later)
    ]


def run(attention: object, inputs: list[torch.Tensor], n_later: int) -> list[torch.Tensor]:
    q, k0, v0, *later = inputs
    out = attention(q, k0, v0, later[:n_later], later[n_later:])  # type: ignore[operator]
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float32).view(out.shape)
    return [out, *torch.autograd.grad((out.float() * weight).sum(), inputs)]


@pytest.mark.parametrize("n_later", [0, 1, 3])
@pytest.mark.parametrize("n_rows", [1, 7, 130])
def test_merged_equals_dense_in_output_and_gradients(n_rows: int, n_later: int) -> None:
    inputs = step_inputs(n_rows, n_later, torch.float32)
    for found, expected in zip(run(merged, inputs, n_later), run(dense, inputs, n_later), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_bf16_is_as_near_as_its_rounding() -> None:
    inputs = step_inputs(64, 2, torch.bfloat16)
    for found, expected in zip(run(merged, inputs, 2), run(dense, inputs, 2), strict=True):
        error = (found.float() - expected.float()).norm() / expected.float().norm()
        assert error < 0.02


def test_a_row_sees_no_later_row_and_only_its_own_later_entries() -> None:
    q, k0, v0, k1, v1 = (x.detach() for x in step_inputs(9, 1, torch.float32, n_batch=1))
    before = merged(q, k0, v0, [k1], [v1])
    for changed in (k0, v0, k1, v1):
        changed[:, :, 5] += 1.0
    after = merged(q, k0, v0, [k1], [v1])
    torch.testing.assert_close(after[:, :, :5], before[:, :, :5], rtol=0, atol=0)
    assert not torch.allclose(after[:, :, 5], before[:, :, 5])
    v1[:, :, 5] += 100.0
    again = merged(q, k0, v0, [k1], [v1])
    torch.testing.assert_close(again[:, :, 6:], after[:, :, 6:], rtol=0, atol=0)


def test_the_processor_runs_the_merged_kernel() -> None:
    assert attention_for(torch.device("cpu"), torch.float32) is merged
    assert attention_for(torch.device("cpu"), torch.bfloat16) is merged


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chosen_rows_see_what_they_would_among_all(dtype: torch.dtype) -> None:
    n_later, rows = 2, torch.tensor([[0, 3, 4, 8], [7, 1, 0, 0]])
    inputs = step_inputs(9, n_later, dtype)
    q, k0, v0, *later = (x.detach() for x in inputs)
    k0, v0 = k0[:, :, :9], v0[:, :, :9]
    whole = dense(q, k0, v0, later[:n_later], later[n_later:])
    at = rows[:, None, :, None]
    chosen = [x.take_along_dim(at, 2).requires_grad_() for x in (q, *later)]
    leaves = [chosen[0], k0.requires_grad_(), v0.requires_grad_(), *chosen[1:]]
    results = []
    for attention in (merged, dense):
        out = attention(*leaves[:3], leaves[3 : 3 + n_later], leaves[3 + n_later :], rows)
        error = (out.float() - whole.take_along_dim(at, 2).float()).norm() / whole.float().norm()
        assert error < (0.02 if dtype is torch.bfloat16 else 1e-5)
        weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
        results.append(torch.autograd.grad((out.float() * weight).sum(), leaves))
    for found, expected in zip(*results, strict=True):
        error = (found.float() - expected.float()).norm() / expected.float().norm()
        assert error < (0.03 if dtype is torch.bfloat16 else 1e-4)
