# SPDX-License-Identifier: MIT
"""What files that grow over several runs have in common: writing on behind what is whole, and a header that
says what they are for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from eaglecpp.errors import DataError

__all__ = ["as_line", "differences", "locked", "open_behind", "write_line"]


@contextmanager
def open_behind(path: Path, n_bytes: int) -> Iterator[BinaryIO]:
    """The file, made if need be, for writing behind its first `n_bytes`; the torn rest is cut off."""
    path.touch()
    with path.open("r+b") as stream:
        stream.truncate(n_bytes)
        stream.seek(n_bytes)
        yield stream


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The expected values that a header has otherwise, for a message; "" when it has them all."""
    return "; ".join(
        f"{key}: expected {value}, found {found.get(key)}"
        for key, value in expected.items()
        if found.get(key) != value
    )


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Nobody else writes `out` meanwhile. Raises `DataError` when another process does."""
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{out}.lock", timeout=0):
            yield
    except Timeout:
        raise DataError(f"{out}: another process is writing this file; wait for it") from None


def write_line(stream: BinaryIO, entry: dict[str, Any]) -> None:
    """One line of JSON, handed to the system at once: a kill loses what is under way and nothing else."""
    stream.write(as_line(entry))
    stream.flush()


def as_line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"
