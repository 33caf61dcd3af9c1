# SPDX-License-Identifier: MIT
"""Compares the acceptance that an evaluation reports with acceptance that is counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eaglecpp.train.fit.batch import Batch
from eaglecpp.train.fit.evaluate import TrainingTimeTest, evaluate
from eaglecpp.train.fit.model import DraftModel
from helpers.training import N_VOCAB, SPEC, Samples, draft_ids, make_sample


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
