# SPDX-License-Identifier: MIT
"""Turns the byte pieces of generated tokens into text, one piece at a time.

A token may end inside a UTF-8 code point and a stop string may span several tokens, so text is held back
until it is certain: incomplete code points, and any ending that could still become a stop string. What comes
out, and where it stops, depends only on the bytes, never on how they were cut into pieces; a round that
yields five tokens and five rounds that yield one give the same text (tests/unit/test_detokenize.py checks
this for arbitrary splits).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from eaglecpp.errors import InvalidValueError

__all__ = ["Detokenizer"]


class Detokenizer:
    """Incremental UTF-8 decoding with stop strings.

    `stop`: strings that end the text; they are cut off, and so is everything after. The one that is completed
    first wins, the longest of those completed at the same character. `errors`: what becomes of bytes that are
    not UTF-8, as in `bytes.decode`; U+FFFD by default.
    """

    def __init__(self, stop: Iterable[str] = (), errors: str = "replace") -> None:
        stops = tuple(stop)
        if "" in stops:
            raise InvalidValueError("a stop string is empty; it would end every answer at once")
        self._stops = _Stops(stops) if stops else None
        self._state = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors=errors)
        self._held = ""
        self._finished = False
        self.stopped_by: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; from then on no text comes."""
        return self.stopped_by is not None

    def feed(self, piece: bytes) -> str:
        """Takes the bytes of the next token; returns the text that became certain, possibly none."""
        if self._finished:
            raise ValueError("feed() after finish()")
        return self._advance(self._decoder.decode(piece))

    def finish(self) -> str:
        """Returns what was held back: no more bytes will come. Calling it again returns nothing."""
        if self._finished:
            return ""
        self._finished = True
        text = self._advance(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _advance(self, new: str) -> str:
        if self.stopped:
            return ""
        if self._stops is None:
            return new
        text = self._held + new
        for end in range(len(self._held) + 1, len(text) + 1):
            self._state, n_found = self._stops.step(self._state, text[end - 1])
            if n_found:
                self.stopped_by = text[end - n_found : end]
                self._held = ""
                return text[: end - n_found]
        n_sure = len(text) - self._stops.depth[self._state]
        self._held = text[n_sure:]
        return text[:n_sure]


class _Stops:
    """Aho and Corasick's automaton: a step for each character, however many strings are looked for. A state
    is the longest ending of the text that begins a stop string; depth: its length.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [0]  # the next longest ending
        self._found = [0]  # length of the longest stop string that ends here
        self.depth = [0]
        for stop in stops:
            state = 0
            for depth, char in enumerate(stop, 1):
                if char not in self._next[state]:
                    self._next[state][char] = len(self._next)
                    self._next.append({})
                    self.depth.append(depth)
                state = self._next[state][char]
            self._found += [0] * (len(self._next) - len(self._found))
            self._found[state] = len(stop)
        self._shorter = [0] * len(self._next)
        states = list(self._next[0].values())
        for state in states:  # grows: those of the same length stand side by side
            self._found[state] = self._found[state] or self._found[self._shorter[state]]
            for char, longer in self._next[state].items():
                self._shorter[longer] = self._go(self._shorter[state], char)
                states.append(longer)

    def step(self, state: int, char: str) -> tuple[int, int]:
        """The state after one more character, and the length of the stop string that it completes, or 0."""
        state = self._go(state, char)
        return state, self._found[state]

    def _go(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(char, 0)
