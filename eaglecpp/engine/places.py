# SPDX-License-Identifier: MIT
"""`Places`: an engine's conversations, and which of them a prompt gets.

Not thread-safe: they belong to the engine's thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from eaglecpp.engine.parking import WORTH, ParkingLot, n_common
from eaglecpp.engine.sequence import NativeSequence
from eaglecpp.errors import EagleError

__all__ = ["Place", "Places"]

_REUSE_LEAST = 4  # a prompt that shares less than 1/4 of itself with a text does not claim that text's place


@dataclass(eq=False)
class Place:
    """One of the engine's conversations: what its caches hold, and whether somebody uses it."""

    sequence: NativeSequence
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
        self._places = [Place(sequence) for sequence in sequences]
        self._lot = lot

    def __len__(self) -> int:
        return len(self._places)

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
