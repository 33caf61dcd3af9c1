# SPDX-License-Identifier: MIT
"""`learn`: trains a drafter on its user's conversations, and uses the new drafter only if it is better.

The training texts come from `eaglecpp.learn.records`, mixed with conversations that the target writes itself,
so that the drafter does not forget other topics. A fifth of the user's texts and a part of the target's are
held out for a test, in which the old and the new drafter, with the weights of their files, draft the same
texts. The new drafter is used if its drafts of the user's texts are better by more than chance, and its
drafts of general texts are at most one per cent worse.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from eaglecpp.convert import errors, parse_type, read_gguf
from eaglecpp.errors import DataError
from eaglecpp.files import make_private, replace_bytes
from eaglecpp.learn.records import LEAST_TEXTS, MIN_ANSWER, Learning
from eaglecpp.options import ModelOptions
from eaglecpp.store.facts import read_facts
from eaglecpp.train.capture.converse import ConverseSettings, converse
from eaglecpp.train.capture.features import TargetSource
from eaglecpp.train.data import texts as data
from eaglecpp.train.data import vocab
from eaglecpp.train.data.chats import open_tokenizer
from eaglecpp.train.fit.evaluate import TrainingTimeTest
from eaglecpp.train.fit.loop import default_lr
from eaglecpp.train.fit.process import compute_type, prepare_process
from eaglecpp.train.options import TrainOptions
from eaglecpp.train.prepare import Corpus, Listener, make_plan, open_batch
from eaglecpp.train.run import train
from eaglecpp.train.samples import TrainText

_N_GENERAL = 240
_TEST_SHARE, _TUNE_SHARE = 0.2, 0.1
"""Shares of the user's texts: for the final test, and for choosing the best training step."""
_GENERAL_TEST = 0.4
_N_CTX = 2048
_EPOCHS = 6.0
_LR = 0.1
"""Share of a new drafter's learning rate. Fine-tuning's usual quarter makes the drafter worse at first."""
_DEPTH = 5
_MAY_LOSE = 0.01
"""Largest loss of acceptance length on general texts."""
_CACHE_BYTES, _MOST_LAYERS = 4 << 30, 6
"""Maximum bytes of hidden states cached on disk for several epochs, for so many layers."""


@dataclass(frozen=True)
class Compared:
    """Acceptance lengths of two drafters on the same texts. They are measured with chains of five drafts, or
    with all positions of a block.

    gain: relative gain of the new drafter over the old one; least, most: range of the gain in nine of ten
    resamplings of the texts
    """

    before: float
    after: float
    gain: float
    least: float
    most: float
    n_texts: int


@dataclass(frozen=True)
class Learnt:
    """Result of `learn`. reason: why the new drafter is used or not used; drafter: file of the drafter that
    is now in use.
    """

    user: Compared | None
    general: Compared | None
    is_used: bool
    reason: str
    drafter: Path


def learn(
    target: Path, stock: Path, listener: Listener, *, minutes: float = 60.0, threads: int = 0, seed: int = 1
) -> Learnt:
    """Trains the drafter of `target` on the target's recorded conversations. stock: the original drafter.

    minutes: maximum time of the training steps. A stopped or killed run is resumed with the texts of its
    start. Raises DataError for too few texts, MismatchError and UnsupportedError for a drafter that cannot be
    trained, and the errors of training.
    """
    learning = Learning.of(target)
    make_private(learning.folder)
    in_use = learning.drafter(stock) or stock
    prepare_process()
    with open_tokenizer(target) as engine:
        n_vocab, n_layer, n_embd = engine.n_vocab, engine.native.n_layer, engine.native.n_embd
        n_ctx = min(_N_CTX, engine.native.n_ctx_train)
        special = vocab.special_tokens(engine)
        user = _user_texts(learning, n_ctx, n_vocab)
        options = TrainOptions(
            target, learning.work / "drafter", threads=threads or None, seed=seed, finetune=str(in_use)
        )
        own = data.load([_general(learning, options, n_ctx, listener)], engine, n_ctx).conversations
    user_train, user_test = data.split(user, _TEST_SHARE)
    user_train, tune = data.split(user_train, _TUNE_SHARE)
    general_train, general_test = data.split(own, _GENERAL_TEST)
    train_part = [*user_train, *general_train]
    corpus = Corpus([*train_part, *tune], len(train_part), vocab.count(train_part, n_vocab), special, n_layer)
    options = replace(
        options,
        loss="lk",
        lr=_LR * default_lr(n_embd),
        type=_type_of(in_use),
        qat=True,
        minutes=minutes,
        epochs=_EPOCHS,
        patience=5,
        resume=(options.out / "state" / "last.pt").exists(),
    )
    if sum(len(one.tokens) for one in corpus.conversations) * n_embd * _MOST_LAYERS <= _CACHE_BYTES:
        options = replace(options, cache=learning.work / "states", cache_type="int8")
    listener.note(
        f"learning from {len(user_train)} of your texts and {len(general_train)} texts of the target; "
        f"{len(user_test)} and {len(general_test)} texts are held out for the test"
    )
    result = train(options, listener, corpus)
    if result.gguf is None:
        return Learnt(None, None, False, "stopped; the same command continues", in_use)
    new = result.gguf
    user_gain, general_gain = (
        _compare(options, (in_use, new), part, corpus, listener) for part in (user_test, general_test)
    )
    reason = _verdict(user_gain, general_gain)
    if not reason:
        facts = {"made": time.strftime("%Y-%m-%d"), "n_texts": len(user_train), "from": in_use.name}
        facts |= {"user": asdict(user_gain), "general": asdict(general_gain)}
        learning.use(new, stock, facts)
    shutil.rmtree(learning.work, ignore_errors=True)
    learning.note_tried()
    in_use = learning.drafter(stock) or stock
    return Learnt(user_gain, general_gain, not reason, reason or "it drafts your texts better", in_use)


def _user_texts(learning: Learning, n_ctx: int, n_vocab: int) -> list[TrainText]:
    """Returns the user's recorded texts. A resumed training gets the texts that were recorded when the
    training started.
    """
    begun = learning.work / "texts.json"
    records = learning.records(n_ctx)
    names = json.loads(begun.read_text()) if begun.is_file() else list(records)
    texts = []
    for tokens, n_prompt in (records[name] for name in names if name in records):
        if len(tokens) - n_prompt < MIN_ANSWER or not 0 <= tokens.min() <= tokens.max() < n_vocab:
            continue
        turns = np.zeros(len(tokens), np.int16)
        turns[n_prompt:] = 1
        texts.append(TrainText(tokens, turns, n_prompt))
    if len(texts) < LEAST_TEXTS:
        # The folder is deleted, because a resumed training would not see later records.
        shutil.rmtree(learning.work, ignore_errors=True)
        raise DataError(
            f"{learning.answers}: expected at least {LEAST_TEXTS} answers to learn from, found {len(texts)}; "
            "chat with the model with --learn, and try again later"
        )
    if not begun.is_file():
        replace_bytes(begun, json.dumps(names).encode(), mode=0o600)
    return texts


def _general(learning: Learning, options: TrainOptions, n_ctx: int, listener: Listener) -> Path:
    """Lets the target write conversations on general topics, unless they exist already. Returns the file of
    these conversations.
    """
    out = learning.folder / "general.jsonl"
    with open_batch(options, n_ctx) as engine:
        converse(
            engine,
            out,
            _N_GENERAL,
            ConverseSettings(seed=20_000),
            lambda n_done, n_all, n: listener.on_work("general conversations", n_done, n_all),
        )
    return out


def _type_of(draft: Path) -> str:
    """Returns the tensor type of a drafter's file as an argument of `train`, or Q8_0 if `train` cannot write
    this type.
    """
    name = read_facts([draft]).file_type
    try:
        parse_type(name)
    except errors.QuantTypeError:
        return "Q8_0"
    return name


def _verdict(user: Compared, general: Compared) -> str:
    """Returns the reason why the new drafter is not used, or "" if it is used."""
    if user.least <= 0:
        return (
            f"the gain on your texts is {100 * user.gain:+.1f} %, which may be chance "
            f"({100 * user.least:+.1f} to {100 * user.most:+.1f} %)"
        )
    if general.gain < -_MAY_LOSE:
        return f"drafting of general texts got {-100 * general.gain:.1f} % worse (1 % is allowed)"
    return ""


def _compare(
    options: TrainOptions,
    drafters: Sequence[Path],
    texts: Sequence[TrainText],
    corpus: Corpus,
    listener: Listener,
) -> Compared:
    """Compares two drafters on the same texts. The comparison runs in PyTorch, like the training, but with
    the rounded weights of the drafters' files.
    """
    file, asked = read_gguf(options.target), [replace(options, finetune=str(one)) for one in drafters]
    plans = [make_plan(one, file, corpus, lambda text: None) for one in asked]
    dtype = compute_type(torch.device("cpu"))
    methods = [TrainingTimeTest(plan.model(dtype), plan.vocab.draft_ids) for plan in plans]
    block = plans[0].spec.block
    depth = _DEPTH if block is None else block.n_drafts
    model_options = ModelOptions(n_threads=options.threads or torch.get_num_threads())
    source = TargetSource(options.target, texts, plans[0].spec.aux_layers, model=model_options)
    sums = np.zeros((len(texts), len(drafters), 2))  # number of tokens, number of rounds
    try:
        for index, row in enumerate(sums):
            sample = source.sample(index)
            for method, pair in zip(methods, row, strict=True):
                accepted, reached = method.rounds([sample], depth)
                pair[:] = reached[0] + accepted.sum(), reached[0]
            listener.on_work("comparing", index + 1, len(texts))
    finally:
        source.close()
    tokens, rounds = sums[..., 0], sums[..., 1]
    before, after = (tokens.sum(0) / rounds.sum(0).clip(min=1)).tolist()
    draws = np.random.default_rng(1).integers(0, len(texts), (2000, len(texts)))
    of_draws = tokens[draws].sum(1) / rounds[draws].sum(1).clip(min=1)
    least, most = np.quantile(of_draws[:, 1] / of_draws[:, 0] - 1, [0.05, 0.95])
    return Compared(before, after, after / before - 1, float(least), float(most), len(texts))
