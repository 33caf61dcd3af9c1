# SPDX-License-Identifier: MIT
"""Which names are the parts of one split GGUF (`x-00001-of-00003.gguf`), as llama.cpp finds them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["all_parts", "in_order", "part_paths"]

_PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.IGNORECASE)


def in_order(names: Iterable[str]) -> list[str]:
    """The names of one split file in the order of the parts.

    Raises ValueError when they are not exactly the parts of one file.
    """
    matches = [_PART.fullmatch(name) for name in names]
    parts = sorted((m for m in matches if m is not None), key=lambda m: int(m[2]))
    wholes = {(m[1].lower(), int(m[3])) for m in parts}
    if (
        None in matches
        or len(wholes) != 1
        or [int(m[2]) for m in parts] != [*range(1, next(iter(wholes))[1] + 1)]
    ):
        raise ValueError("not all parts of one split file")
    return [m[0] for m in parts]


def all_parts(name: str) -> list[str]:
    """The names of all parts of the split file that `name` is a part of; just `name` for a whole file."""
    match = _PART.fullmatch(name)
    if match is None:
        return [name]
    return [f"{match[1]}-{part:05}-of-{match[3]}.gguf" for part in range(1, int(match[3]) + 1)]


def part_paths(path: Path) -> list[Path]:
    """The parts of a file on the disk that are there, beside it; just `path` when none is."""
    parts = [path.with_name(name) for name in all_parts(path.name)]
    return [part for part in parts if part.is_file()] or [path]
