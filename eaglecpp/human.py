# SPDX-License-Identifier: MIT
"""Formats and parses numbers for people. Sizes of files and memory are in powers of 1000, as for disks,
downloads and in Ollama. Only units such as MiB are powers of 1024.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from eaglecpp.errors import InvalidValueError

_SYMBOLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_SYMBOLS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_SYMBOLS |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)  # bidirectional controls


_DURATION_CHARS = 100
_NUMBER = "[0-9]+[.]?[0-9]*|[.][0-9]+"
_DURATION = re.compile(f"([+-]?)(?:({_NUMBER})|((?:(?:{_NUMBER})(?:ns|us|µs|ms|s|m|h))+))")
_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB"))
_PART = re.compile(f"({_NUMBER})(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def human_bytes(n_bytes: float | None) -> str:
    """Formats a size in powers of 1000, rounded as in Ollama: 1.3 GB, 98 MB, 512 B; "?" for an unknown
    size.
    """
    if n_bytes is None:
        return "?"
    size, unit = next((one for one in _UNITS if n_bytes >= one[0]), (1, "B"))
    digits = 1 if unit != "B" and n_bytes < 10 * size else 0
    return f"{n_bytes / size:.{digits}f} {unit}"


def counted(n: int, noun: str) -> str:
    """Formats a number with its noun, such as "1 token" or "2 tokens"."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def visible(text: str) -> str:
    """Returns a text with visible symbols in place of control characters, except line ends and tabs."""
    return text.translate(_SYMBOLS)


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Returns the name most similar to a mistyped word; None if no name is similar. cutoff: required
    similarity, 0 to 1
    """
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(names), n=1, cutoff=cutoff)), None)


def n_bytes_of(text: str) -> int:
    """Parses a size such as 512M, 8 GB or 8GiB into bytes. Raises InvalidValueError."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]+)?) ?([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None or (match[3] and not match[2]):
        raise InvalidValueError(f"{text!r}: expected a size such as 512M or 8G")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " "))


def n_seconds_of(text: str) -> float:
    """Parses a duration such as 30, 5m or -1h30m into seconds. Raises InvalidValueError."""
    match = _DURATION.fullmatch(text.strip()) if len(text) <= _DURATION_CHARS else None
    if match is None:
        raise InvalidValueError(f"{text[:80]!r}: expected seconds, or a duration such as 5m")
    sign, seconds, parts = match.groups()
    length = float(seconds) if seconds else sum(float(n) * _SECONDS[u] for n, u in _PART.findall(parts))
    return -length if sign == "-" else length
