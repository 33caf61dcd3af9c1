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
        self._stop = tuple(stop)
        if "" in self._stop:
            raise InvalidValueError("a stop string is empty; it would end every answer at once")
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
        text = self._held + new
        found = [(start + len(stop), start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        if found:
            _, start, self.stopped_by = min(found)
            self._held = ""
            return text[:start]
        n_held = max((_overlap(text, stop) for stop in self._stop), default=0)
        n_sure = len(text) - n_held
        self._held = text[n_sure:]
        return text[:n_sure]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest ending of `text` that begins `stop`, without being all of it."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
