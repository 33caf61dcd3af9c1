# SPDX-License-Identifier: MIT
"""`ManyStreams`: several generations of one engine, side by side in its sequences, verified in one batch.

A round reads a limited number of prompt tokens, those of the first prompts, so that generations in progress
do not wait for all of them. All generations share each round and one planner. If there are fewer free places
than prompts, the rest wait. Each result is what the same call alone would have given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from eaglecpp.engine.session import Session
from eaglecpp.engine.stream import Stream, next_chunks
from eaglecpp.errors import InvalidStateError
from eaglecpp.results import Chunk, Completion

__all__ = ["ManyStreams"]


class ManyStreams(Iterator[tuple[int, Chunk]]):
    """Iterate for (index, chunk), in the order in which they come; `completions()` for the results so far, in
    the order of the prompts; `close()` to stop early.

    sessions: places
    begin:    starts generation number i in a session
    on_close: called once, at the end
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        n_prompts: int,
        begin: Callable[[int, Session], Stream],
        on_close: Callable[[], None],
    ) -> None:
        self._free = list(sessions)
        self._on_close: Callable[[], None] | None = on_close
        self._begin = begin
        self._waiting = deque(range(n_prompts))
        self._running: dict[int, tuple[Session, Stream]] = {}
        self._reading: set[int] = set()  # of the running ones those whose prompt is being read
        self._streams: dict[int, Stream] = {}
        self._ready: deque[tuple[int, Chunk]] = deque()
        self._n_prompts = n_prompts
        self._is_watched = True

    def __repr__(self) -> str:
        return (
            f"<ManyStreams of {self._n_prompts} prompts: {len(self._running)} running, "
            f"{len(self._waiting)} waiting>"
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, Chunk]:
        try:
            while not self._ready:
                self._admit()
                if not self._running:
                    break
                self._turn()
        except BaseException:
            self.close()
            raise
        if not self._ready:
            self.close()
            raise StopIteration
        return self._ready.popleft()

    def finish(self) -> list[Completion]:
        """Runs to the end with nobody watching: a chunk may hold several rounds."""
        self._is_watched = False
        with self:
            for _ in self:
                pass
            return self.completions()

    def completions(self) -> list[Completion]:
        """What was generated so far. Raises InvalidStateError while a prompt waits for its place."""
        if len(self._streams) < self._n_prompts:
            raise InvalidStateError(
                f"prompt {len(self._streams)} has not started yet; read the stream to its end first"
            )
        return [self._streams[index].completion() for index in range(self._n_prompts)]

    def close(self) -> None:
        """Ends what still runs; nothing new begins."""
        self._waiting.clear()
        for _, stream in self._running.values():
            stream.close()
        self._running.clear()
        self._reading.clear()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _admit(self) -> None:
        while self._free and self._waiting:
            index, session = self._waiting.popleft(), self._free.pop()
            stream = self._begin(index, session)
            self._streams[index] = stream
            self._running[index] = (session, stream)
            self._reading.add(index)

    def _turn(self) -> None:
        """A slice of the first prompts, and a round of all that generate."""
        indices = list(self._running)
        # a prompt that waits for a place, or to be read, waits for rounds one by one
        is_watched = self._is_watched or bool(self._waiting) or bool(self._reading)
        chunks = next_chunks([self._running[index][1] for index in indices], is_watched)
        for index, chunk in zip(indices, chunks, strict=True):
            if isinstance(chunk, BaseException):
                raise chunk
            if chunk is None:
                continue
            self._reading.discard(index)
            self._ready.append((index, chunk))
            if chunk.finish_reason is not None:
                session, _ = self._running.pop(index)
                self._free.append(session)
