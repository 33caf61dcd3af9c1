# SPDX-License-Identifier: MIT
"""Tests the training loop (budgets, exact resumption, Ctrl+C, patience), the optimiser, and the order of the
data.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eaglecpp.convert import DraftSpec
from eaglecpp.errors import MismatchError, TrainError
from eaglecpp.train.fit.batch import epoch_steps, micro_batches
from eaglecpp.train.fit.block import model_for
from eaglecpp.train.fit.evaluate import Acceptance, TrainingTimeTest
from eaglecpp.train.fit.loop import Duration, Hyper, Limits, Optimizer, Trainer, default_lr, lr_factor
from eaglecpp.train.run import _verdict
from helpers.clock import set_clock
from helpers.training import BLOCK, N_VOCAB, SPEC, Recorder, draft_ids, make_source

HYPER = Hyper(n_steps=2, lr=0.01, batch_tokens=60)


def make_trainer(folder: Path, budget: Duration, recorder: Recorder, **changes: Any) -> Trainer:
    torch.manual_seed(1)
    spec = changes.pop("spec", SPEC)
    model = model_for(spec)(spec, torch.randn(N_VOCAB, 32), share_head=False, dtype=torch.float32)
    options: dict[str, Any] = {
        "hyper": HYPER,
        "limits": Limits(micro_tokens=64),
        "parts": (range(9), range(9, 12)),
    }
    options |= changes
    parts, hyper, limits = options.pop("parts"), options.pop("hyper"), options.pop("limits")
    method = TrainingTimeTest(model, draft_ids(), hyper.n_steps, hyper.later_every)
    return Trainer(method, make_source(12), parts, folder, budget, hyper, limits, recorder, **options)


@pytest.mark.parametrize("spec", [SPEC, BLOCK], ids=["eagle", "block"])
def test_a_resumed_run_has_the_curve_of_an_uninterrupted_one(tmp_path: Path, spec: DraftSpec) -> None:
    whole = Recorder()
    straight = make_trainer(tmp_path / "a", Duration(steps=11), whole, spec=spec)
    straight.run()

    losses: list[float] = []
    for n_steps in (4, 3, 99):
        part = Recorder(n_steps)
        trainer = make_trainer(tmp_path / "b", Duration(steps=11), part, spec=spec)
        if losses:
            trainer.resume()
        outcome = trainer.run()
        losses += part.losses
    assert outcome.reason == "budget"
    assert losses == whole.losses
    assert outcome.progress.losses[-1][3] == whole.losses[-1]
    assert len(outcome.progress.losses) == 11
    for a, b in zip(straight.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_run_can_be_resumed_from_before_its_first_step(tmp_path: Path) -> None:
    class Killed(Recorder):
        def on_step(self, progress: Any, share: float, loss: float) -> None:
            raise RuntimeError("as by kill -9")

    with pytest.raises(RuntimeError):
        make_trainer(tmp_path / "a", Duration(steps=3), Killed()).run()
    resumed, whole = Recorder(), Recorder()
    trainer = make_trainer(tmp_path / "a", Duration(steps=3), resumed)
    trainer.resume()
    trainer.run()
    make_trainer(tmp_path / "b", Duration(steps=3), whole).run()
    assert resumed.losses == whole.losses and len(whole.losses) == 3


def test_an_interrupted_step_is_not_made(tmp_path: Path) -> None:
    class Impatient(Recorder):
        """A reporter that requests a stop after the third step has begun."""

        n_asked = 0

        def stop(self) -> bool:
            self.n_asked += len(self.losses) == 2
            return self.n_asked > 2

    part, rest, whole = Impatient(), Recorder(), Recorder()
    options = {"parts": (range(12), range(0)), "limits": Limits(micro_tokens=16)}
    outcome = make_trainer(tmp_path / "a", Duration(steps=5), part, **options).run()
    assert (outcome.reason, outcome.progress.step, part.n_asked) == ("stopped", 2, 3)
    trainer = make_trainer(tmp_path / "a", Duration(steps=5), rest, **options)
    trainer.resume()
    trainer.run()
    make_trainer(tmp_path / "b", Duration(steps=5), whole, **options).run()
    assert part.losses + rest.losses == whole.losses and len(whole.losses) == 5


def test_a_state_is_only_resumed_by_the_same_run(tmp_path: Path) -> None:
    make_trainer(tmp_path, Duration(steps=2), Recorder(), facts={"data": "a"}).run()
    other = make_trainer(
        tmp_path, Duration(steps=4), Recorder(), facts={"data": "b"}, hyper=replace(HYPER, lr=0.1)
    )
    with pytest.raises(MismatchError, match=r"data: the stored run has 'a', this run has 'b'.*lr: "):
        other.resume()


def test_differing_settings_of_drafters_are_named_and_newer_ones_ignored(tmp_path: Path) -> None:
    def trainer(**drafter: Any) -> Trainer:
        return make_trainer(tmp_path, Duration(steps=2), Recorder(), facts={"drafter": json.dumps(drafter)})

    trainer(size=8, block={"rank": 64}).run()
    trainer(size=8, block={"rank": 64, "newer": 1.0}, newer=False).resume()
    wrong = r"same run, but drafter.block.rank: the stored run has 64, this run has 32\. "
    with pytest.raises(MismatchError, match=wrong):
        trainer(size=8, block={"rank": 32}).resume()


def test_a_missing_or_damaged_state_is_reported(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, Duration(steps=2), Recorder())
    with pytest.raises(TrainError, match="no training to resume"):
        trainer.resume()
    (tmp_path / "last.pt").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(TrainError, match="state of the training cannot be read"):
        trainer.resume()


def test_budgets_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = make_trainer(tmp_path / "steps", Duration(steps=3), Recorder()).run()
    assert (steps.reason, steps.progress.step) == ("budget", 3)
    epochs = make_trainer(tmp_path / "epochs", Duration(epochs=2), Recorder()).run()
    assert epochs.progress.tokens == 2 * sum(make_source(12).lengths[:9])
    looks = itertools.count()
    set_clock(monkeypatch, "eaglecpp.train.fit.loop", monotonic=lambda: 0.01 * next(looks))
    minutes = make_trainer(tmp_path / "minutes", Duration(minutes=0.5 / 60), Recorder()).run()
    assert 0.5 <= minutes.progress.seconds < 0.6
    rates = [row[4] for row in minutes.progress.losses]
    assert max(rates) > 2 * rates[-1]  # the learning rate follows the clock


def test_training_lowers_the_loss_and_raises_the_hits(tmp_path: Path) -> None:
    recorder = Recorder()
    everything = make_trainer(
        tmp_path, Duration(steps=120), recorder, parts=(range(4), range(4)), limits=Limits(eval_steps=60)
    )
    outcome = everything.run()
    assert recorder.losses[-1] < 0.75 * recorder.losses[0]
    first, last = outcome.progress.evaluations[0], outcome.progress.evaluations[-1]
    assert last[3] > first[3] > 1.0
    labels = make_source(4).samples
    in_reach = sum((draft_ids()[s.label_ids[1:-1, 0]] >= 0).sum() for s in labels) / sum(
        len(s.tokens) - 2 for s in labels
    )
    assert outcome.best is not None
    assert min(outcome.best.rates[:2]) > 0.75 * in_reach


def test_a_drafter_without_accepted_drafts_is_called_useless() -> None:
    for length, useless in ((1.004, True), (1.6, False)):
        text = _verdict(length)
        assert text.startswith(f"acceptance length: {length:.2f} on held-out texts")
        assert ("useless" in text and "--resume" in text and "--generate" in text) is useless


@pytest.mark.parametrize(
    ("lengths", "patience", "ended", "kept"),
    [
        ((2.0, 2.5, 2.49), 0, ("budget", 3), 3),
        ((2.0, 2.5, 2.4), 0, ("budget", 3), 2),
        ((2.5, 2.49, 2.6), 0, ("budget", 3), 3),
        ((1.2, 1.5, 1.4, 1.3, 1.1, 9.0), 3, ("patience", 5), 2),
    ],
)
def test_the_last_weights_are_kept_unless_others_were_clearly_better_and_patience_ends_a_run(
    lengths: tuple[float, ...],
    patience: int,
    ended: tuple[str, int],
    kept: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[torch.Tensor] = []

    def fake(method: TrainingTimeTest, *_: object) -> Acceptance:
        found.append(method.model.fc.detach().clone())
        return Acceptance((0.5,), lengths[len(found) - 1], 7)

    monkeypatch.setattr("eaglecpp.train.fit.loop.evaluate", fake)
    limits, budget = Limits(eval_steps=1, patience=patience), Duration(steps=50 if patience else 3)
    trainer = make_trainer(tmp_path, budget, Recorder(), limits=limits)
    outcome = trainer.run()
    assert (outcome.reason, outcome.progress.step) == ended
    trainer.load_best()
    assert outcome.progress.best_step == kept
    assert outcome.best is not None and outcome.best.length == lengths[kept - 1]
    assert torch.equal(trainer.model.fc, found[kept - 1])


def test_evaluations_come_at_even_shares_of_the_budget(tmp_path: Path) -> None:
    recorder = Recorder()
    make_trainer(tmp_path, Duration(steps=40), recorder).run()
    assert recorder.evaluations == list(range(2, 41, 2))


def test_a_step_with_a_nan_gradient_changes_nothing() -> None:
    p = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = Optimizer([p])
    p.grad = torch.tensor([[1.0, math.nan]] * 3)
    assert math.isnan(optimizer.step(torch.tensor(1.0), 0.1))
    assert torch.equal(p, torch.ones(3, 2)) and optimizer.n_skipped == 1 and p.grad is None


def test_gradients_are_scaled_then_clipped() -> None:
    p = torch.nn.Parameter(torch.zeros(4))
    seen: list[torch.Tensor] = []
    optimizer = Optimizer([p])
    original: Callable[[], None] = optimizer.adam.step
    optimizer.adam.step = lambda: (seen.append(p.grad.clone()), original())  # type: ignore[assignment,union-attr,return-value]
    for gradient, scale, expected in ((0.1, 0.5, 0.05), (30.0, 0.5, 0.5)):
        p.grad = torch.full((4,), gradient)
        assert optimizer.step(torch.tensor(scale), 0.1) == pytest.approx(2 * gradient * scale)
        assert seen[-1].tolist() == pytest.approx([expected] * 4, rel=1e-4)


def test_the_learning_rate_warms_up_and_falls() -> None:
    shares = [lr_factor(i / 100, 0.1) for i in range(101)]
    assert shares[10] == pytest.approx(1.0)
    assert all(a <= b for a, b in itertools.pairwise(shares[:11]))
    assert all(a >= b for a, b in itertools.pairwise(shares[10:]))
    assert shares[-1] == pytest.approx(0.01)
    assert default_lr(384) == 2e-3 and default_lr(4096) == pytest.approx(2.5e-4)


def test_each_epoch_has_every_conversation_once_in_its_own_order() -> None:
    lengths = [10 + 7 * i % 23 for i in range(40)]
    epochs = [epoch_steps(lengths, 90, seed=3, epoch=e) for e in (0, 1)]
    for steps in epochs:
        assert sorted(itertools.chain.from_iterable(steps)) == list(range(40))
        assert all(sum(lengths[i] for i in step) >= 90 for step in steps[:-1])
    assert epochs[0] != epochs[1]
    assert epochs[0] == epoch_steps(lengths, 90, seed=3, epoch=0)
    assert epochs[0] != epoch_steps(lengths, 90, seed=4, epoch=0)


def test_micro_batches_are_bounded() -> None:
    lengths = [5, 30, 7, 31, 6, 8, 29]
    micros = micro_batches(range(7), lengths, 64)
    assert sorted(itertools.chain.from_iterable(micros)) == list(range(7))
    assert all(len(micro) == 1 or sum(lengths[i] for i in micro) <= 64 for micro in micros)
    assert [len(micro) for micro in micro_batches(range(7), lengths, 1)] == [1] * 7
