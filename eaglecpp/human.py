# SPDX-License-Identifier: MIT
"""Numbers as people read them, and what they may have meant. Sizes are in powers of 1000, as disks, downloads
and Ollama count; memory in powers of 1024, as systems count theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from eaglecpp.errors import InvalidValueError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name that a mistyped word is most like; None if it is like none. cutoff: how like, of 1"""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(names), n=1, cutoff=cutoff)), None)


def human_bytes(n_bytes: float) -> str:
    """1.3 GB, 98.4 MB, 12.0 KB, 512 B."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if n_bytes > size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes:.0f} B"


def human_memory(n_bytes: float | None) -> str:
    """7.6 GiB, 12.5 MiB; "?" for what is not known."""
    if n_bytes is None:
        return "?"
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 / 10 else f"{n_bytes / 2**20:.1f} MiB"


def n_bytes_of(text: str) -> int:
    """Of a size such as 512M or 8G, in powers of 1024. Raises InvalidValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise InvalidValueError(f"{text!r}: expected a size such as 512M or 8G")
    return int(float(match[1]) * _UNITS[match[2].upper()])
