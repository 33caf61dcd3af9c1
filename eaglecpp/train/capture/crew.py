# SPDX-License-Identifier: MIT
"""Captures of many conversations, on a CPU several at once, each by a target of its own with one thread.

The threads of one target wait for each other after every operation, and those of a small model are short.
Next to that, labels are found by one thread alone. Conversations do not wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue

from eaglecpp.lowlevel import system_info
from eaglecpp.opening.context import free_memory
from eaglecpp.train.capture.features import TargetSource
from eaglecpp.train.samples import Sample

__all__ = ["samples_of"]

_LARGEST = 1 << 30
"""Bytes of a target's file. Operations of larger ones are long enough to be shared."""
_MEMORY_SHARE = 0.5
_LEAST_EACH = 4
"""Conversations for each target, which has to be loaded first."""


def samples_of(source: TargetSource, indices: Sequence[int]) -> Iterator[Sample]:
    """The samples of these conversations, in this order. Raises what `source.sample` raises, once those
    before have been given.
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
        stack.callback(lambda: [one.cancel() for one in waiting])
        for index in indices:
            waiting.append(pool.submit(sample, index))
            if len(waiting) > 2 * n_targets:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _n_targets(source: TargetSource, n_samples: int) -> int:
    """One per thread, or one with all threads where that would take too much memory or is of no use."""
    n_threads = source.model.n_threads
    n_bytes = source.target_path.stat().st_size
    on_gpu = source.model.n_gpu_layers != 0 and any(d["kind"] == "gpu" for d in system_info()["devices"])
    if on_gpu or n_bytes > _LARGEST or n_samples < _LEAST_EACH * n_threads:
        return 1
    # the longest conversation's logits, twice: as they are found, and while labels are
    n_bytes += max(source.lengths) * source.n_vocab * 8
    return n_threads if n_threads * n_bytes < _MEMORY_SHARE * free_memory() else 1
