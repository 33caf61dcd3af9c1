# SPDX-License-Identifier: MIT
"""Prepares the data of a training, and the drafter before its first step.

This module reads the data or lets the target write them, chooses the draft vocabulary, and creates the
initial weights: new weights for a target, or copies of an existing drafter's weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from eaglecpp.convert import BlockSpec, DraftCheckpoint, DraftSpec, GgufFile, open_drafter
from eaglecpp.engine.engine import Engine
from eaglecpp.errors import DataError, InvalidValueError, OutOfMemoryError
from eaglecpp.opening.fetch import local_checkpoint
from eaglecpp.options import ModelOptions
from eaglecpp.train.capture.batched import batch_options
from eaglecpp.train.capture.converse import ConverseSettings, converse
from eaglecpp.train.capture.features import default_layers
from eaglecpp.train.capture.generate import generate
from eaglecpp.train.capture.job import Written
from eaglecpp.train.data import texts as data
from eaglecpp.train.data import vocab
from eaglecpp.train.data.chats import open_tokenizer
from eaglecpp.train.data.vocab import DraftVocabulary
from eaglecpp.train.fit.block import model_for
from eaglecpp.train.fit.loop import Reporter
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.fit.spec import check_trainable, new_spec, with_layers
from eaglecpp.train.fit.weights import (
    Start,
    from_checkpoint,
    from_target,
    new_layers,
    taken_over,
    target_embedding,
    target_head,
)
from eaglecpp.train.options import BLOCK_FAMILIES, TrainOptions
from eaglecpp.train.samples import TrainText

_DRAFT_VOCAB = 32000
_N_CONVERSATIONS = 2000
_N_SEQUENCES = 32
_N_CTX = 2048


class Listener(Reporter, Protocol):
    """A `Reporter` that also receives notes and progress outside the training loop."""

    def note(self, text: str) -> None:
        """Receives a line for the user."""

    def on_work(self, what: str, n_done: int, n_all: int, detail: str = "") -> None:
        """Receives the progress of a named activity, with a detail that changes more often. The activity is
        finished when both numbers are equal. The activity "training" is reported before the first step. From
        then on, the loop calls `stop` regularly until the next activity begins.
        """


@dataclass(frozen=True)
class Corpus:
    """The training data: first the conversations to train on, then the held-out conversations."""

    conversations: list[TrainText]
    n_train: int
    counts: NDArray[np.int64]
    special: list[int]
    n_layer: int


@dataclass(frozen=True)
class TrainPlan:
    """The drafter to train: its shape, vocabulary, initial weights and embedding."""

    spec: DraftSpec
    vocab: DraftVocabulary
    start: Start
    embedding: torch.Tensor
    share_head: bool
    own_embedding: bool

    def model(self, dtype: torch.dtype, **options: Any) -> DraftModel:
        """Returns the model with the initial weights. options: arguments of `DraftModel`."""
        model = model_for(self.spec)(
            self.spec, self.embedding, share_head=self.share_head, dtype=dtype, **options
        )
        model.load_state_dict(self.start.state)
        return model


def read_data(options: TrainOptions, listener: Listener) -> Corpus:
    """Reads the conversations of all data files, or lets the target answer the prompts of these files. Raises
    DataError.
    """
    with open_tokenizer(options.target) as engine:
        n_train_ctx = engine.native.n_ctx_train
        n_ctx = min(options.n_ctx or _N_CTX, n_train_ctx)
        if (options.n_ctx or 0) > n_train_ctx:
            raise DataError(
                f"--n-ctx {options.n_ctx}: expected at most {n_train_ctx}, the target's trained length"
            )
        paths: Sequence[Path] = options.data
        n_own = options.conversations or (0 if options.data else _N_CONVERSATIONS)

        def written(what: str, write: Callable[..., Written], *args: Any) -> Path:
            """Lets the target write a file of training data, and returns the file's path."""
            out = options.out / f"{what}.jsonl"

            def on_progress(n_done: int, n_all: int, n_tokens: int) -> None:
                listener.on_work(what, n_done, n_all, f"{n_done} of {n_all}, {n_tokens} tokens written")

            with open_batch(options, n_ctx) as target:
                report = write(target, out, *args, on_progress)
            listener.note(
                f"{what}: {report.n_good} in {out.name} ({report.n_before} from earlier runs), "
                f"{report.n_tokens} tokens written now"
            )
            for reason, n in report.dropped.items():
                listener.note(f"{what}: skipped {n}: {reason}")
            return out

        if options.generate:
            paths = [written("answers", generate, options.data, options.sampling)]
        if n_own:
            settings = ConverseSettings(seed=options.seed)
            paths = [*paths, written("conversations", converse, n_own, settings)]
        read = data.load(paths, engine, n_ctx)
        for line in read.report.lines():
            listener.note(line)
        train_part, held_out = data.split(read.conversations, options.held_out)
        return Corpus(
            [*train_part, *held_out],
            len(train_part),
            vocab.count(train_part, engine.n_vocab),
            vocab.special_tokens(engine),
            engine.native.n_layer,
        )


def open_batch(options: TrainOptions, n_ctx: int) -> Engine:
    """Opens the target for writing many texts at the same time. If the user did not set the number of texts,
    the available memory limits it.
    """
    model = ModelOptions(n_ctx=n_ctx, n_threads=options.threads or 0, n_gpu_layers=options.n_gpu_layers)
    n = options.sequences or _N_SEQUENCES
    while True:
        try:
            return Engine.open(options.target, strategy="off", model=batch_options(model, n))
        except OutOfMemoryError:
            if options.sequences or n == 1:
                raise
            n //= 2


def make_plan(
    options: TrainOptions, file: GgufFile, corpus: Corpus, note: Callable[[str], None]
) -> TrainPlan:
    """Plans the drafter before the first training step. note: function that is called with a description of
    the drafter. Raises the errors of reading a drafter and of choosing a vocabulary.
    """
    plan = (_tuned if options.finetune else _new)(options, file, corpus)
    spec, block = plan.spec, plan.spec.block
    if options.ttt_steps and block and not (block.causal[0] and options.ttt_steps <= block.n_drafts):
        raise InvalidValueError(
            f"--ttt-steps: expected at most {block.n_drafts}, and positions that see only earlier ones"
        )
    covered = corpus.counts[plan.vocab.ids].sum() / max(int(corpus.counts.sum()), 1)
    kind = block.kind if block else "EAGLE-1" if spec.fuses_embedding else "EAGLE-3"
    kind = "EAGLE 3.1" if spec.fc_norm and spec.norm_output else kind
    kind += f", {spec.n_layers} layers" if spec.n_layers > 1 else ""
    n_params = sum(t.numel() for name, t in plan.start.state.items() if name != "head" or not plan.share_head)
    note(
        f"drafter: {kind}, aux layers {', '.join(map(str, spec.aux_layers))}, {n_params / 1e6:.1f}M "
        "parameters; " + "; ".join(plan.start.notes)
    )
    note(
        f"draft vocabulary: {len(plan.vocab.ids)} of {plan.vocab.n_vocab} tokens, which make up "
        f"{100 * covered:.2f} % of the data"
    )
    return plan


def _new(options: TrainOptions, file: GgufFile, corpus: Corpus) -> TrainPlan:
    n_vocab = len(corpus.counts)
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(_opened(options.start_from, options)) if options.start_from else None
        layers = options.aux_layers or default_layers(corpus.n_layer)
        # Unlike all other drafters, EAGLE-1 reads the output of the last block.
        if other and not options.aux_layers and not other.spec.fuses_embedding:
            layers = other.spec.aux_layers
        family, block = options.family or "eagle31", None
        if family in BLOCK_FAMILIES:
            theirs = other and other.spec.block
            block = BlockSpec(
                options.block_size or (theirs.size if theirs else 8),
                anchor_first=family != "dflash2",
                mask_token=theirs.mask_token if theirs else _mask_token(corpus),
                causal=(options.causal_block,),
            )
        spec = new_spec(file, n_vocab, corpus.n_layer, layers, family, block)
        share_head = options.share_head or family in ("eagle1", "dflash2")
        size = n_vocab if share_head else options.draft_vocab or min(_DRAFT_VOCAB, n_vocab)
        chosen = vocab.choose(corpus.counts, size, corpus.special)
        if other and not (share_head or options.draft_vocab):
            chosen = DraftVocabulary(_ids_of(other), n_vocab)
        spec = with_layers(spec, options.draft_layers or (2 if spec.block else 1))
        spec = replace(spec, draft_vocab_size=len(chosen.ids))
        start = from_target(file, spec, chosen.ids, options.seed)
        if other:
            has_rows = not share_head and np.array_equal(chosen.ids, _ids_of(other))
            start = taken_over(start, spec, other, str(options.start_from), has_rows=has_rows)
    return TrainPlan(spec, chosen, start, target_embedding(file), share_head, own_embedding=False)


def _ids_of(draft: DraftCheckpoint) -> NDArray[np.int64]:
    """Returns the target id of each token in a drafter's draft vocabulary."""
    return np.arange(draft.spec.draft_vocab_size, dtype=np.int64) if draft.ids is None else draft.ids


@contextlib.contextmanager
def _opened(reference: str, options: TrainOptions) -> Iterator[DraftCheckpoint]:
    # With --start-from, --aux-layers applies to the new drafter. This drafter is an existing one.
    layers = options.aux_layers if options.finetune else None
    with local_checkpoint(reference) as (path, _):
        draft = open_drafter(path, options.target, aux_layers=layers or None)
        check_trainable(draft, reference)
        yield draft


def _mask_token(corpus: Corpus) -> int:
    """Returns the token that stands for an unknown token. This is the rarest token, preferably a control
    token.
    """
    return min(corpus.special or range(len(corpus.counts)), key=lambda token: (corpus.counts[token], -token))


def _tuned(options: TrainOptions, file: GgufFile, corpus: Corpus) -> TrainPlan:
    """Plans further training of an existing drafter, which keeps its switches, vocabulary and layers."""
    with _opened(str(options.finetune), options) as draft:
        state = from_checkpoint(draft)
        table = draft.sources.get("embed_tokens.weight")
        own = None if table is None else torch.from_numpy(np.array(table.read(), np.float32))
    ids, embedding = _ids_of(draft), target_embedding(file) if own is None else own
    share_head = "head" not in state
    if share_head:
        state["head"] = target_head(file)[torch.from_numpy(ids)]
    notes = [f"started from {options.finetune} ({draft.family})"]
    spec = draft.spec
    if options.draft_layers:
        spec = with_layers(spec, options.draft_layers)
        state |= new_layers(file, spec, range(draft.spec.n_layers, spec.n_layers), options.seed)
        if spec.n_layers > draft.spec.n_layers:
            notes.append(f"{spec.n_layers - draft.spec.n_layers} new layers")
    vocabulary = DraftVocabulary(ids, len(corpus.counts))
    return TrainPlan(spec, vocabulary, Start(state, tuple(notes)), embedding, share_head, own is not None)
