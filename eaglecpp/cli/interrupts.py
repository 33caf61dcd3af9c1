# SPDX-License-Identifier: MIT
"""Ctrl+C in a command that computes for hours: heard at once, also in the middle of a long computation.

Python runs a signal's handler between two of its own steps, so a product of matrices or a prompt that is read
delays it. The signal's number, however, is written to a socket at once, and a thread waits for that.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Interrupts"]


class Interrupts:
    """A context manager. The first Ctrl+C asks to stop: `requested`; the second ends the process.

    say: prints a line; called in a thread
    waits: whether the work ends by itself soon after `requested`, and saves what it has; otherwise the first
    Ctrl+C raises KeyboardInterrupt
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested = False
        self.waits = False
        self._say = say
        self._previous: Any = None
        self._previous_fd = -1
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._sockets = ours, signalled = socket.socketpair()
            signalled.setblocking(False)
            threading.Thread(target=self._listen, args=(ours,), daemon=True).start()
            self._previous = signal.signal(signal.SIGINT, self._handle)
            self._previous_fd = signal.set_wakeup_fd(signalled.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sockets is None:
            return
        signal.set_wakeup_fd(self._previous_fd)
        signal.signal(signal.SIGINT, self._previous)
        self._sockets[1].close()  # which ends the thread

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if not self.waits:
            raise KeyboardInterrupt

    def _listen(self, ours: socket.socket) -> None:
        n = 0
        with ours:
            while byte := ours.recv(1):
                if byte[0] != signal.SIGINT:
                    continue
                n += 1
                if n > 1:
                    os._exit(130)  # as after kill -9: what was saved is whole
                self.requested = True
                then = "saving what is trained" if self.waits else "stopping"
                self._say(f"Ctrl+C: {then} ... (once more ends at once, and keeps only what was saved)")
