# SPDX-License-Identifier: MIT
"""Runs the application on uvicorn: binds the port, logs, and stops gracefully."""

from __future__ import annotations

import ctypes
import errno
import logging
import platform
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from eaglecpp.errors import EagleError
from eaglecpp.server.app import make_app
from eaglecpp.server.config import ServerConfig
from eaglecpp.server.connection import Connections, Protocol, Seldom, raise_file_limit
from eaglecpp.server.security import Gate

LARGE = 1 << 20
"""Bytes. What a round allocates is smaller, or stays allocated."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_TRIM = 16 << 20


def give_back_large_blocks() -> bool:
    """Returns whether it was done: on Linux with glibc only."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM))


_SEND_BUFFER = 16 << 10
_UNREAD_MS = 60_000


class PortInUseError(EagleError):
    """Another program listens there already."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises PortInUseError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # where TCP is not named, asyncio leaves Nagle's algorithm on, which holds each answer back for 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # With SO_REUSEADDR a port is free again at once after its last server ended. On Windows it would let a
    # second server share the port; there it is free at once anyway, and SO_EXCLUSIVEADDRUSE keeps it ours.
    option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
    listener.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} of {host} is in use, perhaps by Ollama or another eaglecpp serve; stop that "
                "program, or choose another port: --port"
            ) from None
        raise EagleError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    # Connections inherit these. What the system buffers for a client that reads nothing is small then, and
    # after a while it ends the connection itself, with what was written already.
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
    """Serves until a signal ends it; running answers get the configured time to finish. Raises what keeps the
    model `preload` from being loaded.
    """
    for name in ("asyncio", "uvicorn.error", "eaglecpp.server"):
        logging.getLogger(name).addFilter(Seldom())
    server = Runner(
        make_app(config, files),
        preload,
        on_start,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(config.grace_s)),
        timeout_keep_alive=75,
        backlog=2048,
    )
    with listener:
        server.run(sockets=[listener])
    if server.failure is not None:
        raise server.failure
    if not server.started:
        raise EagleError("the server could not start; its log says why")


class Runner(uvicorn.Server):
    """Loads a model, and those that are pinned, before it listens, and tells when it is ready. failure: what
    kept it from that.
    """

    def __init__(
        self, app: Gate, preload: str, on_start: Callable[[], None] | None = None, **settings: Any
    ) -> None:
        config = app.server.config
        connections = Connections(config.n_connections, raise_file_limit())
        protocol: Any = partial(Protocol, connections, config.head_s)
        settings |= {"http": protocol, "ws": "none", "log_config": None, "access_log": False}
        super().__init__(uvicorn.Config(app, **settings))
        self.failure: Exception | None = None
        self._shared = app.server
        self._preload = preload
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            pool = self._shared.pool
            pinned = [name for name in pool.config.presets if pool.config.is_pinned(name)]
            for name in [self._preload] * bool(self._preload) + pinned:
                async with pool.use(name):
                    pass
        except Exception as error:  # in uvicorn's own start it would be a traceback in the log
            self.failure, self.should_exit = error, True
            return
        await super().startup(sockets)
        if self.started and self._on_start is not None:
            self._on_start()
