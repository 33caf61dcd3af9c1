# SPDX-License-Identifier: MIT
"""`Trainer`: runs steps until the budget is spent, with evaluations, saved states and exact resuming.

A step depends only on the seed, the data and the number of the step, so a resumed run gives the same curve as
an uninterrupted run. With `minutes` the learning rate follows the clock, so the curves are only nearly the
same. The loop prints nothing, and reports to a `Reporter`.
"""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from eaglecpp.errors import MismatchError, TrainError
from eaglecpp.files import replaced
from eaglecpp.train.fit.batch import epoch_steps, micro_batches
from eaglecpp.train.fit.evaluate import Acceptance, TrainingTimeTest, evaluate
from eaglecpp.train.fit.model import Sums
from eaglecpp.train.fit.stored import StoredWeights
from eaglecpp.train.samples import FeatureSource, Sample

_BETAS = (0.9, 0.95)
_WEIGHT_DECAY = 0.01


def default_lr(n_embd: int) -> float:
    """Returns the default learning rate for a width of the model: 2e-3 up to a width of 512, and less for
    larger widths (2.5e-4 at 4096).
    """
    return 2e-3 * 512 / max(n_embd, 512)


def lr_factor(progress: float, warmup: float) -> float:
    """Returns the factor on the full learning rate at `progress` of the run (0..1). The factor rises linearly
    during warm-up, and then falls along half a cosine to a hundredth.
    """
    if progress < warmup:
        return max(progress / warmup, 0.01)
    rest = min((progress - warmup) / max(1.0 - warmup, 1e-9), 1.0)
    return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * rest))


class Optimizer:
    """AdamW on fp32 weights, without decay of norm weights. `step(scale, lr)` applies accumulated gradients.
    A step with a non-finite gradient does not change the weights, and is counted. The data of such a step are
    used again in the next epoch.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.n_skipped = 0
        groups = [
            {"params": [p for p in self.parameters if p.ndim > 1], "weight_decay": _WEIGHT_DECAY},
            {"params": [p for p in self.parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=0.0, betas=_BETAS, fused=True)

    def step(self, scale: Tensor, lr: float) -> float:
        """Multiplies the gradients by `scale`, clips them to a norm of 1, updates the weights and clears the
        gradients. Returns the gradients' norm before clipping. If this norm is NaN or Inf, the weights were
        not updated.
        """
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients) * scale
        value = float(norm)
        if not math.isfinite(value):
            self.n_skipped += 1
        else:
            torch._foreach_mul_(gradients, float(scale) * min(1.0, 1.0 / (value + 1e-6)))
            for group in self.adam.param_groups:
                group["lr"] = lr
            self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return value

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimizer's state, which a resumed run needs."""
        return {"adam": self.adam.state_dict(), "n_skipped": self.n_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the optimizer from a result of `state_dict`."""
        self.adam.load_state_dict(state["adam"])
        self.n_skipped = int(state["n_skipped"])


_FORMAT = 2


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes a run's state atomically, so that after a crash the file still has the previous state."""
    with replaced(path) as temporary, temporary.open("wb") as file:
        torch.save({"format": _FORMAT, **state}, file)


def load_state(path: Path) -> dict[str, Any]:
    """Loads a run's state to the CPU. Raises TrainError for a missing or invalid file."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise TrainError(f"{path}: there is no training to resume; remove --resume to start it") from None
    except (OSError, RuntimeError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise TrainError(f"{path}: the state of the training cannot be read: {error}") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise TrainError(
            f"{path}: expected the state of a training in format {_FORMAT}, found another format; start "
            "again in another folder, or delete this one"
        )
    return state


def check_same_run(path: Path, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises MismatchError, with all differences, if a state belongs to another run.

    Facts that the stored run lacks were added by a later version of eaglecpp, and are not compared.
    """
    before, after = dict(_single(stored)), dict(_single(now))
    wrong = [
        f"{key}: the stored run has {value!r}, this run has {after.get(key)!r}"
        for key, value in sorted(before.items())
        if value != after.get(key)
    ]
    if wrong:
        raise MismatchError(
            f"{path}: --resume only continues the same run, but {'; '.join(wrong)}. Repeat the command of "
            "the first run (steps, epochs and minutes may differ), or train into another folder"
        )


def _single(facts: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each fact as (name, value). Splits the drafter's JSON and its block into single facts."""
    for key, value in facts.items():
        inner = json.loads(value) if key == "drafter" else value
        if isinstance(inner, dict):
            yield from _single(inner, f"{of}{key}.")
        else:
            yield of + key, inner


_SAVE_SECONDS = (10.0, 300.0)
"""Seconds between saved states: first and maximum, doubling each time."""
_N_EVALUATIONS = 20
_EVALUATION_TOKENS = 8192
"""Held-out tokens of each evaluation; more would take time from training. Their samples stay in memory: 400
MB at a width of 4096.
"""

_NOISE = 0.01
"""Relative error of the length measured on so many tokens."""


@dataclass(frozen=True)
class Duration:
    """Budget of a run. The first limit that is reached ends the run. None = no limit of this kind. At least
    one limit must be set.
    """

    steps: int | None = None
    epochs: float | None = None
    minutes: float | None = None

    def progress(self, steps: int, epochs: float, seconds: float) -> float:
        """Returns the share of the budget that is spent, from 0 to 1."""
        done = (steps, epochs, seconds / 60)
        limits = (self.steps, self.epochs, self.minutes)
        both = [(d, limit) for d, limit in zip(done, limits, strict=True) if limit is not None]
        return max(d / limit if limit else 1.0 for d, limit in both)


@dataclass(frozen=True)
class Hyper:
    """Hyperparameters, which a resumed run must not change.

    n_steps: steps of training-time test; later_every: later steps use one row in `later_every`; batch_tokens:
    minimum number of tokens of an optimiser step; warmup: share of the run that is warm-up; seed: seed of the
    order of the data.
    """

    n_steps: int
    lr: float
    batch_tokens: int = 1024
    warmup: float = 0.03
    later_every: int = 1
    seed: int = 1


@dataclass(frozen=True)
class Limits:
    """Settings that a resumed run may change.

    micro_tokens: maximum number of tokens computed at once; depth: depth of evaluated chains; eval_steps:
    steps between evaluations, 0 = twenty evaluations per run; patience: number of evaluations without gain
    after which the run ends, 0 = never.
    """

    micro_tokens: int = 4096
    depth: int = 5
    eval_steps: int = 0
    patience: int = 0


class Reporter(Protocol):
    """Receives the events of a training loop."""

    def on_step(self, progress: TrainProgress, share: float, loss: float) -> None:
        """Called after each step. share: spent share of the budget; loss: nats per counted row."""

    def on_evaluation(self, step: int, acceptance: Acceptance, best: bool) -> None:
        """Called after each evaluation."""

    def stop(self) -> bool:
        """Returns True to end the run. The loop calls this between steps, and for each sample of a step."""
        ...


@dataclass
class TrainProgress:
    """State of a run, and its curve. `epoch` and `position` identify the next step."""

    step: int = 0
    epoch: int = 0
    position: int = 0
    tokens: int = 0
    epoch_tokens: int = 0
    seconds: float = 0.0
    best_length: float = 0.0
    best_step: int = -1
    since_best: int = 0
    losses: list[list[float]] = field(default_factory=list)
    evaluations: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run. reason: why the run ended: budget, patience or stopped. best: the best evaluation,
    None without held-out data.
    """

    reason: str
    progress: TrainProgress
    best: Acceptance | None
    n_skipped: int


class Trainer:
    """A training run. At the end, `model` has the last weights. `load_best` loads the weights of the best
    evaluation.
    """

    def __init__(
        self,
        method: TrainingTimeTest,
        source: FeatureSource,
        parts: tuple[Sequence[int], Sequence[int]],
        folder: Path,
        budget: Duration,
        hyper: Hyper,
        limits: Limits,
        reporter: Reporter,
        *,
        facts: dict[str, Any] | None = None,
        stored: StoredWeights | None = None,
    ) -> None:
        """Prepares a run. parts: indices of the samples to train on, and of the samples to evaluate on;
        facts: plain values that identify the run; stored: quantised weights to compute with.
        """
        self.method, self.model = method, method.model
        self.train, self.held_out = list(parts[0]), list(parts[1])
        self.budget, self.hyper, self.limits, self.reporter = budget, hyper, limits, reporter
        self.device = self.model.fc.device
        self.facts = {**(facts or {}), **asdict(hyper), "n_train": len(self.train)}
        self.last, self.best = folder / "last.pt", folder / "best.pt"
        self.optimizer = Optimizer(self.model.parameters())
        self.progress = TrainProgress()
        self._computing = contextlib.nullcontext if stored is None else stored.lent
        self._lengths = source.lengths
        self.held_out = _up_to(self.held_out, self._lengths, _EVALUATION_TOKENS)
        self.source = _Samples(source, reporter, self.held_out)
        self._train_lengths = [self._lengths[i] for i in self.train]
        self._began = self._saved = time.monotonic()
        self._save_seconds = _SAVE_SECONDS[0]

    def resume(self) -> None:
        """Loads the saved state. Raises TrainError for a missing state, MismatchError for the state of
        another run.
        """
        state = load_state(self.last)
        check_same_run(self.last, state["facts"], self.facts)
        self._load_weights(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = TrainProgress(**state["progress"])
        self._began = time.monotonic() - self.progress.seconds

    def run(self) -> Outcome:
        """Trains until the budget or the patience is spent, or the reporter stops the run. Always saves the
        state. Discards a step that the reporter interrupts.
        """
        self._began = time.monotonic() - self.progress.seconds
        if not self.last.exists():
            self._save()  # the state is saved at once, so that a run that is killed early can be resumed
        try:
            reason = self._run()
        except _Stopped:
            reason = "stopped"
        self._save()
        rows = [row for row in self.progress.evaluations if row[0] == self.progress.best_step]
        best = Acceptance(tuple(rows[-1][4:]), rows[-1][3], 0) if rows else None
        return Outcome(reason, self.progress, best, self.optimizer.n_skipped)

    def _run(self) -> str:
        """Runs training steps until there is a reason to end, and returns this reason."""
        reason, p = "budget", self.progress
        steps = self._steps()
        while self.share() < 1.0:
            if self.reporter.stop():
                return "stopped"
            self._step(next(steps))
            if self._evaluation_due():
                self._evaluate()
                if self.limits.patience and p.since_best >= self.limits.patience:
                    reason = "patience"
                    break
            if time.monotonic() - self._saved > self._save_seconds:
                self._save()
                self._save_seconds = min(2 * self._save_seconds, _SAVE_SECONDS[1])
        if self.held_out and [row[0] for row in p.evaluations[-1:]] != [p.step]:
            self._evaluate()
        return reason

    def _steps(self) -> Iterator[list[int]]:
        """Yields the samples of each remaining step, epoch after epoch."""
        p = self.progress
        while True:
            order = epoch_steps(self._train_lengths, self.hyper.batch_tokens, self.hyper.seed, p.epoch)
            yield from ([self.train[i] for i in step] for step in order[p.position :])
            p.epoch, p.position, p.epoch_tokens = p.epoch + 1, 0, 0

    def share(self) -> float:
        """Returns the share of the run's budget that is spent."""
        p = self.progress
        epochs = p.epoch + p.epoch_tokens / max(sum(self._train_lengths), 1)
        return self.budget.progress(p.step, epochs, p.seconds)

    def load_best(self) -> None:
        """Loads the weights of the best evaluation, if the run has one."""
        if self.best.exists():
            self._load_weights(load_state(self.best)["model"])

    def _step(self, indices: Sequence[int]) -> None:
        """Runs an optimiser step over these conversations."""
        hyper, p = self.hyper, self.progress
        lr = hyper.lr * lr_factor(self.share(), hyper.warmup)
        with self._computing():
            sums = self._accumulate(indices)
        loss, weight, *rest = torch.cat([sums.loss[None], sums.weight[None], sums.hits, sums.counts]).tolist()
        # The factor turns the summed gradient into the gradient of the mean loss.
        norm = self.optimizer.step(torch.tensor(1 / max(weight, 1e-9)), lr)
        n_tokens = sum(self._lengths[i] for i in indices)
        p.step, p.position = p.step + 1, p.position + 1
        p.tokens, p.epoch_tokens = p.tokens + n_tokens, p.epoch_tokens + n_tokens
        p.seconds = time.monotonic() - self._began
        loss /= max(weight, 1e-9)
        n = len(sums.hits)
        rates = tuple(h / max(c, 1) for h, c in zip(rest[:n], rest[n:], strict=True))
        p.losses.append([p.step, p.tokens, p.seconds, loss, lr, norm, *rates])
        self.reporter.on_step(p, self.share(), loss)

    def _accumulate(self, indices: Sequence[int]) -> Sums:
        """Computes the gradients of a step, one micro-batch at a time. Returns the sums of loss and
        weight.
        """
        total: Sums | None = None
        for micro in micro_batches(indices, self._lengths, self.limits.micro_tokens):
            samples = [self.source.sample(k) for k in micro]
            sums: Sums = self.model(self.method.batch(samples, self.progress.step))
            sums.loss.backward()  # type: ignore[no-untyped-call]
            sums = Sums(sums.loss.detach(), *sums[1:])
            total = sums if total is None else Sums(*(a + b for a, b in zip(total, sums, strict=True)))
        assert total is not None
        return total

    def _evaluation_due(self) -> bool:
        """Returns True if an evaluation is due: after every `eval_steps` steps, or after each twentieth of
        the budget.
        """
        if not self.held_out:
            return False
        if self.limits.eval_steps:
            return self.progress.step % self.limits.eval_steps == 0
        return math.floor(self.share() * _N_EVALUATIONS) > len(self.progress.evaluations)

    def _evaluate(self) -> None:
        p = self.progress
        depth, n_max = self.limits.depth, self.limits.micro_tokens
        with self._computing():
            acceptance = evaluate(self.method, self.source, self.held_out, depth, n_max)
        p.seconds = time.monotonic() - self._began
        p.evaluations.append([p.step, p.tokens, p.seconds, acceptance.length, *acceptance.rates])
        # The last weights were trained with the lowest learning rates. So they may be worse than the best
        # weights by up to the noise of an evaluation.
        is_last = self.share() >= 1.0
        better = acceptance.length > p.best_length * (1 - _NOISE if is_last else 1)
        p.since_best = 0 if better else p.since_best + 1
        if better:
            p.best_length, p.best_step = acceptance.length, p.step
            save_state(self.best, {"model": self._weights(), "step": p.step})
        self.reporter.on_evaluation(p.step, acceptance, better)

    def _weights(self) -> dict[str, torch.Tensor]:
        """Returns the trained weights. The frozen weights, which are the target's, are left out."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    def _load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, p in self._weights().items():
                p.copy_(weights[name])

    def _save(self) -> None:
        self._saved = time.monotonic()
        state = {"facts": self.facts, "model": self._weights(), "progress": asdict(self.progress)}
        save_state(self.last, state | {"optimizer": self.optimizer.state_dict()})


class _Stopped(KeyboardInterrupt):
    """Raised when the reporter stops the run."""


class _Samples:
    """A source whose `sample` raises _Stopped once the reporter stops the run, because most of a step's or an
    evaluation's time goes into capturing samples. Samples of evaluations are captured once and kept.
    """

    def __init__(self, source: FeatureSource, reporter: Reporter, kept: Sequence[int]) -> None:
        self.lengths = source.lengths
        self._source, self._reporter = source, reporter
        self._kept: dict[int, Sample | None] = dict.fromkeys(kept)

    def sample(self, index: int) -> Sample:
        """Returns a sample. Raises _Stopped if the reporter stops the run."""
        sample = self._kept.get(index)
        if sample is None:
            if self._reporter.stop():
                raise _Stopped
            sample = self._source.sample(index)
            if index in self._kept:
                self._kept[index] = sample
        return sample


def _up_to(indices: Sequence[int], lengths: Sequence[int], n_tokens: int) -> list[int]:
    """Returns the first samples whose tokens fit in `n_tokens`, but at least one sample."""
    taken: list[int] = []
    n = 0
    for index in indices:
        if taken and n + lengths[index] > n_tokens:
            break
        taken.append(index)
        n += lengths[index]
    return taken
