# SPDX-License-Identifier: MIT
"""`KeptResponses`: responses that later requests may continue, in memory, those of each key apart."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    """items: the conversation that was answered, as a JSON array; response: the answer, as a JSON object."""

    items: bytes
    response: bytes

    @property
    def n_bytes(self) -> int:
        return len(self.items) + len(self.response)


class KeptResponses:
    """n_max, n_bytes: bounds for each owner of responses; beyond them, what was used least lately goes. An
    owner is an API key, or "" where the server asks for none. Nobody's responses can be read, or driven out,
    by another one's. 0 = nothing is kept.
    """

    def __init__(self, n_max: int, n_bytes: int) -> None:
        self.n_max, self.n_bytes = n_max, n_bytes
        self._of: dict[str, OrderedDict[str, Kept]] = {}

    def add(self, owner: str, id: str, one: Kept) -> bool:
        """Whether it is kept: not what is larger than everything that may be."""
        if not self.n_max or one.n_bytes > self.n_bytes:
            return False
        own = self._of.setdefault(owner, OrderedDict())
        own[id] = one
        n_bytes = sum(each.n_bytes for each in own.values())
        while len(own) > self.n_max or n_bytes > self.n_bytes:
            n_bytes -= own.popitem(last=False)[1].n_bytes
        return True

    def find(self, owner: str, id: str) -> Kept | None:
        own = self._of.get(owner, OrderedDict())
        if id in own:
            own.move_to_end(id)
        return own.get(id)

    def remove(self, owner: str, id: str) -> bool:
        """Whether it was there."""
        return self._of.get(owner, OrderedDict()).pop(id, None) is not None
