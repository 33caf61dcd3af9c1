# SPDX-License-Identifier: MIT
"""`Strategy`: how to draft, and its text form."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from eaglecpp.errors import InvalidTypeError, InvalidValueError

_CHAIN = re.compile(r"chain:([0-9]{1,4})")
_TREE = re.compile(r"tree:k=([0-9]{1,4}), *depth=([0-9]{1,4}), *nodes=([0-9]{1,4})")


@dataclass(frozen=True)
class Strategy:
    """A drafting strategy. `kind`: "auto", "off", "chain" or "tree".

    `depth`: draft steps; `k`: children per frontier node (1 for a chain); `nodes`: draft nodes kept for
    verification, without the root.
    """

    kind: str = "auto"
    k: int = 1
    depth: int = 0
    nodes: int = 0

    HELP: ClassVar[str] = (
        "Drafting strategy: auto, off, chain:DEPTH or tree:k=K,depth=D,nodes=N. "
        "auto decides the number of drafts of each round from measurements on this machine and this text"
    )
    AUTO_LEAVES: ClassVar[int] = 8
    MAX_NODES: ClassVar[int] = 1024

    @staticmethod
    def is_off(asked: object) -> bool:
        """Returns whether a value for a strategy or a drafter turns drafting off."""
        return asked is False or asked in ("off", "none")

    @classmethod
    def parse(cls, text: str | Strategy) -> Strategy:
        """Parses a strategy such as "auto", "off", "chain:5" or "tree:k=4,depth=5,nodes=16"; `str()` is the
        inverse.

        Raises `ValueError` with the expected form.
        """
        if isinstance(text, Strategy):
            return text
        if not isinstance(text, str):
            raise InvalidTypeError(f"strategy must be a string like 'chain:5', got {type(text).__name__}")
        if text.strip() == "auto" or cls.is_off(text.strip()):
            return cls("auto" if text.strip() == "auto" else "off")
        if chain := _CHAIN.fullmatch(text.strip()):
            strategy = cls("chain", 1, int(chain[1]), int(chain[1]))
        elif tree := _TREE.fullmatch(text.strip()):
            strategy = cls("tree", *map(int, tree.groups()))
        else:
            expected = "auto, off, chain:DEPTH or tree:k=K,depth=D,nodes=N"
            raise InvalidValueError(f"strategy {text!r}: expected {expected}")
        if strategy.k < 1 or not 1 <= strategy.depth <= strategy.nodes <= cls.MAX_NODES:
            expected = f"1 <= depth <= nodes <= {cls.MAX_NODES} and k from 1"
            raise InvalidValueError(f"strategy {text!r}: expected {expected}")
        return strategy

    @property
    def n_leaves(self) -> int:
        """Upper bound of the number of leaves of a draft tree, whose root and inner nodes have up to k
        children each.
        """
        if self.kind == "auto":
            return self.AUTO_LEAVES
        return 1 if self.kind != "tree" else self.nodes - math.ceil(self.nodes / self.k) + 1

    def __str__(self) -> str:
        if self.kind == "chain":
            return f"chain:{self.depth}"
        if self.kind == "tree":
            return f"tree:k={self.k},depth={self.depth},nodes={self.nodes}"
        return self.kind
