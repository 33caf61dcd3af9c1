# SPDX-License-Identifier: MIT
"""Tests the training of block drafters: the rows that a block sees, the anchors, and learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from eaglecpp.train.fit.batch import make_batch
from eaglecpp.train.fit.block import BlockModel
from eaglecpp.train.fit.evaluate import TrainingTimeTest, evaluate
from eaglecpp.train.fit.loss import Labels
from helpers.training import BLOCK, N_VOCAB, SPEC, Samples, draft_ids, make_sample

CPU = torch.device("cpu")
SIZE = 4


def make_model(rank: int = 8, *, causal: bool = False, **form: Any) -> BlockModel:
    """Returns a model whose output depends on every input."""
    torch.manual_seed(3)
    assert BLOCK.block is not None
    block = replace(BLOCK.block, causal=(causal,) * 2, markov_rank=rank, confidence=rank > 0, **form)
    spec = replace(BLOCK, block=block)
    model = BlockModel(spec, torch.randn(N_VOCAB, 32), share_head=False, dtype=torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return model


def test_a_block_sees_the_text_before_its_anchor_and_nothing_else() -> None:
    """Tests that a block sees the text before its anchor, but neither later features, nor other blocks, nor
    the other sample.
    """
    model, samples = make_model(), [make_sample(12, 1), make_sample(9, 2)]
    batch = make_batch(samples, draft_ids(), SIZE, CPU, every=1, has_blocks=True)
    batch.features.requires_grad_()
    anchors = batch.counted[0].tolist()
    for place, anchor in enumerate(anchors):
        states = torch.stack([state[place] for state in model.steps(batch)])
        (gradient,) = torch.autograd.grad(states.square().sum(), batch.features)
        seen = gradient.abs().sum(-1) > 0
        first = 0 if anchor < 12 else 12
        assert seen.nonzero()[:, 0].tolist() == list(range(first, anchor + 1))
    alone = make_batch(samples, draft_ids(), SIZE, CPU, every=4, offset=5, has_blocks=True)
    few = alone.counted[0].tolist()
    for state, one in zip(model.steps(batch), model.steps(alone), strict=True):
        torch.testing.assert_close(state[[anchors.index(anchor) for anchor in few]], one[: len(few)])


def test_a_causal_block_hides_its_later_rows() -> None:
    batch = make_batch([make_sample(12, 1)], draft_ids(), SIZE, CPU, every=1, has_blocks=True)
    for causal in (True, False):
        model = make_model(rank=0, causal=causal)
        short = make_model(rank=0, causal=causal)
        short.block = replace(short.block, size=SIZE - 1)
        whole = list(model.steps(batch))[: SIZE - 1]
        cut = list(short.steps(replace(batch, counted=batch.counted[: SIZE - 1])))
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(whole, cut, strict=True)) == causal


def test_each_slot_has_the_bias_of_the_token_before_it() -> None:
    model, sample = make_model(), make_sample(12, 1)
    batch = make_batch([sample], draft_ids(), SIZE, CPU)
    row, width = 3, SPEC.hidden_size
    for slot, state in enumerate(model.steps(batch)):
        assert model.markov_w1 is not None
        torch.testing.assert_close(state[row, width:], model.markov_w1[int(sample.tokens[row + 1 + slot])])


def test_anchors_are_drawn_anew_and_the_same_in_a_resumed_run() -> None:
    sample = make_sample(200, 1)

    def anchors(offset: int) -> list[int]:
        batch = make_batch([sample], draft_ids(), SIZE, CPU, every=8, offset=offset, has_blocks=True)
        assert all(set(rows.tolist()) <= set(batch.counted[0].tolist()) for rows in batch.counted)
        for rows, places in zip(batch.counted, batch.places, strict=True):
            assert batch.run is not None
            torch.testing.assert_close(batch.run.later[places], rows)
        assert len(batch.counted[0]) == 198 // 8
        return batch.counted[0].tolist()

    assert anchors(1) == anchors(1) != anchors(2)


@pytest.mark.parametrize(
    ("rank", "form"), [(0, {}), (8, {}), (0, {"anchor_first": False, "conv": (2, 16), "selector": (8, 5)})]
)
def test_it_learns_texts_by_heart(rank: int, form: dict[str, Any]) -> None:
    """Tests learning with random labels over random features, so the model can only be right if it memorises
    these texts.
    """
    model = make_model(rank, **form)
    source = Samples([make_sample(16, seed) for seed in range(2)])
    method = TrainingTimeTest(model, draft_ids(), model.block.n_drafts, 1)
    before = evaluate(method, source, [0, 1], method.n_steps, 64).length
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(150):
        sums = model(method.batch(source.samples, step))
        optimizer.zero_grad()
        (sums.loss / sums.weight).backward()
        optimizer.step()
    assert before < 1.5
    assert evaluate(method, source, [0, 1], method.n_steps, 64).length > 2.0


def test_the_confidence_head_estimates_the_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that the confidence head learns to estimate the acceptance of a fixed drafter from the drafter's
    states.
    """
    model, batch = make_model(), make_batch([make_sample(40, 1)], draft_ids(), SIZE, CPU)
    assert model.confidence is not None
    loss_of, errors = model.further_loss, list[float]()

    def kept(states: torch.Tensor, accepted: torch.Tensor, labels: Labels) -> torch.Tensor | float:
        assert model.confidence is not None
        found = torch.sigmoid(states @ model.confidence[:-1] + model.confidence[-1])
        errors.append(float((found - accepted).abs().mean().detach()))
        return loss_of(states, accepted, labels)

    monkeypatch.setattr(model, "further_loss", kept)
    optimizer = torch.optim.Adam([model.confidence], lr=0.02)
    for _ in range(200):
        sums = model(batch)
        optimizer.zero_grad()
        (sums.loss / sums.weight).backward()
        optimizer.step()
    assert errors[-1] < 0.3 * errors[0], errors[::20]
    # In a real training, the loss also trains the drafter to be confident.
    states = torch.randn(3, 40, requires_grad=True)
    none = torch.zeros(3)
    loss = loss_of(states, torch.rand(3), Labels(none, none, none, torch.ones(3), 0, "lk", None))
    assert isinstance(loss, torch.Tensor) and torch.autograd.grad(loss, states)[0].any()
