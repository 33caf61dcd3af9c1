# SPDX-License-Identifier: MIT
"""Merged attention against the dense definition, outputs and every gradient."""

from __future__ import annotations

import pytest
import torch

from eaglecpp.train.fit.attention import Layout, attention_for, dense, merged


def step_inputs(n_rows: int, n_later: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(3, n_rows, 16, generator=generator).to(dtype).requires_grad_()
        for _ in range(3 + 2 * n_later)
    ]


def all_of(*lengths: int) -> Layout:
    return Layout(lengths, lengths, None)


def run(attention: object, inputs: list[torch.Tensor], n_later: int, layout: Layout) -> list[torch.Tensor]:
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


@pytest.mark.parametrize("attention", [merged, dense])
def test_samples_do_not_see_each_other(attention: object) -> None:
    """Two samples side by side give what each gives alone, in gradients too."""
    both = step_inputs(12, 2, torch.float32)
    whole = run(attention, both, 2, all_of(5, 7))
    weight = torch.linspace(-1, 1, whole[0].numel()).view(whole[0].shape)
    for rows in (slice(0, 5), slice(5, 12)):
        q, k0, v0, *later = alone = [x[:, rows].detach().requires_grad_() for x in both]
        out = attention(q, k0, v0, later[:2], later[2:], all_of(rows.stop - rows.start))  # type: ignore[operator]
        gradients = torch.autograd.grad((out * weight[:, rows]).sum(), alone)
        for found, expected in zip(whole, (out, *gradients), strict=True):
            torch.testing.assert_close(found[:, rows], expected, rtol=1e-5, atol=1e-6)


def test_bf16_is_as_near_as_its_rounding() -> None:
    inputs, layout = step_inputs(64, 2, torch.bfloat16), all_of(40, 24)
    for found, expected in zip(run(merged, inputs, 2, layout), run(dense, inputs, 2, layout), strict=True):
        error = (found.float() - expected.float()).norm() / expected.float().norm()
        assert error < 0.02


def test_a_row_sees_no_later_row_and_only_its_own_later_entries() -> None:
    q, k0, v0, k1, v1 = (x.detach() for x in step_inputs(9, 1, torch.float32))
    before = merged(q, k0, v0, [k1], [v1], all_of(9))
    for changed in (k0, v0, k1, v1):
        changed[:, 5] += 1.0
    after = merged(q, k0, v0, [k1], [v1], all_of(9))
    torch.testing.assert_close(after[:, :5], before[:, :5], rtol=0, atol=0)
    assert not torch.allclose(after[:, 5], before[:, 5])
    v1[:, 5] += 100.0
    again = merged(q, k0, v0, [k1], [v1], all_of(9))
    torch.testing.assert_close(again[:, 6:], after[:, 6:], rtol=0, atol=0)


def test_the_processor_runs_the_merged_kernel() -> None:
    assert attention_for(torch.device("cpu"), torch.float32) is merged
    assert attention_for(torch.device("cpu"), torch.bfloat16) is merged


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chosen_rows_see_what_they_would_among_all(dtype: torch.dtype) -> None:
    """Of three samples, of the second one none."""
    n_later, lengths, rows = 2, (9, 3, 6), torch.tensor([0, 3, 4, 8, 13, 17])
    layout = Layout(lengths, (4, 0, 2), torch.tensor([0, 3, 4, 8, 1, 5]))
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
