# SPDX-License-Identifier: MIT
"""`train`: from a target and files of text to a drafter, in the order in which it happens.

Data, draft vocabulary, first weights, features, the loop, then the checkpoint and the GGUF. Everything is
checked before the first step; the folder gets its checkpoint only when there is something to put there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from eaglecpp.convert import DraftCheckpoint, DraftSpec, GgufFile, open_drafter, parse_type, read_gguf
from eaglecpp.engine import Engine
from eaglecpp.errors import DataError, TrainError
from eaglecpp.options import ModelOptions, SamplingOptions
from eaglecpp.train import data, vocab
from eaglecpp.train.cache import CachedSource, CacheOptions, open_source
from eaglecpp.train.chats import open_tokenizer
from eaglecpp.train.data import TrainOn
from eaglecpp.train.distributed import Ranks, joined
from eaglecpp.train.evaluate import Acceptance
from eaglecpp.train.export import Vocab, check_engine, export_gguf, write_checkpoint
from eaglecpp.train.features import TargetSource, default_layers
from eaglecpp.train.generate import generate
from eaglecpp.train.identity import identify
from eaglecpp.train.loop import Budget, Hyper, Limits, Outcome, Reporter, Trainer
from eaglecpp.train.model import DraftModel
from eaglecpp.train.optim import default_lr
from eaglecpp.train.plot import plot
from eaglecpp.train.process import avoid_broken_amx, choose_device, compute_type, set_threads
from eaglecpp.train.samples import Conversation
from eaglecpp.train.spec import check_trainable, new_spec, with_vocab
from eaglecpp.train.weights import Start, from_checkpoint, from_target, target_embedding

__all__ = ["Listener", "Result", "TrainOptions", "train"]

_DRAFT_VOCAB = 32000
_N_CTX = 2048
_FINETUNE_LR = 0.25
"""Share of the usual learning rate for a drafter that is trained already."""


@dataclass(frozen=True)
class TrainOptions:
    """What `eaglecpp train` was asked for; fields as the options of the command. 0 or None: choose."""

    target: Path
    data: tuple[Path, ...]
    out: Path
    generate: bool = False
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    finetune: str | None = None
    eagle3: bool = False
    share_head: bool = False
    draft_vocab: int = 0
    aux_layers: tuple[int, ...] = ()
    n_ctx: int = 0
    train_on: TrainOn = "assistant"
    held_out: float = 0.02
    cache: CacheOptions | None = None
    budget: Budget = field(default_factory=lambda: Budget(epochs=2))
    ttt_steps: int = 0
    lr: float = 0.0
    batch_tokens: int = 4096
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 1
    limits: Limits = field(default_factory=Limits)
    resume: bool = False
    type: str = "Q8_0"
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 0
    n_gpu_layers: int = -1


@dataclass(frozen=True)
class Result:
    """checkpoint: the folder; gguf: None when the run was stopped before its end; error: of the engine's
    logits, see `export.check_engine`.
    """

    checkpoint: Path
    gguf: Path | None
    outcome: Outcome
    error: float = 0.0


class Listener(Reporter, Protocol):
    """A `Reporter` that also hears what surrounds the loop."""

    def note(self, text: str) -> None:
        """A line for the user."""

    def on_work(self, what: str, n_done: int, n_all: int) -> None:
        """Progress of a named activity before the first step; done when both numbers are equal."""


@dataclass(frozen=True)
class _Corpus:
    """What is learnt from: conversations to train on, then those held out."""

    conversations: list[Conversation]
    n_train: int
    counts: np.ndarray[tuple[int], np.dtype[np.int64]]
    special: list[int]


@dataclass(frozen=True)
class _Plan:
    """What is trained: shape, vocabulary, first weights, embedding."""

    spec: DraftSpec
    vocab: Vocab
    start: Start
    embedding: torch.Tensor
    share_head: bool
    own_embedding: bool


def train(options: TrainOptions, listener: Listener) -> Result:
    """Trains a drafter and writes it to `options.out`.

    Raises DataError, MismatchError, UnsupportedError, TrainError and what opening the target, converting and
    writing raise. A run that `listener.stop` ended is saved and can be resumed.
    """
    parse_type(options.type)
    avoid_broken_amx()
    device = choose_device(options.device)
    set_threads(options.threads)
    with joined(device) as ranks:
        quiet = listener if ranks.first else _Silent(listener)
        _check_folder(options, ranks)
        corpus = _read_data(options, quiet, ranks)
        file = read_gguf(options.target)
        plan = _plan(options, file, corpus, quiet)
        with _source(options, plan, corpus, quiet) as source:
            trainer = _trainer(options, plan, corpus, source, device, quiet, ranks)
            if options.resume:
                trainer.resume()
                quiet.note(f"resumed at step {trainer.progress.step}")
            outcome = trainer.run()
            if outcome.reason == "stopped" or not ranks.first:
                ranks.wait()
                return Result(options.out, None, outcome)
            trainer.load_best()
            result = _finish(options, plan, corpus, source, trainer, outcome, quiet)
            ranks.wait()
            return result


def _check_folder(options: TrainOptions, ranks: Ranks) -> None:
    """Nothing that is there already is overwritten by a new run."""
    state = options.out / "state" / "last.pt"
    if ranks.first and not options.resume:
        taken = next((p for p in (state, options.out / "config.json") if p.exists()), None)
        if taken is not None:
            raise TrainError(
                f"{options.out}: holds a training already ({taken.name}); continue it with --resume, or name "
                "another folder with -o"
            )
    options.out.mkdir(parents=True, exist_ok=True)
    ranks.wait()


def _read_data(options: TrainOptions, listener: Listener, ranks: Ranks) -> _Corpus:
    paths: Sequence[Path] = options.data
    if options.generate:
        paths = [_answers(options, listener, ranks)]
    with open_tokenizer(options.target) as engine:
        n_train_ctx = engine.native.n_ctx_train
        n_ctx = min(options.n_ctx or _N_CTX, n_train_ctx)
        if options.n_ctx > n_train_ctx:
            raise DataError(
                f"--n-ctx {options.n_ctx}: the target was trained for {n_train_ctx} tokens; give that or less"
            )
        read = data.load(paths, engine, n_ctx, options.train_on)
        for line in read.report.lines():
            listener.note(line)
        train_part, held_out = data.split(read.conversations, options.held_out)
        return _Corpus(
            [*train_part, *held_out],
            len(train_part),
            vocab.count(train_part, engine.n_vocab),
            vocab.special_tokens(engine),
        )


def _answers(options: TrainOptions, listener: Listener, ranks: Ranks) -> Path:
    """The file of the target's own answers, written by the first process."""
    out = options.out / "answers.jsonl"
    if ranks.first:
        n_ctx = options.n_ctx or _N_CTX
        model = ModelOptions(n_ctx=n_ctx, n_threads=options.threads, n_gpu_layers=options.n_gpu_layers)
        with Engine(options.target, strategy="off", model=model) as engine:
            report = generate(
                options.data,
                engine,
                out,
                options.sampling,
                lambda n_done, n_all, _: listener.on_work("answers", n_done, n_all),
            )
        listener.note(
            f"answers: {report.n_answers} in {out.name}, {report.n_before} from earlier runs, "
            f"{report.n_tokens} tokens written now"
        )
    ranks.wait()
    return out


def _plan(options: TrainOptions, file: GgufFile, corpus: _Corpus, listener: Listener) -> _Plan:
    plan = (_tuned if options.finetune else _new)(options, file, corpus)
    covered = corpus.counts[plan.vocab.ids].sum() / max(corpus.counts.sum(), 1)
    kind = "EAGLE 3.1" if plan.spec.fc_norm and plan.spec.norm_output else "EAGLE-3"
    n_params = sum(t.numel() for name, t in plan.start.state.items() if name != "head" or not plan.share_head)
    listener.note(
        f"drafter: {kind}, layers {', '.join(map(str, plan.spec.aux_layers))}, {n_params / 1e6:.1f}M "
        "parameters; " + "; ".join(plan.start.notes)
    )
    listener.note(
        f"draft vocabulary: {len(plan.vocab.ids)} of {plan.vocab.n_vocab} tokens, {100 * covered:.2f} % of "
        "those said"
    )
    return plan


def _new(options: TrainOptions, file: GgufFile, corpus: _Corpus) -> _Plan:
    n_vocab, n_layer = len(corpus.counts), _n_layer(options.target)
    layers = options.aux_layers or default_layers(n_layer)
    spec = new_spec(file, n_vocab, n_layer, layers, eagle3=options.eagle3)
    size = n_vocab if options.share_head else options.draft_vocab or min(_DRAFT_VOCAB, n_vocab)
    chosen = vocab.choose(corpus.counts, size, corpus.special)
    spec = with_vocab(spec, len(chosen.ids))
    start = from_target(file, spec, chosen.ids, options.seed)
    return _Plan(
        spec,
        Vocab(chosen.ids, n_vocab),
        start,
        target_embedding(file),
        options.share_head,
        own_embedding=False,
    )


def _tuned(options: TrainOptions, file: GgufFile, corpus: _Corpus) -> _Plan:
    """An existing drafter: its own switches, layers and vocabulary."""
    draft: DraftCheckpoint = open_drafter(
        str(options.finetune), options.target, aux_layers=options.aux_layers or None
    )
    check_trainable(draft)
    n_vocab = len(corpus.counts)
    ids = np.arange(draft.spec.draft_vocab_size, dtype=np.int64) if draft.ids is None else draft.ids
    state = from_checkpoint(draft)
    own = "embed_tokens.weight" in draft.sources
    if own:
        embedding = torch.from_numpy(np.array(draft.sources["embed_tokens.weight"].read(), np.float32))
    else:
        embedding = target_embedding(file)
    share_head = "head" not in state
    if share_head:
        state["head"] = from_target(file, draft.spec, ids, options.seed).state["head"]
    start = Start(state, (f"started from {options.finetune} ({draft.family})",))
    return _Plan(draft.spec, Vocab(ids, n_vocab), start, embedding, share_head, own)


def _n_layer(target: Path) -> int:
    with open_tokenizer(target) as engine:
        return engine.native.n_layer


@contextlib.contextmanager
def _source(
    options: TrainOptions, plan: _Plan, corpus: _Corpus, listener: Listener
) -> Iterator[TargetSource | CachedSource]:
    model = ModelOptions(
        n_threads=options.threads or torch.get_num_threads(), n_gpu_layers=options.n_gpu_layers
    )
    source = open_source(
        options.target,
        corpus.conversations,
        options.cache,
        layers=plan.spec.aux_layers,
        model=model,
        on_plan=lambda cache: listener.note(str(cache)),
        on_progress=lambda n_done, n_all: listener.on_work("features", n_done, n_all),
    )
    try:
        yield source
    finally:
        source.close()


def _trainer(
    options: TrainOptions,
    plan: _Plan,
    corpus: _Corpus,
    source: TargetSource | CachedSource,
    device: torch.device,
    listener: Listener,
    ranks: Ranks,
) -> Trainer:
    dtype = compute_type(device, options.dtype)
    torch.manual_seed(options.seed)
    model = DraftModel(plan.spec, plan.embedding, share_head=plan.share_head, dtype=dtype)
    model.load_state_dict(plan.start.state)
    model.to(device)
    lr = options.lr or default_lr(plan.spec.hidden_size) * (_FINETUNE_LR if options.finetune else 1.0)
    hyper = Hyper(
        n_steps=options.ttt_steps or (3 if device.type == "cpu" else 4),
        lr=lr,
        batch_tokens=options.batch_tokens,
        weight_decay=options.weight_decay,
        clip=options.clip,
        seed=options.seed,
    )
    limits = replace(options.limits, depth=max(options.limits.depth, hyper.n_steps))
    listener.note(
        f"training on {device} in {str(dtype).removeprefix('torch.')}: {hyper.n_steps} steps of "
        f"training-time test, lr {lr:.2g}, {corpus.n_train} conversations, "
        f"{len(corpus.conversations) - corpus.n_train} held out"
    )
    draft_ids = np.full(plan.vocab.n_vocab, -1, np.int64)
    draft_ids[plan.vocab.ids] = np.arange(len(plan.vocab.ids))
    everything = range(len(corpus.conversations))
    return Trainer(
        model,
        source,
        (everything[: corpus.n_train], everything[corpus.n_train :]),
        draft_ids,
        options.out / "state",
        options.budget,
        hyper,
        limits,
        listener,
        facts=_facts(plan, corpus, dtype),
        ranks=ranks,
    )


def _facts(plan: _Plan, corpus: _Corpus, dtype: torch.dtype) -> dict[str, Any]:
    """What must be the same when a run is resumed, as plain values."""
    digest = hashlib.sha256()
    for one in corpus.conversations:
        digest.update(data.token_hash(one.tokens) + one.turns.astype("<i2").tobytes())
    shape = asdict(plan.spec)
    shape["aux_layers"] = list(shape["aux_layers"])
    shape["sliding_layers"] = list(shape["sliding_layers"])
    return {
        "data": digest.hexdigest(),
        "vocabulary": hashlib.sha256(plan.vocab.ids.tobytes()).hexdigest(),
        "share_head": plan.share_head,
        "dtype": str(dtype),
        "drafter": json.dumps(shape, sort_keys=True),
    }


def _finish(
    options: TrainOptions,
    plan: _Plan,
    corpus: _Corpus,
    source: TargetSource | CachedSource,
    trainer: Trainer,
    outcome: Outcome,
    listener: Listener,
) -> Result:
    """Checkpoint, GGUF, proof, picture, record."""
    record = _record(options, trainer, outcome)
    write_checkpoint(options.out, trainer.model, plan.vocab, record, own_embedding=plan.own_embedding)
    report = export_gguf(options.out, options.target, options.type, share_head=plan.share_head)
    sample = source.sample(len(corpus.conversations) - 1)
    error = check_engine(report, options.out, options.target, trainer.model, plan.vocab, sample)
    listener.note(
        f"{report.out}: {report.size / 1e6:.1f} MB; logits as trained to {100 * error:.2g} % of their spread"
    )
    history = {"losses": outcome.progress.losses, "evaluations": outcome.progress.evaluations}
    (options.out / "training.json").write_text(json.dumps(record | history) + "\n", encoding="utf-8")
    try:
        if outcome.progress.losses:
            plot(outcome.progress, options.out / "training.png", options.target.name)
    except ImportError:
        listener.note(
            "training.png was not drawn: matplotlib is not installed (pip install 'eaglecpp[train]')"
        )
    return Result(options.out, report.out, outcome, error)


def _record(options: TrainOptions, trainer: Trainer, outcome: Outcome) -> dict[str, Any]:
    identity = identify(options.target)
    best: Acceptance | None = outcome.best
    return {
        "target": {
            "name": options.target.name,
            "sha256": identity.target_sha256,
            "quantisation": identity.quantisation,
        },
        "layer_ids": {"boundary": list(trainer.model.spec.aux_layers)},
        "hyper": asdict(trainer.hyper),
        "steps": outcome.progress.step,
        "tokens": outcome.progress.tokens,
        "seconds": round(outcome.progress.seconds, 1),
        "skipped_steps": outcome.n_skipped,
        "finetuned_from": options.finetune,
        "held_out": None if best is None else {"length": best.length, "rates": list(best.rates)},
    }


class _Silent:
    """The listener of every process but the first."""

    def __init__(self, listener: Listener) -> None:
        self.stop: Callable[[], bool] = listener.stop

    def note(self, text: str) -> None:
        pass

    def on_work(self, what: str, n_done: int, n_all: int) -> None:
        pass

    def on_step(self, report: Any) -> None:
        pass

    def on_evaluation(self, step: int, found: Acceptance, best: bool) -> None:
        pass
