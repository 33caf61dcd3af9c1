# SPDX-License-Identifier: MIT
"""`Slots` assigns prompts to an engine's conversations; `HostCache` holds swapped out conversations;
`FairLock` lets engines that share a machine take turns.

Slots and host caches are not thread-safe. They belong to the engine's thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from eaglecpp._extension import core
from eaglecpp.engine.native import NativeSequence
from eaglecpp.engine.prompt_cache import WORTH, PromptCache, n_common, n_usable
from eaglecpp.errors import EagleError, EngineBusyError, InvalidValueError, OutOfMemoryError


class FairLock:
    """A first-in, first-out lock.

    Engines that share a machine use the lock to take turns, because computing at the same time is slower than
    one engine after the other. A plain lock would not do, because the thread that has just released the lock
    may get the lock again at once.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._next = self._serving = 0

    def __enter__(self) -> None:
        with self._condition:
            mine, self._next = self._next, self._next + 1
            while self._serving != mine:
                self._condition.wait()

    def __exit__(self, *exc: object) -> None:
        with self._condition:
            self._serving += 1
            self._condition.notify_all()

    @property
    def is_free(self) -> bool:
        """True if no thread holds the lock."""
        return self._next == self._serving


@dataclass(eq=False)
class Offloaded:
    """One conversation in host memory."""

    tokens: list[int]
    state: core.SavedSequence


class HostCache:
    """Conversations in host memory. n_max: maximum bytes; 0 = no conversations. The least recently used
    conversation is evicted first. prompts: files to which evicted conversations are written
    """

    def __init__(self, n_max: int, prompts: PromptCache | None = None) -> None:
        self.n_max = n_max
        self.prompts = prompts
        self._offloaded: list[Offloaded] = []  # saved conversations, from least to most recently used

    def __len__(self) -> int:
        return len(self._offloaded)

    @property
    def n_bytes(self) -> int:
        return sum(entry.state.n_bytes for entry in self._offloaded)

    def offload(self, sequence: NativeSequence, tokens: list[int], n_kept: int) -> None:
        """Swaps a conversation out to host memory. n_kept: tokens at the conversation's beginning that the
        slot's next prompt keeps
        """
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
                # An old conversation is dropped if the new conversation continues it.
                kept = [old for old in self._offloaded if n_common(old.tokens, tokens) < len(old.tokens)]
                self._offloaded = [*kept, Offloaded(tokens, state)]
                while self.n_bytes > self.n_max:
                    self._offloaded.pop(0)

    def find(
        self, prompt: Sequence[int], found: core.SavedSequence | None = None
    ) -> tuple[Offloaded | None, int]:
        """Returns the conversation with the longest common prefix with a prompt, and the length of that
        prefix. found: state from a file, or None
        """
        entries = self._offloaded if found is None else [*self._offloaded, Offloaded(found.tokens, found)]
        shared = [n_usable(entry.tokens, entry.state.ends, prompt) for entry in entries]
        n_max = max(shared, default=0)
        return (entries[shared.index(n_max)], n_max) if n_max else (None, 0)

    def restore(self, sequence: NativeSequence, old: Offloaded, n_shared: int) -> None:
        """Restores a conversation into a sequence. n_shared: tokens that the prompt reuses. The copy in host
        memory is kept only if `WORTH` or more of the conversation's tokens are not reused.
        """
        if sequence.restore(old.state) and len(old.tokens) - n_shared < WORTH and old in self._offloaded:
            self._offloaded.remove(old)


_REUSE_LEAST = 4  # a prompt reuses a slot only if the slot's text covers at least 1/4 of the prompt


@dataclass(eq=False)
class Slot:
    """One of the engine's conversations: its cached text, and whether a generation uses it."""

    sequence: NativeSequence
    number: int
    tokens: list[int] = field(default_factory=list)
    is_free: bool = True
    used: float = 0.0
    is_new: bool = False  # True until `Slots.keep` has written the slot's text

    def take(self, prompt: list[int]) -> None:
        self.is_free, self.tokens = False, prompt

    def leave(self) -> None:
        """Frees the slot. Its text stays cached."""
        self.is_free, self.is_new, self.used = True, True, time.perf_counter()
        with contextlib.suppress(EagleError, ValueError):
            self.tokens = self.sequence.tokens

    def clear(self) -> int:
        """Forgets the slot's text. Returns the number of tokens in the text."""
        n_tokens, self.tokens = len(self.sequence.tokens), []
        self.sequence.clear()
        return n_tokens


class Slots:
    """The slots of one engine. cache: receives conversations that must leave their slots."""

    def __init__(self, sequences: Iterable[NativeSequence], cache: HostCache) -> None:
        self._slots = [Slot(sequence, number, sequence.tokens) for number, sequence in enumerate(sequences)]
        self._cache = cache

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def has_free(self) -> bool:
        return any(slot.is_free for slot in self._slots)

    def free(self, number: int) -> Slot:
        """Returns the slot of that number. Raises InvalidValueError for an unknown number, EngineBusyError
        while a generation uses the slot.
        """
        if not 0 <= number < len(self):
            raise InvalidValueError(f"slot {number}: expected 0 to {len(self) - 1}")
        if not self._slots[number].is_free:
            raise EngineBusyError(f"slot {number} is generating; try again when its answer has ended")
        return self._slots[number]

    def n_held(self, prompt: list[int]) -> int:
        """Returns the length of the longest prefix of a prompt that a slot or the host cache holds, in
        tokens.
        """
        return max(self._cache.find(prompt)[1], *(n_common(slot.tokens, prompt) for slot in self._slots))

    def keep(self, prompts: PromptCache, is_wanted: Callable[[], bool]) -> None:
        """Writes the texts of free slots to files, until `is_wanted()` is false."""
        for slot in self._slots:
            if slot.is_free and slot.is_new and not prompts.is_full and is_wanted():
                slot.is_new = False
                prompts.keep(slot.sequence)

    def find(self, prompt: list[int], found: core.SavedSequence | None = None) -> Slot:
        """Picks the free slot with the longest common prefix, unless the host cache or a file has a longer
        prefix, which is then restored into an empty or the least recently used slot. If no slot has a long
        common prefix, also picks an empty or the least recently used slot. The slot's old conversation goes
        to the host cache. found: state from a file, or None
        """
        shared = {slot: n_common(slot.tokens, prompt) for slot in self._slots}
        free = [slot for slot in self._slots if slot.is_free]
        unused_longest = min(free, key=lambda slot: (bool(slot.tokens), slot.used))
        best = max(free, key=lambda slot: (shared[slot], -slot.used))
        slot = best if shared[best] * _REUSE_LEAST >= len(prompt) else unused_longest
        offloaded, n_offloaded = self._cache.find(prompt, found)
        # A prefix in another slot is not restored, because the engine copies it from that slot.
        if offloaded is None or n_offloaded < WORTH + max(shared.values()):
            self._cache.offload(slot.sequence, slot.tokens, shared[slot])
            return slot
        self._cache.offload(unused_longest.sequence, unused_longest.tokens, 0)
        self._cache.restore(unused_longest.sequence, offloaded, n_offloaded)
        unused_longest.tokens = unused_longest.sequence.tokens
        return unused_longest
