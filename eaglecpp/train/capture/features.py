# SPDX-License-Identifier: MIT
"""`TargetSource`: samples straight from the running target, the same GGUF that the drafter will serve.

Features are the residual streams as the engine hands them to a drafter; labels are the most probable next
tokens with their log-probabilities under the whole vocabulary, taken from the target's own logits, quantised
output matrix included. Nothing is stored; `eaglecpp.train.capture.cache` does that.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eaglecpp.engine.request import engine_options
from eaglecpp.errors import DataError, EagleError, InvalidStateError
from eaglecpp.log import drain
from eaglecpp.lowlevel import Target, gpus
from eaglecpp.opening.context import free_memory
from eaglecpp.opening.find import find_target
from eaglecpp.options import DraftOptions, ModelOptions, Strategy
from eaglecpp.references import all_parts
from eaglecpp.store.content import known_digest
from eaglecpp.store.facts import read_facts
from eaglecpp.train.samples import Sample, TrainText


@dataclass(frozen=True)
class TargetIdentity:
    """sha256: of the file, hex (of the digests of its parts for a split file); n_bytes: of all parts;
    quantisation: llama.cpp's name of its type, as "Q8_0"; template_sha256: of its chat template, "" without
    one.
    """

    target_sha256: str
    target_bytes: int
    quantisation: str
    template_sha256: str


def identify(target: str | os.PathLike[str]) -> TargetIdentity:
    """Reads the whole file, the first time a process asks. Raises OSError, and GgufError for what is no
    model.
    """
    path = Path(target)
    parts = [path.with_name(name) for name in all_parts(path.name)]
    digests = [known_digest(part).removeprefix("sha256:") for part in parts]
    digest = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    facts = read_facts([path])
    template = facts.file.text("tokenizer.chat_template", "")
    return TargetIdentity(
        digest,
        sum(part.stat().st_size for part in parts),
        facts.file_type,
        hashlib.sha256(template.encode()).hexdigest() if template else "",
    )


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The expected values that a header has otherwise, for a message; "" when it has them all."""
    return "; ".join(
        f"{key}: expected {value}, found {found.get(key)}"
        for key, value in expected.items()
        if found.get(key) != value
    )


_LARGEST = 1 << 30
"""Bytes of a target's file. Operations of larger ones are long enough to be shared."""
_MEMORY_SHARE = 0.5
_LEAST_EACH = 4
"""Conversations for each target, which has to be loaded first."""


def samples_of(source: TargetSource, indices: Sequence[int]) -> Generator[Sample, None, None]:
    """The samples of these conversations, in this order. Raises what `source.sample` raises, once those
    before have been given. To be closed by whoever does not take all of them.
    """
    n_targets = _n_targets(source, len(indices))
    if n_targets < 2:
        yield from map(source.sample, indices)
        return
    with ExitStack() as stack:
        idle: SimpleQueue[TargetSource] = SimpleQueue()
        for _ in range(n_targets):
            one = source.with_threads(1)
            stack.callback(one.close)
            idle.put(one)

        def sample(index: int) -> Sample:
            one = idle.get()
            try:
                return one.sample(index)
            finally:
                idle.put(one)

        pool = stack.enter_context(ThreadPoolExecutor(n_targets))
        waiting: deque[Future[Sample]] = deque()

        def cancel() -> None:
            for one in waiting:
                one.cancel()

        stack.callback(cancel)
        for index in indices:
            waiting.append(pool.submit(sample, index))
            if len(waiting) > 2 * n_targets:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _n_targets(source: TargetSource, n_samples: int) -> int:
    """One per thread that was asked for, or one with all of them where more would take too much memory or be
    of no use.
    """
    n_threads = source.model.n_threads
    n_bytes = identify(source.target_path).target_bytes
    on_gpu = source.model.n_gpu_layers != 0 and bool(gpus())
    if on_gpu or n_bytes > _LARGEST or n_samples < _LEAST_EACH * n_threads:
        return 1
    # the longest conversation's logits, and as much for its cache, features and what waits to be taken
    n_bytes += max(source.lengths) * source.n_vocab * 8
    return n_threads if n_threads * n_bytes < _MEMORY_SHARE * free_memory() else 1


_N_TOP = 64
_LOGITS_BYTES = 64 << 20
"""Of one decode, in llama.cpp's output buffer."""
_BLOCK_BYTES = 1 << 20
"""Of logits looked at together: what stays in a core's cache."""


class Capture(NamedTuple):
    """What the target made of a token list. features f32 [n_layers, S, n_embd], label_ids i32 [S, n_top],
    label_logp f32 [S, n_top], best first.
    """

    features: NDArray[np.float32]
    label_ids: NDArray[np.int32]
    label_logp: NDArray[np.float32]


def default_layers(n_layer: int) -> list[int]:
    """The boundary ids that EAGLE-3 drafters read, 2, n/2 and n-3 (SafeAILab/EAGLE: traineagle3); where these
    coincide, three ids spread over the blocks, or as many as there are.
    """
    if n_layer >= 7:
        return [2, n_layer // 2, n_layer - 3]
    last = max(n_layer - 1, min(n_layer, 3))
    return sorted({round(1 + (last - 1) * part / 2) for part in range(3)})


def top_labels(logits: NDArray[np.float32], n_top: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The `n_top` best tokens of each row and their log-probabilities over all tokens, best first; of equal
    ones the lower id first.

    logits: f32 [S, n_vocab]. Returns i32 and f32 [S, n_top], n_top at most n_vocab. A row with NaN or +inf
    gives NaN.
    """
    n_rows, n_vocab = logits.shape
    n_top = min(n_top, n_vocab)
    ids, logp = np.empty((n_rows, n_top), np.int32), np.empty((n_rows, n_top), np.float32)
    n_block = max(1, _BLOCK_BYTES // (4 * n_vocab))
    work = np.empty((min(n_block, n_rows), n_vocab), np.float32)
    for at in range(0, n_rows, n_block):
        block = logits[at : at + n_block]
        rows = work[: len(block)]
        chosen = _top_ids(block, n_top)
        best = block.max(axis=1, keepdims=True)
        np.subtract(block, best, out=rows)
        np.exp(rows, out=rows)
        log_sum = np.log(rows.sum(axis=1, keepdims=True, dtype=np.float64))
        values = np.take_along_axis(block, chosen, axis=1).astype(np.float64)
        ids[at : at + n_block] = chosen
        logp[at : at + n_block] = values - best - log_sum
    return ids, logp


def _top_ids(block: NDArray[np.float32], n_top: int) -> NDArray[np.intp]:
    """Ids of the best of each row, [n, n_top].

    Sorting out a whole vocabulary is most of the cost, so a bound comes first: with the tokens dealt into
    groups, the n-th best of the groups' maxima is at most the n-th best token, and few tokens reach it.
    """
    n_rows, n_vocab = block.shape
    n_group = max(1, n_vocab // (8 * n_top))
    n_groups = n_vocab // n_group
    maxima = block[:, : n_groups * n_group].reshape(n_rows, n_group, n_groups).max(axis=1)
    maxima.partition(n_groups - n_top, axis=1)
    flat = np.flatnonzero(block >= maxima[:, n_groups - n_top, None])
    starts = np.searchsorted(flat, n_vocab * np.arange(n_rows + 1))
    counts = np.diff(starts)
    if counts.min() < n_top:  # NaN reaches nothing
        return np.argsort(-block, axis=1, kind="stable")[:, :n_top]
    columns = np.arange(counts.max())
    places = np.minimum(starts[:-1, None] + columns, len(flat) - 1)  # in `flat`, rows filled up to one length
    values = block.reshape(-1)[flat][places]
    values[columns >= counts[:, None]] = -np.inf
    order = np.argsort(-values, axis=1, kind="stable")[:, :n_top]
    chosen: NDArray[np.intp] = flat[np.take_along_axis(places, order, axis=1)] % n_vocab
    return chosen


class TargetSource:
    """Captures conversations one by one, each from its first token. A `FeatureSource`.

    lengths: tokens of each conversation; layers: boundary ids of the features; n_top: labels of each row;
    n_embd, n_vocab: of the target. Used by one thread at a time. `close` frees the target.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        conversations: Sequence[TrainText],
        layers: Sequence[int] | None = None,
        model: ModelOptions | None = None,
    ) -> None:
        """Loads the target. model: how; its n_ctx is replaced by what the conversations need.

        Raises what `Engine.open` raises, MismatchError for a layer that is not there.
        """
        self.target_path: Path = find_target(target).target
        self.conversations = conversations
        self.lengths = [len(one.tokens) for one in conversations]
        self.model = model or ModelOptions()
        facts = read_facts([self.target_path])
        n_vocab = len(facts.tokens)
        self.layers = tuple(default_layers(facts.block_count or 0) if layers is None else layers)
        self.n_top = min(_N_TOP, n_vocab)
        self._target: Target | None = _open(
            self.target_path, self.layers, max(self.lengths, default=8), n_vocab, self.model
        )
        self.n_embd, self.n_vocab = self._target.n_embd, n_vocab

    def with_threads(self, n_threads: int) -> TargetSource:
        """Another one of the same conversations, with a target of its own."""
        model = replace(self.model, n_threads=n_threads, n_threads_batch=0)
        return TargetSource(self.target_path, self.conversations, self.layers, model)

    def sample(self, index: int) -> Sample:
        """Runs the target over one conversation. Raises DataError for features or logits that are no
        numbers.
        """
        one = self.conversations[index]
        try:
            captured = self.capture(one.tokens)
        except DataError as error:
            raise DataError(f"conversation {index}: {error}") from None
        return Sample(one.tokens, one.turns, *captured)

    def capture(self, tokens: NDArray[np.int32]) -> Capture:
        """What the target makes of i32 [S]. Raises DataError, and ContextFullError for too many tokens."""
        if self._target is None:
            raise InvalidStateError("this source is closed")
        try:
            features, logits = self._target.forward(tokens.tolist())
        finally:
            drain()
        if logits is None:
            raise EagleError("the target gave no logits")
        finite = np.isfinite(features).all(axis=2)
        if not finite.all():
            layer, row = (int(n) for n in np.argwhere(~finite)[0])
            raise DataError(
                f"token {row}: expected finite features, found NaN or Inf at layer id {self.layers[layer]}; "
                "the target itself is broken there, or its cache type is too narrow for it"
            )
        ids, logp = top_labels(logits, self.n_top)
        bad = np.flatnonzero(~np.isfinite(logp).all(axis=1))
        if bad.size:
            raise DataError(f"token {int(bad[0])}: expected finite logits, found NaN or Inf")
        return Capture(features, ids, logp)

    def close(self) -> None:
        """Frees the target. A second call does nothing."""
        self._target = None


def _open(path: Path, layers: Sequence[int], n_longest: int, n_vocab: int, model: ModelOptions) -> Target:
    n_rows = max(16, min(128, _LOGITS_BYTES // (4 * n_vocab)))
    drafting = DraftOptions(n_draft_max=n_rows - 1)  # rows with logits of one decode, less the root
    options = engine_options(
        path, None, replace(model, n_ctx=n_longest, n_sequences=1), drafting, Strategy.parse("off")
    )
    try:
        return Target(options, list(layers))
    finally:
        drain()
