# SPDX-License-Identifier: MIT
"""Captures of many conversations, on a CPU several at once, each by a target of its own with one thread.

The threads of one target wait for each other after every operation, and those of a small model are short.
Next to that, labels are found by one thread alone. Conversations do not wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue

from eaglecpp.lowlevel import gpus
from eaglecpp.opening.context import free_memory
from eaglecpp.train.capture.features import TargetSource
from eaglecpp.train.capture.identity import identify
from eaglecpp.train.samples import Sample

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
