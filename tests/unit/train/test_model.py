# SPDX-License-Identifier: MIT
"""Compares training-time test, which trains all chains together, with a reference that drafts a separate
chain from each anchor. Also compares merged attention with dense attention, in outputs and all gradients, and
the acceptance that an evaluation reports with acceptance that is counted by hand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from eaglecpp.train.fit.attention import Spans, dense, merged
from eaglecpp.train.fit.batch import Batch, make_batch
from eaglecpp.train.fit.evaluate import TrainingTimeTest, evaluate
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.samples import Sample
from helpers.chains import chain_logits, random_model, reference
from helpers.training import KINDS, N_VOCAB, SPEC, Samples, draft_ids, make_sample

N_STEPS = 4
CPU = torch.device("cpu")


def outcome(model: DraftModel, *batches: Batch) -> list[torch.Tensor]:
    """Returns the sums of loss and weight of some batches, and the gradients of all weights."""
    model.zero_grad()
    sums = [model(batch) for batch in batches]
    loss, weight = (torch.stack([one[i] for one in sums]).sum() for i in (0, 1))
    loss.backward()
    return [loss, weight, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_every_step_equals_the_chain_at_that_anchor(kind: str) -> None:
    spec = KINDS[kind]
    model = random_model(spec)
    samples = [make_sample(n, seed=n, n_aux=spec.n_aux) for n in (11, 14)]
    batch = make_batch(samples, draft_ids(), N_STEPS, CPU)
    with torch.no_grad():
        logits = model.logits(batch)
    drafter = reference(model)
    for sample, begin in zip(samples, (0, 11), strict=True):
        for anchor in range(len(sample.tokens) - 2):
            n_steps = min(N_STEPS, len(sample.tokens) - 2 - anchor)
            for k, expected in enumerate(chain_logits(drafter, sample, anchor, n_steps)):
                torch.testing.assert_close(logits[k][begin + anchor], expected, rtol=1e-3, atol=1e-3)


def test_the_loss_is_the_soft_cross_entropy_of_the_counted_rows() -> None:
    model = random_model(KINDS["eagle31"])
    samples = [make_sample(13, 1, [0] * 4 + [1] * 6 + [0] * 3), make_sample(9, 2)]
    batch = make_batch(samples, draft_ids(), 3, CPU)
    sums = model(batch)
    table, loss, weight, hits = draft_ids(), 0.0, 0.0, [0, 0, 0]
    logits = [step.detach() for step in model.logits(batch)]
    for sample, begin in zip(samples, (0, 13), strict=True):
        for k, raw in enumerate((1.0, 0.8, 0.64)):
            for p in range(len(sample.tokens) - 2 - k):
                if len({*sample.turns[p + 1 : p + 3 + k].tolist()}) > 1 or not sample.turns[p + 1]:
                    continue
                logq = logits[k][begin + p].log_softmax(-1)
                label = p + 1 + k
                best = table[sample.label_ids[label, 0]]
                hits[k] += int(best >= 0 and logq.argmax() == best)
                weight += raw / 2.44
                for token, logp in zip(sample.label_ids[label], sample.label_logp[label], strict=True):
                    if table[token] >= 0:
                        loss -= raw / 2.44 * float(logq[table[token]]) * float(torch.tensor(logp).exp())
    assert float(sums.weight) == pytest.approx(weight)
    assert sums.loss.item() == pytest.approx(loss, rel=1e-4)
    assert sums.hits.tolist() == hits
    assert sums.counts[0] > sums.counts[1] > sums.counts[2] > 0


def test_a_batch_without_counted_rows_gives_zero_and_a_gradient_for_every_weight() -> None:
    model = random_model(KINDS["eagle31"])
    sums = model(make_batch([make_sample(8, 1, [0] * 8)], draft_ids(), 3, CPU))
    sums.loss.backward()
    assert sums.loss.item() == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_samples_of_a_batch_do_not_affect_each_other() -> None:
    model = random_model(KINDS["eagle31"])
    short, long = make_sample(10, 1), make_sample(21, 2)

    def made(*several: list[Sample]) -> list[torch.Tensor]:
        return outcome(model, *(make_batch(samples, draft_ids(), 3, CPU) for samples in several))

    for found, expected in zip(made([short, long]), made([short], [long]), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_bf16_computes_with_fp32_weights_and_gradients() -> None:
    exact, model = random_model(KINDS["eagle31"]), random_model(KINDS["eagle31"], torch.bfloat16)
    batch = make_batch([make_sample(30, 1)], draft_ids(), 3, CPU)
    for one in (exact, model):
        one(batch).loss.backward()
    for (name, a), (_, b) in zip(exact.named_parameters(), model.named_parameters(), strict=True):
        assert b.grad is not None and a.grad is not None and b.grad.dtype is torch.float32
        assert float((a.grad - b.grad).norm() / a.grad.norm()) < 0.1, name


def test_a_shared_head_is_not_trained() -> None:
    model = DraftModel(KINDS["eagle3"], torch.randn(N_VOCAB, 32), share_head=True, dtype=torch.float32)
    model(make_batch([make_sample(12, 1)], draft_ids(), 2, CPU)).loss.backward()
    assert model.head.grad is None
    assert model.fc.grad is not None


@pytest.mark.parametrize("kind", ["eagle31", "eagle3", "eagle1", "both norms", "three layers, eagle3"])
def test_left_out_rows_are_those_that_thinned_steps_leave_out(kind: str) -> None:
    """Tests that a run over all rows and a run over only the counted rows leave out the same rows."""
    model = random_model(KINDS[kind])
    n_aux = KINDS[kind].n_aux
    samples = [make_sample(26, 1, [0] * 5 + [1] * 21, n_aux=n_aux), make_sample(17, 2, n_aux=n_aux)]
    whole = make_batch(samples, draft_ids(), N_STEPS, CPU)
    seen: list[set[int]] = [set() for _ in range(N_STEPS)]
    for offset in range(3):
        thin = make_batch(samples, draft_ids(), N_STEPS, CPU, every=3, offset=offset)
        assert thin.run is not None and len(thin.run.later) == 16 and len(set(thin.run.later.tolist())) <= 13
        assert thin.counted[0].tolist() == whole.counted[0].tolist()
        same = replace(whole, counted=thin.counted, places=thin.counted, weights=thin.weights)
        results = [outcome(model, batch) for batch in (thin, same)]
        for found, expected in zip(*results, strict=True):
            # EAGLE-1's chains have no norms, so their gradients are of the order of hundreds.
            atol = 1e-3 if kind == "eagle1" else 1e-5
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=atol)
        assert float(results[0][1]) == pytest.approx(float(model(whole).weight), rel=1e-5)
        for k, rows in enumerate(thin.counted):
            assert not (k and seen[k] & set(rows.tolist()))
            seen[k] |= set(rows.tolist())
    assert seen == [set(rows.tolist()) for rows in whole.counted], "all parts together must have all rows"


@pytest.mark.parametrize("chains", ["some", "none"])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_rows_without_loss_are_not_run_and_change_nothing(n_steps: int, chains: str) -> None:
    """Tests that rows without loss are not computed and change nothing: with answers in the middle and at the
    end, with texts without an answer, and with an answer that is too short for a chain.
    """
    model = random_model(KINDS["eagle31"])
    turns = ([0, 0, 1, 1, 1, 1, 1, 0, 0, 2, 2, 2], [0] * 7, [0, 0, 0, 1, 1], [0, 1, 1, 1, 1])
    if chains == "none":
        turns = ([0, 0, 0, 1, 1], [0, 0, 1, 1])
    samples = [make_sample(len(t), seed, t) for seed, t in enumerate(turns)]
    results = []
    for every in (None, 1):
        batch = make_batch(samples, draft_ids(), n_steps, CPU, every)
        results.append([*outcome(model, batch), torch.cat(model.drafts(batch))])
    assert batch.run is not None and len(batch.run.first) == 32 and len(batch.tokens) == 64
    rows = [1, 2, 3, 4, 8, 9, 21, 24, 25, 26] if chains == "some" else [2, 6]
    assert batch.run.first[: len(rows)].tolist() == batch.counted[0].tolist() == rows
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_thinning_that_would_leave_nothing_leaves_all() -> None:
    batch = make_batch([make_sample(5, 1)], draft_ids(), 3, CPU, every=4, offset=3)
    assert batch.run is not None
    assert batch.run.later[:2].tolist() == batch.counted[1].tolist() == [0, 1]


# Attention


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


# Evaluation


class Scripted(DraftModel):
    """A model with scripted accepted drafts: `script[row]` is the number of accepted drafts in the chain from
    anchor `row`. After the first rejected draft all deeper drafts are right, but must not count.
    """

    script: dict[int, int]

    def drafts(self, batch: Batch) -> list[torch.Tensor]:
        return [
            torch.tensor([k != self.script[int(row)] for row in rows], dtype=torch.bool)
            for k, rows in enumerate(batch.counted)
        ]


def test_a_round_starts_after_the_accepted_tokens_of_the_previous_one() -> None:
    model = Scripted(SPEC, torch.randn(N_VOCAB, 32), share_head=False, dtype=torch.float32)
    # The entries of rows at which no round starts must not matter. Near the end of the sample, the last two
    # rows have no chain of three drafts, and the last row has no chain of two drafts.
    model.script = {0: 1, 1: 3, 2: 0, 3: 3, 4: 3, 5: 0, 6: 0, 7: 1}
    source = Samples([make_sample(10, seed=1)])
    found = evaluate(TrainingTimeTest(model, draft_ids()), source, [0], depth=3, n_tokens=64)
    # Rounds start at row 0 (one accepted draft), row 2 (no accepted draft), row 3 (three accepted drafts),
    # and row 7 (only one draft is possible).
    assert found.n_rounds == 4
    assert found.rates == pytest.approx((3 / 4, 1 / 2, 1 / 1))
    assert found.length == pytest.approx(1 + 5 / 4)


def test_an_unreached_depth_gets_the_rate_of_the_previous_one() -> None:
    """Tests that an unreached depth gets the rate of the previous depth. The planner starts from the reported
    rates, and an untried depth must not look useless.
    """
    model = Scripted(SPEC, torch.randn(N_VOCAB, 32), share_head=False, dtype=torch.float32)
    model.script = {0: 1, 1: 0, 2: 1, 3: 0, 4: 0, 5: 0, 6: 0, 7: 0}
    source = Samples([make_sample(10, seed=1)])
    found = evaluate(TrainingTimeTest(model, draft_ids()), source, [0], depth=4, n_tokens=64)
    # Rounds start at rows 0 and 2 with one accepted draft each. Further rounds start at rows 4, 5, 6 and 7
    # without accepted drafts.
    assert found.rates == pytest.approx((2 / 6, 0.0, 0.0, 0.0))
    model.script = dict.fromkeys(range(8), 9)
    source = Samples([make_sample(5, seed=1)])
    found = evaluate(TrainingTimeTest(model, draft_ids()), source, [0], depth=4, n_tokens=64)
    assert found.rates == (1.0,) * 4


def test_each_answer_is_evaluated_separately() -> None:
    model = Scripted(SPEC, torch.randn(N_VOCAB, 32), share_head=False, dtype=torch.float32)
    # The batch has two samples, each with two answers (tokens 2..5 and 8..11). So rows 1..3 and 7..9 count.
    turns = [0, 0, 1, 1, 1, 1, 0, 0, 2, 2, 2, 2]
    script = {1: 2, 2: 0, 3: 0, 7: 0, 8: 0, 9: 1}
    model.script = {row + 12 * b: n for b in (0, 1) for row, n in script.items()}
    source = Samples([make_sample(12, seed=seed, turns=turns) for seed in (1, 2)])
    found = evaluate(TrainingTimeTest(model, draft_ids()), source, [0, 1], depth=2, n_tokens=64)
    # In each sample, rounds start at rows 1, 7, 8 and 9. The round at row 1 covers the whole first answer.
    assert found.n_rounds == 2 * 4
    assert found.length == pytest.approx(1 + 3 / 4)


def test_without_rounds_the_length_is_one() -> None:
    model = DraftModel(SPEC, torch.randn(N_VOCAB, 32), share_head=False, dtype=torch.float32)
    silent = Samples([make_sample(9, seed=1, turns=np.zeros(9, int).tolist())])
    found = evaluate(TrainingTimeTest(model, draft_ids()), silent, [0], depth=2, n_tokens=64)
    assert (found.length, found.rates, found.n_rounds) == (1.0, (0.0, 0.0), 0)
