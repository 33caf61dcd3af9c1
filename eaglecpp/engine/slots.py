# SPDX-License-Identifier: MIT
"""`Slots`: an engine's conversations, and which of them a prompt gets; `HostCache`: host memory for those
that had to leave the caches; `FairLock`: engines that share a machine take turns.

Slots and host caches are not thread-safe: they belong to the engine's thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from eaglecpp.engine.native import NativeSequence
from eaglecpp.engine.prompt_cache import WORTH, PromptCache, n_common
from eaglecpp.errors import EagleError, EngineBusyError, InvalidValueError, OutOfMemoryError

if TYPE_CHECKING:
    from eaglecpp._extension import core


class FairLock:
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


@dataclass(eq=False)
class Offloaded:
    """One conversation there."""

    tokens: list[int]
    state: core.ParkedSequence


class HostCache:
    """n_max: bytes it may take; the conversation that was left longest ago goes first. 0 = it keeps
    nothing.
    """

    def __init__(self, n_max: int) -> None:
        self.n_max = n_max
        self.prompts: PromptCache | None = None  # files that get what leaves the caches, too
        self._offloaded: list[Offloaded] = []  # the one left longest ago first

    def __len__(self) -> int:
        return len(self._offloaded)

    @property
    def n_bytes(self) -> int:
        return sum(one.state.n_bytes for one in self._offloaded)

    def offload(self, sequence: NativeSequence, tokens: list[int], n_kept: int) -> None:
        """Keeps a conversation, of whose tokens the next prompt there goes on with the first n_kept."""
        if len(tokens) - n_kept < WORTH:
            return
        to_file = self.prompts if self.prompts and self.prompts.is_worth(tokens, at_last=True) else None
        if self.n_max <= 0 and to_file is None:
            return
        with contextlib.suppress(OutOfMemoryError):
            state = sequence.offload()
            if state is not None and to_file is not None:
                to_file.write(state)
            if state is not None and state.n_bytes <= self.n_max:
                # the new one goes on from those that it begins with
                kept = [one for one in self._offloaded if n_common(one.tokens, tokens) < len(one.tokens)]
                self._offloaded = [*kept, Offloaded(tokens, state)]
                while self.n_bytes > self.n_max:
                    self._offloaded.pop(0)

    def find(self, prompt: Sequence[int]) -> tuple[Offloaded | None, int]:
        """The conversation that shares most with the beginning of a prompt, and how many tokens."""
        shared = [n_common(one.tokens, prompt) for one in self._offloaded]
        n_max = max(shared, default=0)
        return (self._offloaded[shared.index(n_max)], n_max) if n_max else (None, 0)

    def restore(self, sequence: NativeSequence, one: Offloaded, n_shared: int) -> None:
        """Puts a conversation that was found here in place of what a sequence holds. It stays here only where
        the prompt leaves much of it.
        """
        if sequence.restore(one.state) and len(one.tokens) - n_shared < WORTH and one in self._offloaded:
            self._offloaded.remove(one)


_REUSE_LEAST = 4  # a prompt that shares less than 1/4 of itself with a text does not claim that text's slot


@dataclass(eq=False)
class Slot:
    """One of the engine's conversations: what its caches hold, and whether somebody uses it."""

    sequence: NativeSequence
    number: int
    tokens: list[int] = field(default_factory=list)
    is_free: bool = True
    used: float = 0.0
    is_new: bool = False  # something was generated there that `Slots.keep` has not seen

    def take(self, prompt: list[int]) -> None:
        self.is_free, self.tokens = False, prompt

    def leave(self) -> None:
        """Gives it free. Its text stays cached."""
        self.is_free, self.is_new, self.used = True, True, time.perf_counter()
        with contextlib.suppress(EagleError, ValueError):
            self.tokens = self.sequence.tokens

    def clear(self) -> int:
        """Forgets its text; returns how many tokens that had."""
        n_tokens, self.tokens = len(self.sequence.tokens), []
        self.sequence.clear()
        return n_tokens


class Slots:
    """cache: where conversations go that have to make room."""

    def __init__(self, sequences: Iterable[NativeSequence], cache: HostCache) -> None:
        self._slots = [Slot(one, number, one.tokens) for number, one in enumerate(sequences)]
        self._cache = cache

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def has_free(self) -> bool:
        return any(slot.is_free for slot in self._slots)

    def free(self, number: int) -> Slot:
        """The slot of that number. Raises InvalidValueError where there is none, EngineBusyError where
        somebody uses it.
        """
        if not 0 <= number < len(self):
            raise InvalidValueError(f"slot {number}: expected 0 to {len(self) - 1}")
        if not self._slots[number].is_free:
            raise EngineBusyError(f"slot {number} is generating; ask again when it has ended")
        return self._slots[number]

    def n_held(self, prompt: list[int]) -> int:
        """How many tokens of a prompt are in memory, at most."""
        return max(self._cache.find(prompt)[1], *(n_common(slot.tokens, prompt) for slot in self._slots))

    def keep(self, prompts: PromptCache, is_wanted: Callable[[], bool]) -> None:
        """Writes conversations that nobody uses to files, while that is wanted."""
        for slot in self._slots:
            if slot.is_free and slot.is_new and not prompts.is_full and is_wanted():
                slot.is_new = False
                prompts.keep(slot.sequence)

    def find(self, prompt: list[int], found: core.ParkedSequence | None = None) -> Slot:
        """The free slot whose text the prompt shares most of, which may come from the host cache; where
        that is little, an unused one or the one left longest ago, so that texts that may go on stay. What
        another conversation loses there goes to the host cache. found: what a file holds of it.
        """
        shared = {slot: n_common(slot.tokens, prompt) for slot in self._slots}
        free = [slot for slot in self._slots if slot.is_free]
        unused_longest = min(free, key=lambda slot: (bool(slot.tokens), slot.used))
        best = max(free, key=lambda slot: (shared[slot], -slot.used))
        slot = best if shared[best] * _REUSE_LEAST >= len(prompt) else unused_longest
        n_kept = shared[slot]
        offloaded, n_offloaded = self._cache.find(prompt)
        if found is not None and (n_found := n_common(found.tokens, prompt)) >= n_offloaded + WORTH:
            offloaded, n_offloaded = Offloaded(found.tokens, found), n_found
        # what another slot holds is copied from there
        if offloaded and n_offloaded < WORTH + max(shared.values()):
            offloaded = None
        if offloaded:
            slot, n_kept = unused_longest, 0
        self._cache.offload(slot.sequence, slot.tokens, n_kept)
        if offloaded:
            self._cache.restore(slot.sequence, offloaded, n_offloaded)
            slot.tokens = slot.sequence.tokens
        return slot
