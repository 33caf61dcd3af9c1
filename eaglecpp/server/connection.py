# SPDX-License-Identifier: MIT
"""Connections: how many there are, how long a client may take to say what it wants, and how it may say it.

uvicorn waits for ever for the rest of a request, and accepts connections until the process has no files left.
Here the one that has said nothing whole for longest makes room for a new one, so that a client that opens
thousands takes the server from nobody. What bodies may take is in `eaglecpp.server.http`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_MOST = 2048
_LINES = 10
_FILES = 1 << 16  # a process with more of them open than that has another problem
_WRITE_BUFFER = 8 << 10
_CHUNKS, _CHUNK_BYTES = 10_000, 1024
"""So many chunks a body may have, and one more for so many bytes: h11 takes 10 us for each."""


def raise_file_limit() -> int:
    """Lets this process open as many files as its user may, within reason. Returns how many, 0 = unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 0
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    with contextlib.suppress(OSError, ValueError):  # the system's own limit may be lower still
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Connections:
    """All of one server. waiting: those from which a request has not come whole, longest first."""

    def __init__(self, n_max: int = 0, n_files: int = 0) -> None:
        """n_max: connections at a time, 0 = so many that files are left for models and downloads"""
        self.n_max = n_max or (min(_MOST, n_files // 2) if n_files else _MOST)
        self.waiting: dict[Protocol, None] = {}

    def make_room(self, n_open: int, newest: Protocol) -> None:
        if n_open > self.n_max:
            oldest = next(iter(self.waiting), newest)
            self.waiting.pop(oldest, None)  # at once: many connections may be made before one is lost
            oldest.transport.abort()


class _Connection(h11.Connection):
    """Refuses bodies in very small chunks, and those of which it is not clear where they end."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER)
        self.refusal = ""
        self._n_chunks = self._n_bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._n_chunks += event.chunk_start
            self._n_bytes += len(event.data)
            if self._n_chunks > _CHUNKS + self._n_bytes // _CHUNK_BYTES:
                self.refusal = f"The body comes in {self._n_chunks} chunks of a few bytes: send larger ones."
        elif isinstance(event, h11.Request):
            self._n_chunks = self._n_bytes = 0
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                self.refusal = "A request has a content-length or a transfer-encoding, not both."
        if self.refusal:
            raise h11.RemoteProtocolError(self.refusal)
        return event


class Protocol(H11Protocol):
    """Waits for a client that does not read, instead of buffering for it, and not for ever for one that does
    not say the rest of its request.
    """

    def __init__(self, connections: Connections, head_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._all, self._head_s = connections, head_s
        self._deadline: asyncio.TimerHandle | None = None
        self.conn: _Connection = _Connection()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._all.make_room(len(self.connections), self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.waiting.pop(self, None)
        self._expect(False)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(self.conn.refusal or msg)

    def _watch(self) -> None:
        """Looks where the client is in its request. Between two requests uvicorn ends a connection, and while
        a body is awaited, who reads it: what is left is the head, and the rest of a body that nobody wants.
        """
        state = self.conn.their_state
        is_waiting = state in (h11.IDLE, h11.SEND_BODY)
        if is_waiting:
            self._all.waiting.setdefault(self)
        else:
            self._all.waiting.pop(self, None)
        is_unread = state is h11.SEND_BODY and self.cycle.response_complete
        self._expect(is_unread or (state is h11.IDLE and self.timeout_keep_alive_task is None))

    def _expect(self, more: bool) -> None:
        if more and self._deadline is None:
            self._deadline = self.loop.call_later(self._head_s, self.transport.abort)
        elif not more and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Seldom(logging.Filter):
    """Of each warning, a few lines a minute: nothing a client causes may fill a disk."""

    def __init__(self) -> None:
        super().__init__()
        self._minute, self._counts = 0, Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        minute, key = int(time.monotonic() // 60), str(record.msg)[:80]
        if minute != self._minute or len(self._counts) > 1000:
            self._minute, self._counts = minute, Counter()
        self._counts[key] += 1
        return self._counts[key] <= _LINES
