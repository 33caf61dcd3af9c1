# SPDX-License-Identifier: MIT
"""The acceptance that an evaluation reports, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eaglecpp.train.fit.batch import Batch
from eaglecpp.train.fit.evaluate import evaluate
from eaglecpp.train.fit.model import DraftModel
from helpers.training import N_VOCAB, SPEC, Samples, draft_ids, make_sample


class Scripted(DraftModel):
    """Hits where the script says so: `script[row]` is how many depths of that anchor's chain hit, and every
    depth after a miss is a hit again, which must not count.
    """

    script: dict[int, int]

    def drafts(self, batch: Batch, n_steps: int) -> list[torch.Tensor]:
        return [
            torch.tensor([k != self.script[int(row)] for row in rows])
            for k, rows in enumerate(batch.counted[:n_steps])
        ]


def test_rates_are_conditional_and_the_length_is_joint() -> None:
    model = Scripted(SPEC, torch.randn(N_VOCAB, 32), share_head=False, dtype=torch.float32)
    # anchors 0..4; the last two are too near to the end for a chain of three, the last for one of two
    model.script = {0: 3, 1: 0, 2: 2, 3: 1, 4: 1}
    source = Samples([make_sample(7, seed=1)])
    found = evaluate(model, source, [0], draft_ids(), depth=3, n_tokens=64)
    assert found.n_rows == 5
    assert found.rates == pytest.approx((4 / 5, 2 / 3, 1 / 2))
    assert found.length == pytest.approx(1 + 4 / 5 + 2 / 4 + 1 / 3)


def test_nothing_counted_gives_a_length_of_one() -> None:
    model = DraftModel(SPEC, torch.randn(N_VOCAB, 32), share_head=False, dtype=torch.float32)
    silent = Samples([make_sample(9, seed=1, turns=np.zeros(9, int).tolist())])
    found = evaluate(model, silent, [0], draft_ids(), depth=2, n_tokens=64)
    assert (found.length, found.rates, found.n_rows) == (1.0, (0.0, 0.0), 0)
