# SPDX-License-Identifier: MIT
"""Loads training data: turns files into `TrainText`s, and splits off the held-out part.

Chats are rendered with the target's template, and only the assistant's turns are trained on. Plain text is
cut into pieces of the context length, and all of its tokens are trained on. Recorded answers keep their
tokens. Nothing is random: the same files give the same conversations, and the held-out part depends only on
their content.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eaglecpp.engine.engine import Engine
from eaglecpp.errors import DataError, InvalidValueError, TemplateError
from eaglecpp.train.data.chats import ChatEncoder, Tokens
from eaglecpp.train.data.records import ChatRecord, DataReport, Question, Record, Recorded, Text, read_records
from eaglecpp.train.samples import TrainText

Turns = NDArray[np.int16]
MIN_TRAINED = 2
"""Minimum trained tokens of a conversation. The first token of a turn is always the target's own, and a
drafter starts with the second one, so a turn of one token has nothing to learn.
"""
_BLOCK_CHARS = 1 << 20
MAX_HELD_OUT = 200
MIN_HELD_OUT = 4
_MIN_PROMPT = 8
"""Minimum tokens before the first answer that count as a prompt; shorter prefixes are common to many texts.
"""


@dataclass(frozen=True)
class Data:
    """Loaded training data: the conversations in the order of the files, and a report with counts."""

    conversations: list[TrainText] = field(repr=False)
    report: DataReport


def load(paths: Iterable[str | os.PathLike[str]], engine: Engine, n_ctx: int) -> Data:
    """Reads files and folders; see `eaglecpp.train.data.records` for their formats.

    engine: the target, of which only tokenizer and chat template are used; `chats.open_tokenizer` opens it
            cheaply
    n_ctx:  maximum tokens of a conversation; longer chats are cut, longer texts are split

    Raises DataError for an invalid line, and if no training data is left.
    """
    loader = _Loader(engine, n_ctx)
    for record in read_records(paths, loader.report):
        loader.take(record)
    return loader.finished()


def split(conversations: Sequence[TrainText], share: float = 0.02) -> tuple[list[TrainText], list[TrainText]]:
    """Splits conversations into (train, held out). The conversations with the lowest token hashes are held
    out, so that order and file names do not matter.

    A drafter is better at a prompt that it knows, whatever the answer. So answers to the same prompt, and
    later turns, stay on one side, unless this would leave too few conversations. The held-out number is about
    `share` of all, between 4 and 200, and never more than half. Held-out conversations are in the order of
    their hashes, and answers to the same prompt stay together, so that the first n conversations are a sample
    of all files.

    With a share of 0, no conversation is held out. Raises InvalidValueError for a share outside 0 to 0.5.
    """
    if not 0 <= share <= 0.5:
        raise InvalidValueError(f"held-out share: expected 0 to 0.5, found {share}")
    n = 0
    if share:
        wanted = min(max(round(share * len(conversations)), MIN_HELD_OUT), MAX_HELD_OUT)
        n = min(wanted, len(conversations) // 2)
    hashes = [token_hash(one.tokens) for one in conversations]
    held_out: list[int] = []
    for group in sorted(_same_prompt(conversations), key=lambda group: min(hashes[i] for i in group)):
        if len(held_out) + len(group) <= n:
            held_out += sorted(group, key=lambda i: hashes[i])
    if len(held_out) < min(n, MIN_HELD_OUT):
        held_out = sorted(range(len(conversations)), key=lambda i: hashes[i])[:n]
    chosen = set(held_out)
    train = [one for index, one in enumerate(conversations) if index not in chosen]
    return train, [conversations[index] for index in held_out]


def _same_prompt(conversations: Sequence[TrainText]) -> list[list[int]]:
    """Groups the indices of conversations with the same prompt. Prompts count as the same if their tokens are
    equal, or if one continues the other. Texts without a prompt form their own groups.
    """
    prompts = []
    for index, one in enumerate(conversations):
        if one.n_prompt >= _MIN_PROMPT:
            prompts.append((np.asarray(one.tokens[: one.n_prompt], "<i4").tobytes(), index))
    groups: list[list[int]] = []
    first: bytes | None = None
    # after sorting, a prompt that continues another prompt directly follows it
    for prompt, index in sorted(prompts):
        if first is None or not prompt.startswith(first):
            first = prompt
            groups.append([])
        groups[-1].append(index)
    alone = set(range(len(conversations))).difference(index for _, index in prompts)
    return groups + [[index] for index in sorted(alone)]


def token_hash(tokens: Sequence[int] | Tokens) -> bytes:
    """Returns a hash of 16 bytes for a token list. The hash is the same on every machine."""
    return hashlib.blake2b(np.asarray(tokens, "<i4").tobytes(), digest_size=16).digest()


class _Loader:
    """Collects conversations from records. `finished` returns the collected conversations."""

    def __init__(self, engine: Engine, n_ctx: int) -> None:
        if n_ctx < 8:
            raise InvalidValueError(f"n_ctx: expected at least 8 tokens, found {n_ctx}")
        self._engine, self._n_ctx = engine, n_ctx
        self._encoder: ChatEncoder | None = None
        self._kept: list[TrainText] = []
        self._seen: set[bytes] = set()
        self._asked: set[bytes] = set()
        self.report = DataReport()
        self._refusal = ""
        self._bos = engine.vocabulary.bos_tokens

    def take(self, record: Record) -> None:
        match record:
            case ChatRecord():
                self._take_chat(record)
            case Text():
                self._take_text(record)
            case Recorded():
                self._take_recorded(record)
            case Question():
                self._drop("a prompt without an answer (--generate lets the target answer it)")

    def finished(self) -> Data:
        if not self._kept:
            reasons = "; ".join(f"{n} x {reason}" for reason, n in self.report.dropped.items()) or "nothing"
            raise DataError(f"training data: found no conversation to learn from; skipped: {reasons}")
        return Data(self._kept, self.report)

    def _take_chat(self, chat: ChatRecord) -> None:
        if self._encoder is None:
            self._encoder = ChatEncoder(self._engine)
        try:
            tokens, turns = self._encoder.encode(chat.messages, chat.tools)
        except TemplateError as error:
            self._refusal = self._refusal or f"{chat.place}: {error}"
            self._drop(f"the chat template refuses it ({self._refusal})")
            return
        if not turns.any():
            self._drop("the chat template does not show a complete answer")
        else:
            self._keep_chat(tokens, turns)

    def _take_text(self, record: Text) -> None:
        n_piece = self._n_ctx - len(self._bos)
        tokens: list[int] = []
        for block in _blocks(record.text):
            tokens += self._engine.tokenize(block, add_bos=False, special=False)
            while len(tokens) >= n_piece:
                self._keep_piece(tokens[:n_piece])
                del tokens[:n_piece]
        if tokens:
            self._keep_piece(tokens)

    def _keep_piece(self, piece: list[int]) -> None:
        turns = [0] * len(self._bos) + [1] * len(piece)
        self._keep(np.array([*self._bos, *piece], np.int32), np.array(turns, np.int16))

    def _take_recorded(self, record: Recorded) -> None:
        n_vocab, largest = self._engine.n_vocab, max(record.tokens, default=0)
        if largest >= n_vocab:
            raise DataError(
                f"{record.place}: expected token ids below {n_vocab}, found {largest}; these answers are "
                "from a model with another vocabulary"
            )
        tokens = np.array(record.tokens, np.int32)
        turns = np.zeros(len(tokens), np.int16)
        for number, (begin, end) in enumerate(record.turns, 1):
            turns[begin:end] = number
        if record.is_own:
            asked = token_hash(tokens[: record.turns[0][0]])
            if asked in self._asked:
                self._drop("questions that were already asked")
                return
            self._asked.add(asked)
        self._keep_chat(tokens, turns)

    def _keep_chat(self, tokens: Tokens, turns: Turns) -> None:
        """Adds a conversation to the data. turns: for each token the number of its assistant turn, or 0
        outside these turns.
        """
        self._keep(tokens, turns, int(np.argmax(turns > 0)))

    def _keep(self, tokens: Tokens, turns: Turns, n_prompt: int = 0) -> None:
        if len(tokens) > self._n_ctx:
            tokens, turns = tokens[: self._n_ctx], turns[: self._n_ctx]
            self.report.cut += 1
        trained = np.flatnonzero(turns)
        if trained.size < MIN_TRAINED:
            self._drop("fewer than two tokens to learn within the context")
            return
        end = int(trained[-1]) + 1  # training ignores the tokens after the last turn
        tokens, turns = tokens[:end].copy(), turns[:end].copy()
        digest = token_hash(tokens)
        if digest in self._seen:
            self._drop("duplicates")
            return
        self._seen.add(digest)
        self._kept.append(TrainText(tokens, turns, min(n_prompt, end)))
        self.report.conversations += 1
        self.report.tokens += end
        self.report.trained += trained.size

    def _drop(self, reason: str) -> None:
        self.report.dropped[reason] += 1


def _blocks(text: str) -> Iterator[str]:
    """Splits a text, if possible at line ends, into parts that are short enough for the tokenizer."""
    begin = 0
    while len(text) - begin > _BLOCK_CHARS:
        end = text.rfind("\n", begin, begin + _BLOCK_CHARS) + 1 or begin + _BLOCK_CHARS
        yield text[begin:end]
        begin = end
    yield text[begin:]
