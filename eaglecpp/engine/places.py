# SPDX-License-Identifier: MIT
"""`Places`: an engine's conversations, and which of them a prompt gets; `ParkingLot`: where those wait
in host memory that had to leave the caches; `TurnLock`: engines that share a machine take turns.

Places and lots are not thread-safe: they belong to the engine's thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from eaglecpp.engine.sequence import NativeSequence
from eaglecpp.errors import EagleError, OutOfMemoryError

if TYPE_CHECKING:
    from eaglecpp._extension import core

__all__ = ["WORTH", "Parked", "ParkingLot", "Place", "Places", "TurnLock", "n_common"]


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


_REUSE_LEAST = 4  # a prompt that shares less than 1/4 of itself with a text does not claim that text's place


@dataclass(eq=False)
class Place:
    """One of the engine's conversations: what its caches hold, and whether somebody uses it."""

    sequence: NativeSequence
    number: int
    tokens: list[int] = field(default_factory=list)
    is_free: bool = True
    used: float = 0.0

    def take(self, prompt: list[int]) -> None:
        self.is_free, self.tokens = False, prompt

    def leave(self) -> None:
        """Gives it free. Its text stays cached."""
        self.is_free, self.used = True, time.perf_counter()
        with contextlib.suppress(EagleError, ValueError):
            self.tokens = self.sequence.tokens


class Places:
    """lot: where conversations go that have to make room."""

    def __init__(self, sequences: Iterable[NativeSequence], lot: ParkingLot) -> None:
        self._places = [Place(sequence, number) for number, sequence in enumerate(sequences)]
        self._lot = lot

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    @property
    def has_free(self) -> bool:
        return any(place.is_free for place in self._places)

    def find(self, prompt: list[int]) -> Place:
        """The free place whose text the prompt shares most of, which may come from the parking lot; where
        that is little, an unused one or the one left longest ago, so that texts that may go on stay. What
        another conversation loses there goes to the lot.
        """
        shared = {place: n_common(place.tokens, prompt) for place in self._places}
        free = [place for place in self._places if place.is_free]
        unused_longest = min(free, key=lambda place: (bool(place.tokens), place.used))
        best = max(free, key=lambda place: (shared[place], -place.used))
        place = best if shared[best] * _REUSE_LEAST >= len(prompt) else unused_longest
        n_kept = shared[place]
        parked, n_parked = self._lot.find(prompt)
        # what another place holds is copied from there
        if parked and n_parked < WORTH + max(shared.values()):
            parked = None
        if parked:
            place, n_kept = unused_longest, 0
        self._lot.park(place.sequence, place.tokens, n_kept)
        if parked:
            self._lot.bring_back(place.sequence, parked, n_parked)
            place.tokens = place.sequence.tokens
        return place
