# SPDX-License-Identifier: MIT
"""`train`: turns a target and text files into a drafter.

The steps are: data, draft vocabulary, initial weights, hidden states, training loop, checkpoint and GGUF.
All options and data are checked before the first step. A checkpoint is written only after the first step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from eaglecpp.convert import parse_type, read_gguf
from eaglecpp.errors import TrainError, UnsupportedError
from eaglecpp.files import make_folder, replace_bytes
from eaglecpp.human import counted, human_bytes
from eaglecpp.options import ModelOptions
from eaglecpp.train.capture.cache import CachedSource, open_source
from eaglecpp.train.capture.features import TargetSource, identify
from eaglecpp.train.data.texts import token_hash
from eaglecpp.train.fit.evaluate import TrainingTimeTest
from eaglecpp.train.fit.export import check_engine, export_gguf, write_checkpoint
from eaglecpp.train.fit.loop import Duration, Hyper, Limits, Outcome, Trainer, default_lr, load_state
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.fit.process import choose_device, compute_type, computing, prepare_process
from eaglecpp.train.fit.stored import StoredWeights
from eaglecpp.train.options import TrainOptions
from eaglecpp.train.prepare import Corpus, Listener, TrainPlan, make_plan, read_data

_EPOCHS = 2.0
_FINETUNE_LR = 0.25
"""Share of the usual learning rate for an already trained drafter."""
_USELESS = 1.1
"""Tokens per round below which drafting costs more than it gains, even where it is cheap."""
_BLOCK_EVERY = 8
"""Positions of an answer per block, so that there is about one block position per token."""
_LOSS_VOCAB = 4096
"""Tokens that the loss considers in a step on a CPU."""


@dataclass(frozen=True)
class Result:
    """Result of a training. checkpoint: folder of the checkpoint; gguf: the drafter's file, or None if the
    run was stopped; error: relative error of the engine's logits, from `export.check_engine`.
    """

    checkpoint: Path
    gguf: Path | None
    outcome: Outcome
    error: float = 0.0


def train(options: TrainOptions, listener: Listener, corpus: Corpus | None = None) -> Result:
    """Trains a drafter and writes it to `options.out`. corpus: training data that replaces the data of the
    options.

    Raises DataError, MismatchError, UnsupportedError, TrainError and the errors of opening the target,
    converting and writing. If `listener.stop` ends a run, the run is saved and can be resumed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UnsupportedError("torchrun: training is a single process; run `eaglecpp train` without it")
    parse_type(options.type)
    prepare_process()
    device = choose_device(options.device)
    with computing(options.threads or 0):
        resume = _check_folder(options, listener)
        listener.on_work("reading the data", 0, 1)
        corpus = corpus or read_data(options, listener)
        listener.on_work("preparing the drafter", 0, 1)
        file = read_gguf(options.target)
        run = _Run(options, make_plan(options, file, corpus, listener.note), corpus, listener, device)
        with contextlib.closing(run.source()) as source:
            trainer = run.trainer(source)
            if resume:
                trainer.resume()
                listener.note(f"resumed at step {trainer.progress.step}")
            listener.on_work("training", 0, 1000)
            outcome = trainer.run()
            if outcome.reason == "stopped":
                return Result(options.out, None, outcome)
            listener.on_work("writing the drafter", 0, 1)
            trainer.load_best()
            return run.finished(source, trainer, outcome)


def _check_folder(options: TrainOptions, listener: Listener) -> bool:
    """Checks the output folder, and returns True if it has a training to resume. A new run never overwrites
    existing files. A run that was killed before its first save starts again.
    """
    state = options.out / "state" / "last.pt"
    resume = options.resume and state.exists()
    if options.resume and not resume:
        if not options.out.is_dir() or (options.out / "config.json").exists():
            load_state(state)  # load_state raises an error that names the missing file
        listener.note(f"{options.out}: no training was saved yet, so it starts at its first step")
    if not options.resume:
        taken = next((p for p in (state, options.out / "config.json") if p.exists()), None)
        if taken is not None:
            raise TrainError(
                f"{options.out}: already contains a training ({taken.name}); continue it with --resume, or "
                "name another folder with -o"
            )
    make_folder(options.out)
    return resume


@dataclass(frozen=True)
class _Run:
    """State shared by all parts of a run."""

    options: TrainOptions
    plan: TrainPlan
    corpus: Corpus
    listener: Listener
    device: torch.device

    def source(self) -> TargetSource | CachedSource:
        options, listener = self.options, self.listener
        n_threads = options.threads or torch.get_num_threads()
        return open_source(
            options.target,
            self.corpus.conversations,
            options.cache,
            options.cache_type or "bf16",
            layers=self.plan.spec.aux_layers,
            model=ModelOptions(n_threads=n_threads, n_gpu_layers=options.n_gpu_layers),
            on_plan=listener.note,
            on_progress=lambda n_done, n_all: listener.on_work("features", n_done, n_all),
        )

    def trainer(self, source: TargetSource | CachedSource) -> Trainer:
        options, plan, n_train = self.options, self.plan, self.corpus.n_train
        on_cpu = self.device.type == "cpu"
        dtype = compute_type(self.device)
        torch.manual_seed(options.seed)
        loss_vocab = options.loss_vocab
        if loss_vocab is None:
            loss_vocab = _LOSS_VOCAB if on_cpu else 0
        model = plan.model(dtype, loss_vocab=loss_vocab, loss=options.loss)
        if plan.start.is_fc_of_normed:
            model.read_unnormed(source.sample(0).features)
        model = model.to(self.device)
        lr = options.lr or default_lr(plan.spec.hidden_size) * (_FINETUNE_LR if options.finetune else 1.0)
        block = plan.spec.block
        n_steps, every = (3, 2) if on_cpu else (4, 1)
        if block is not None:
            n_steps, every = block.n_drafts, _BLOCK_EVERY
        hyper = Hyper(
            n_steps=options.ttt_steps or n_steps,
            lr=lr,
            batch_tokens=options.batch_tokens or (1024 if on_cpu else 8192),
            later_every=options.later_every or every,
            seed=options.seed,
        )
        limits = Limits(
            options.micro_tokens,
            depth=hyper.n_steps if block else max(Limits.depth, hyper.n_steps),
            eval_steps=options.eval_steps or 0,
            patience=options.patience or 0,
        )
        budget = Duration(options.steps, options.epochs, options.minutes)
        everything = range(len(self.corpus.conversations))
        self.listener.note(
            f"training on {self.device} in {str(dtype).removeprefix('torch.')}: {hyper.n_steps} "
            f"{'positions' if block else 'steps of training-time test'}, lr {lr:.2g}, "
            f"{counted(n_train, 'conversation')}, {len(everything) - n_train} held out"
        )
        return Trainer(
            TrainingTimeTest(model, plan.vocab.draft_ids, hyper.n_steps, hyper.later_every),
            source,
            (everything[:n_train], everything[n_train:]),
            options.out / "state",
            Duration(epochs=_EPOCHS) if budget == Duration() else budget,
            hyper,
            limits,
            self.listener,
            facts=self._facts(model),
            stored=StoredWeights(model, parse_type(options.type)) if options.qat else None,
        )

    def _facts(self, model: DraftModel) -> dict[str, Any]:
        """Returns plain values that identify the run. These values must not change when the run is
        resumed.
        """
        digest = hashlib.sha256()
        for one in self.corpus.conversations:
            digest.update(token_hash(one.tokens) + one.turns.astype("<i2").tobytes())
        return {
            "data": digest.hexdigest(),
            "vocabulary": hashlib.sha256(self.plan.vocab.ids.tobytes()).hexdigest(),
            "share_head": self.plan.share_head,
            "loss_vocab": model.loss_vocab,
            "loss": model.loss,
            # Evaluations are not comparable if only one run used quantisation-aware training, or if the types
            # differ.
            "qat": self.options.type if self.options.qat else None,
            "dtype": str(model.dtype),
            "drafter": json.dumps(asdict(self.plan.spec), sort_keys=True),
        }

    def finished(self, source: TargetSource | CachedSource, trainer: Trainer, outcome: Outcome) -> Result:
        """Writes the checkpoint, the GGUF and the record, and lets the engine check the GGUF."""
        options, plan, listener = self.options, self.plan, self.listener
        record = _record(options, trainer, outcome)
        write_checkpoint(options.out, trainer.model, plan.vocab, record, own_embedding=plan.own_embedding)
        report = export_gguf(options.out, options.target, options.type, share_head=plan.share_head)
        sample = source.sample(len(self.corpus.conversations) - 1)
        rounded = parse_type(options.type) if options.qat else None
        error = check_engine(report, options.out, options.target, trainer.model, plan.vocab, sample, rounded)
        listener.note(
            f"{report.out}: {human_bytes(report.size)}; its logits differ from the trained ones by "
            f"{100 * error:.2g} % of their spread"
        )
        record |= {"losses": outcome.progress.losses, "evaluations": outcome.progress.evaluations}
        replace_bytes(options.out / "training.json", (json.dumps(record) + "\n").encode())
        if outcome.best is not None:
            listener.note(_verdict(outcome.best.length))
        return Result(options.out, report.out, outcome, error)


def _verdict(length: float) -> str:
    text = f"acceptance length: {length:.2f} on held-out texts"
    if length >= _USELESS:
        return text
    return (
        f"{text}. This drafter is useless: the target accepts almost none of its drafts. Train it longer "
        "(the same command with --resume and more --epochs, --steps or --minutes), or start again with "
        "answers of the target itself (without --data, or with --generate)"
    )


def _record(options: TrainOptions, trainer: Trainer, outcome: Outcome) -> dict[str, Any]:
    identity, best = identify(options.target), outcome.best
    return {
        "target": {
            "name": options.target.name,
            "sha256": identity["target_sha256"],
            "quantisation": identity["quantisation"],
        },
        "layer_ids": {"boundary": list(trainer.model.spec.aux_layers)},
        "hyper": asdict(trainer.hyper),
        "loss": trainer.model.loss,
        "qat": options.type if options.qat else None,
        "steps": outcome.progress.step,
        "tokens": outcome.progress.tokens,
        "seconds": round(outcome.progress.seconds, 1),
        "skipped_steps": outcome.n_skipped,
        "finetuned_from": options.finetune or options.start_from,
        "held_out": best and {"length": best.length, "rates": list(best.rates)},
    }
