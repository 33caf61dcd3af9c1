# SPDX-License-Identifier: MIT
"""One process of a small training, alone or among several (torchrun's environment): trains made-up samples of
very unequal shares of loss and saves weights and losses.
`python tests/helpers/train_rank.py OUT [TYPE | dspark]`; with TYPE: quantisation-aware; dspark: a block
drafter.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from eaglecpp.convert import parse_type
from eaglecpp.train.fit.block import model_for
from eaglecpp.train.fit.distributed import joined
from eaglecpp.train.fit.evaluate import Acceptance, TrainingTimeTest
from eaglecpp.train.fit.loop import Budget, Hyper, Limits, StepReport, Trainer
from eaglecpp.train.fit.stored import StoredWeights
from helpers.training import BLOCK, N_VOCAB, SPEC, Samples, draft_ids, make_sample

__all__ = ["Listener", "run"]


class Listener:
    """Keeps what the first process is told."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.lengths: list[float] = []

    def on_step(self, report: StepReport) -> None:
        self.losses.append(report.loss)

    def on_evaluation(self, step: int, found: Acceptance, best: bool) -> None:
        self.lengths.append(found.length)

    def stop(self) -> bool:
        return False


def run(out: Path, what: str = "") -> None:
    """Five steps; some have one conversation only, so that one of two processes has none."""
    samples = [
        make_sample(n, seed=n, turns=[0] * prompt + [1] * (n - prompt))
        for n, prompt in ((30, 25), (12, 0), (50, 10), (14, 9), (9, 0), (41, 0), (16, 14), (20, 5))
    ]
    torch.manual_seed(4)
    spec, qat = (BLOCK, "") if what == "dspark" else (SPEC, what)
    model = model_for(spec)(spec, torch.randn(N_VOCAB, 32), share_head=False, dtype=torch.float32)
    listener = Listener()
    with joined(torch.device("cpu")) as ranks:
        trainer = Trainer(
            TrainingTimeTest(model, draft_ids(), n_steps=3),
            Samples(samples),
            (range(6), range(6, 8)),
            out / "state",
            Budget(steps=5),
            Hyper(n_steps=3, lr=1e-2, batch_tokens=40),
            Limits(micro_tokens=32, eval_steps=2),
            listener,
            ranks=ranks,
            stored=StoredWeights(model, parse_type(qat)) if qat else None,
        )
        trainer.run()
        if ranks.first:
            found = {"losses": listener.losses, "lengths": listener.lengths, "weights": model.state_dict()}
            torch.save(found, out / "found.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(Path(sys.argv[1]), *sys.argv[2:])
