# SPDX-License-Identifier: MIT
"""Runs the application on uvicorn: binds the port, limits connections, logs, and stops gracefully.

uvicorn alone waits forever for the rest of a request, and accepts connections until the process has no file
descriptors left. This module limits the number of connections: above the limit, a new connection replaces the
connection that has waited longest for a complete request. So a client that opens thousands of connections
cannot block other clients. `eaglecpp.server.http` limits bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import platform
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from eaglecpp.errors import EagleError
from eaglecpp.server.answer import ServedRequest
from eaglecpp.server.app import make_app
from eaglecpp.server.config import ServerConfig
from eaglecpp.server.security import Gate

_MAX = 2048
_LINES = 10
_FILES = 1 << 16  # Maximum number of open files. A process that needs more files is faulty.
_WRITE_BUFFER = 8 << 10
_CHUNKS, _CHUNK_BYTES = 10_000, 1024
"""A body may have `_CHUNKS` chunks, plus one per `_CHUNK_BYTES` bytes. h11 takes 10 us for each chunk."""


def raise_file_limit() -> int:
    """Raises this process's limit on open files, up to `_FILES`. Returns the new limit; 0 = unknown."""
    try:
        import resource
    except ImportError:  # the module `resource` is missing on Windows
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 0
    n_max = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    with contextlib.suppress(OSError, ValueError):  # the system may refuse such a high limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, n_max), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Connections:
    """All connections of one server. waiting: connections without a complete request, oldest first."""

    def __init__(self, n_max: int = 0, n_files: int = 0) -> None:
        """n_max: maximum connections; 0 = half of the files that this process may open, because models and
        downloads need files too
        """
        self.n_max = n_max or (min(_MAX, n_files // 2) if n_files else _MAX)
        self.waiting: dict[Protocol, None] = {}

    def make_room(self, n_open: int, newest: Protocol) -> None:
        if n_open > self.n_max:
            oldest = next(iter(self.waiting), newest)
            self.waiting.pop(oldest, None)  # the entry is removed before further connections can open
            oldest.transport.abort()


class _StrictConnection(h11.Connection):
    """An HTTP/1.1 connection that refuses bodies in tiny chunks and bodies whose length is ambiguous."""

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
                self.refusal = f"The body has {self._n_chunks} chunks of a few bytes; send larger ones."
        elif isinstance(event, h11.Request):
            self._n_chunks = self._n_bytes = 0
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                self.refusal = "Expected a content-length or a transfer-encoding, found both."
        if self.refusal:
            raise h11.RemoteProtocolError(self.refusal)
        return event


class Protocol(H11Protocol):
    """uvicorn's HTTP protocol with two more limits. The protocol stops writing to a client that does not
    read, instead of buffering. It also limits the time for the rest of a request.
    """

    def __init__(self, connections: Connections, head_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._all, self._head_s = connections, head_s
        self._deadline: asyncio.TimerHandle | None = None
        self.conn: _StrictConnection = _StrictConnection()

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
        """Records whether the connection waits for a complete request. Limits the time for the head of a
        request, and for the rest of a body that no handler reads any more. uvicorn limits the time between
        two requests, and `http.read_json` the time for a body that is read.
        """
        state = self.conn.their_state
        if state in (h11.IDLE, h11.SEND_BODY):
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
    """A log filter that limits each warning to a few lines a minute, so that no client can fill a disk. The
    filter also drops the tracebacks that uvicorn and starlette log when a stopping server cancels requests.
    """

    def __init__(self) -> None:
        super().__init__()
        self._minute, self._counts = 0, Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError) or str(record.msg).rstrip().endswith("CancelledError"):
            return False
        minute, key = int(time.monotonic() // 60), str(record.msg)[:80]
        if minute != self._minute or len(self._counts) > 1000:
            self._minute, self._counts = minute, Counter()
        self._counts[key] += 1
        return self._counts[key] <= _LINES


LARGE = 1 << 20
"""A freed memory block with more bytes returns to the system. Blocks that a round allocates are smaller, or
are not freed after each round.
"""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # parameter numbers from malloc.h
_TRIM = 16 << 20


def give_back_large_blocks() -> bool:
    """Makes malloc return large freed memory blocks to the system. Returns False if this is not supported
    (only glibc on Linux is).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM))


_SEND_BUFFER = 16 << 10
_UNREAD_MS = 60_000


class PortInUseError(EagleError):
    """Another program already listens on the port."""


def bind(host: str, port: int) -> socket.socket:
    """Opens a listening socket. Raises PortInUseError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without IPPROTO_TCP, asyncio would not turn Nagle's algorithm off, which delays each answer by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # With SO_REUSEADDR, a port is free as soon as its last server ends. On Windows, a port is free at once
    # anyway, but SO_REUSEADDR would let a second server share it. There SO_EXCLUSIVEADDRUSE keeps the port
    # exclusive.
    option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
    listener.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} of {host} is in use, perhaps by Ollama or another eaglecpp serve; stop that "
                "program, or choose another port with --port"
            ) from None
        raise EagleError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    # Connections inherit these options. SO_SNDBUF limits the system's buffer for a client that does not read.
    # TCP_USER_TIMEOUT closes the connection to such a client after a while, even if unsent data is left.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
    listener.listen(2048)
    listener.set_inheritable(True)
    return listener


def serve(
    config: ServerConfig,
    files: Mapping[str, Path],
    preload: str,
    listener: socket.socket,
    on_start: Callable[[], None] | None = None,
) -> None:
    """Serves until a signal arrives, then gives running answers the configured time to finish. Raises the
    error if the model `preload` cannot be loaded.
    """
    for name in ("asyncio", "uvicorn.error", "eaglecpp.server"):
        logging.getLogger(name).addFilter(Seldom())
    server = Runner(make_app(config, files), preload, on_start)
    with listener:
        server.run(sockets=[listener])
    if server.failure is not None:
        raise server.failure
    if not server.started:
        raise EagleError("the server could not start; see its log")


class Runner(uvicorn.Server):
    """A uvicorn server that listens at once, then loads the preloaded and the pinned models. failure: the
    error that stopped such a load, and so the server.
    """

    def __init__(self, app: Gate, preload: str, on_start: Callable[[], None] | None = None) -> None:
        config = app.server.config
        connections = Connections(config.n_connections, raise_file_limit())
        protocol: Any = partial(Protocol, connections, config.head_s)
        grace_s = max(1, round(config.grace_s))
        silent: Any = {"log_config": None, "access_log": False, "server_header": False}
        times: Any = {"timeout_graceful_shutdown": grace_s, "timeout_keep_alive": 75}
        super().__init__(uvicorn.Config(app, http=protocol, ws="none", backlog=2048, **silent, **times))
        self.failure: Exception | None = None
        self._shared = app.server
        pinned = [name for name in config.presets if config.is_pinned(name)]
        self._shared.loads = [*([preload] if preload else []), *pinned]
        self._on_start = on_start
        self._loading: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._loading = asyncio.create_task(self._load())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._loading is not None:
            self._loading.cancel()
        self._shared.stop_loads()
        await super().shutdown(sockets)

    async def _load(self) -> None:
        loads = self._shared.loads
        try:
            while loads:
                async with self._shared.use(ServedRequest(model=loads[0]), is_queued=False):
                    loads.pop(0)
        except Exception as error:
            self.failure, self.should_exit = error, True
            return
        if self._on_start is not None:
            self._on_start()
