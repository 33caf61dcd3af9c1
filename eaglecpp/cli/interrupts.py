# SPDX-License-Identifier: MIT
"""Ctrl+C in a command that computes for hours: heard at once, also in the middle of a long computation.

Python runs a signal's handler between two of its own steps, so a product of matrices or a prompt that is read
delays it. The signal's number, however, is written to a socket at once, and a thread waits for that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Interrupts:
    """The first Ctrl+C asks to stop: `requested`; the second ends the process.

    say: prints a line; called in a thread
    waits: whether the work ends by itself soon after `requested`, and saves what it has; otherwise the first
    Ctrl+C raises KeyboardInterrupt
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested = False
        self.waits = False
        self._say = say

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Listens inside the block, on the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        ours, signalled = socket.socketpair()
        signalled.setblocking(False)
        threading.Thread(target=self._listen, args=(ours,), daemon=True).start()
        previous = signal.signal(signal.SIGINT, self._handle)
        previous_fd = signal.set_wakeup_fd(signalled.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_fd)
            signal.signal(signal.SIGINT, previous)
            signalled.close()  # which ends the thread

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
