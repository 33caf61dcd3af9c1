# SPDX-License-Identifier: MIT
"""`TargetSource`: samples that the running target computes. The target is the same GGUF for which the drafter
will draft.

Features are the hidden states that the engine passes to a drafter. Labels are the most probable next tokens
with their log-probabilities over the whole vocabulary, from the target's own logits, including its quantised
output matrix. This module stores no samples; `eaglecpp.train.capture.cache` does.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eaglecpp.engine.request import native_options
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


def identify(target: str | os.PathLike[str]) -> dict[str, Any]:
    """Computes the identity of a target. Reads the whole file, but only once per process. Raises OSError, and
    GgufError for a file that is not a model.

    target_sha256: hex digest of the file, or for a split file of the digests of its parts; target_bytes: size
    of all parts; quantisation: llama.cpp's name of the file's type, such as "Q8_0"; template_sha256: digest
    of the chat template, "" without a template
    """
    path = Path(target)
    parts = [path.with_name(name) for name in all_parts(path.name)]
    digests = [known_digest(part).removeprefix("sha256:") for part in parts]
    digest = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    facts = read_facts([path])
    template = facts.file.text("tokenizer.chat_template", "")
    return {
        "target_sha256": digest,
        "target_bytes": sum(part.stat().st_size for part in parts),
        "quantisation": facts.file_type,
        "template_sha256": hashlib.sha256(template.encode()).hexdigest() if template else "",
    }


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Lists the values of a header that differ from the expected values, as text for a message. Returns "" if
    all values match.
    """
    return "; ".join(
        f"{key}: expected {value}, found {found.get(key)}"
        for key, value in expected.items()
        if found.get(key) != value
    )


_LARGEST = 1 << 30
"""Largest target file in bytes that runs once per thread; operations of larger ones parallelise well."""
_MEMORY_SHARE = 0.5
_LEAST_EACH = 4
"""Minimum conversations per target, because each target must be loaded first."""


def samples_of(source: TargetSource, indices: Sequence[int]) -> Generator[Sample, None, None]:
    """Yields the samples of these conversations in order. Raises the errors of `source.sample`, after all
    earlier samples. A caller that stops early must close the generator.
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

        pool = ThreadPoolExecutor(n_targets)
        stack.callback(pool.shutdown, cancel_futures=True)
        waiting: deque[Future[Sample]] = deque()
        for index in indices:
            waiting.append(pool.submit(sample, index))
            if len(waiting) > 2 * n_targets:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _n_targets(source: TargetSource, n_samples: int) -> int:
    """Returns the number of target instances that run in parallel. This is one instance per thread, or a
    single instance with all threads if more instances would need too much memory or would not be faster.
    """
    n_threads = source.model.n_threads
    n_bytes = identify(source.target_path)["target_bytes"]
    on_gpu = source.model.n_gpu_layers != 0 and bool(gpus())
    if on_gpu or n_bytes > _LARGEST or n_samples < _LEAST_EACH * n_threads:
        return 1
    # The longest conversation needs memory for its logits. Its cache, features and pending samples need as
    # much again.
    n_bytes += max(source.lengths) * source.n_vocab * 8
    return n_threads if n_threads * n_bytes < _MEMORY_SHARE * free_memory() else 1


_N_TOP = 64
_LOGITS_BYTES = 64 << 20
"""Bytes of logits of one decode, in llama.cpp's output buffer."""
_BLOCK_BYTES = 1 << 20
"""Bytes of logits processed at once; fits in a core's cache."""


class Capture(NamedTuple):
    """The target's results for a token list. features: f32 [n_layers, S, n_embd], label_ids: i32 [S, n_top],
    label_logp: f32 [S, n_top]; the labels are sorted, best first.
    """

    features: NDArray[np.float32]
    label_ids: NDArray[np.int32]
    label_logp: NDArray[np.float32]


def default_layers(n_layer: int) -> list[int]:
    """Returns the boundary ids that EAGLE-3 drafters read: 2, n/2 and n-3 (SafeAILab/EAGLE: traineagle3). In
    a shallow target, in which some of these ids would be equal, returns up to three ids spread over the
    blocks.
    """
    if n_layer >= 7:
        return [2, n_layer // 2, n_layer - 3]
    last = max(n_layer - 1, min(n_layer, 3))
    return sorted({round(1 + (last - 1) * part / 2) for part in range(3)})


def top_labels(logits: NDArray[np.float32], n_top: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Returns the `n_top` most probable tokens of each row, best first, and their log-probabilities over all
    tokens. Of equally probable tokens, the lower id comes first.

    logits: f32 [S, n_vocab]. Returns i32 and f32 [S, n_top], with n_top limited to n_vocab. A row with NaN or
    +inf gives NaN.
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
    """Returns the ids of each row's best tokens, [n, n_top].

    Selecting from the whole vocabulary would take most of the time, so the function first computes a bound:
    it divides the tokens into groups, and takes the n-th best of the groups' maxima. This bound is not above
    the n-th best token, and only few tokens reach it.
    """
    n_rows, n_vocab = block.shape
    n_group = max(1, n_vocab // (8 * n_top))
    n_groups = n_vocab // n_group
    maxima = block[:, : n_groups * n_group].reshape(n_rows, n_group, n_groups).max(axis=1)
    maxima.partition(n_groups - n_top, axis=1)
    flat = np.flatnonzero(block >= maxima[:, n_groups - n_top, None])
    starts = np.searchsorted(flat, n_vocab * np.arange(n_rows + 1))
    counts = np.diff(starts)
    # A row with NaN is treated in the same way, because a comparison with NaN is false.
    if counts.min() < n_top:
        return np.argsort(-block, axis=1, kind="stable")[:, :n_top]
    columns = np.arange(counts.max())
    # Indices into `flat`, padded to equal lengths.
    places = np.minimum(starts[:-1, None] + columns, len(flat) - 1)
    values = block.reshape(-1)[flat][places]
    values[columns >= counts[:, None]] = -np.inf
    order = np.argsort(-values, axis=1, kind="stable")[:, :n_top]
    chosen: NDArray[np.intp] = flat[np.take_along_axis(places, order, axis=1)] % n_vocab
    return chosen


class TargetSource:
    """A `FeatureSource` that captures conversations one by one, each from its first token.

    lengths: number of tokens of each conversation; layers: boundary ids of the features; n_top: labels per
    row; n_embd, n_vocab: sizes of the target. Not thread-safe. `close` frees the target.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        conversations: Sequence[TrainText],
        layers: Sequence[int] | None = None,
        model: ModelOptions | None = None,
    ) -> None:
        """Loads the target. model: the target's options; n_ctx is replaced by the length of the longest
        conversation.

        Raises the errors of `Engine.open`, and MismatchError for a missing layer.
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
        """Returns another source of the same conversations, with a separate instance of the target."""
        model = replace(self.model, n_threads=n_threads, n_threads_batch=0)
        return TargetSource(self.target_path, self.conversations, self.layers, model)

    def sample(self, index: int) -> Sample:
        """Runs the target over one conversation. Raises DataError for features or logits with NaN or Inf."""
        one = self.conversations[index]
        try:
            captured = self.capture(one.tokens)
        except DataError as error:
            raise DataError(f"conversation {index}: {error}") from None
        return Sample(one.tokens, one.turns, *captured)

    def capture(self, tokens: NDArray[np.int32]) -> Capture:
        """Runs the target over i32 [S]. Raises DataError, and ContextFullError for too many tokens."""
        if self._target is None:
            raise InvalidStateError("this source is closed")
        try:
            features, logits = self._target.forward(tokens.tolist())
        finally:
            drain()
        if logits is None:
            raise EagleError("the target returned no logits")
        finite = np.isfinite(features).all(axis=2)
        if not finite.all():
            layer, row = (int(n) for n in np.argwhere(~finite)[0])
            raise DataError(
                f"token {row}: found NaN or Inf in the hidden states of layer {self.layers[layer]}. The "
                "target's weights are broken there, or the type of its cache has too small a range"
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
    drafting = DraftOptions(n_draft_max=n_rows - 1)  # the engine adds one row for the root
    options = native_options(
        path, None, replace(model, n_ctx=n_longest, n_sequences=1), drafting, Strategy.parse("off")
    )
    try:
        return Target(options, list(layers))
    finally:
        drain()
