# SPDX-License-Identifier: MIT
"""`ParkingLot`: conversations that had to leave the engine's caches, kept in host memory until they continue.

Not thread-safe: it belongs to the engine's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eaglecpp.errors import OutOfMemoryError

if TYPE_CHECKING:
    from eaglecpp._extension import core
    from eaglecpp.engine.sequence import NativeSequence

__all__ = ["WORTH", "Parked", "ParkingLot", "n_common"]

WORTH = 32
"""Tokens that are worth copying. Fewer are read again."""


@dataclass(eq=False)
class Parked:
    """One of them."""

    tokens: list[int]
    state: core.ParkedSequence
    n_bytes: int


class ParkingLot:
    """n_most: bytes it may take; the conversation that was left longest ago goes first. 0 = it keeps
    nothing.
    """

    def __init__(self, n_most: int) -> None:
        self.n_most = n_most
        self.n_bytes = 0
        self._parked: list[Parked] = []  # the one left longest ago first

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, sequence: NativeSequence, tokens: list[int], n_kept: int) -> None:
        """Keeps a conversation, of whose tokens the next prompt there goes on with the first n_kept."""
        if self.n_most <= 0 or len(tokens) - n_kept < WORTH:
            return
        with contextlib.suppress(OutOfMemoryError):
            state = sequence.park()
            if state is not None and state.n_bytes <= self.n_most:
                self._add(Parked(tokens, state, state.n_bytes))

    def find(self, prompt: Sequence[int]) -> tuple[Parked | None, int]:
        """The conversation that shares most with the beginning of a prompt, and how many tokens."""
        shared = [n_common(one.tokens, prompt) for one in self._parked]
        n_most = max(shared, default=0)
        return (self._parked[shared.index(n_most)], n_most) if n_most else (None, 0)

    def bring_back(self, sequence: NativeSequence, one: Parked, n_shared: int) -> None:
        """Puts a conversation that was found here in place of what a sequence holds. It stays here only where
        the prompt leaves much of it.
        """
        if sequence.unpark(one.state) and len(one.tokens) - n_shared < WORTH and one in self._parked:
            self._remove(one)

    def _add(self, new: Parked) -> None:
        for old in [one for one in self._parked if n_common(one.tokens, new.tokens) == len(one.tokens)]:
            self._remove(old)  # the new one goes on from there
        self._parked.append(new)
        self.n_bytes += new.n_bytes
        while self.n_bytes > self.n_most:
            self._remove(self._parked[0])

    def _remove(self, one: Parked) -> None:
        self._parked.remove(one)
        self.n_bytes -= one.n_bytes


def n_common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    n = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        n += 1
    return n
