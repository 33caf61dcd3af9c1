# SPDX-License-Identifier: MIT
"""`TurnLock`: engines that share a machine take turns."""

from __future__ import annotations

import threading
from typing import Self

__all__ = ["TurnLock"]


class TurnLock:
    """A lock that is handed on in the order of asking.

    Engines that share a machine take turns with it: two that compute at the same time are slower than one
    after the other. A plain lock may be taken again at once by the thread that has just left it.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._next = self._serving = 0

    def __enter__(self) -> Self:
        with self._condition:
            mine, self._next = self._next, self._next + 1
            while self._serving != mine:
                self._condition.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._condition:
            self._serving += 1
            self._condition.notify_all()
