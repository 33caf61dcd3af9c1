# SPDX-License-Identifier: MIT
"""Whether an answer repeats itself to no end: such text is drafted too well to say anything about speed, and
teaches a drafter nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

_TOKENS = 48
"""A tail that repeats itself over so many tokens, and at least four times, is a loop."""
_PERIOD = 64


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether a text ends in repetitions of its last few words."""
    for period in range(1, min(_PERIOD, len(tokens) // 4) + 1):
        n = max(4 * period, -(-_TOKENS // period) * period)
        if n <= len(tokens) and tokens[-n:-period] == tokens[-n + period :]:
            return True
    return False
