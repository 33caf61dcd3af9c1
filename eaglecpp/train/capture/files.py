# SPDX-License-Identifier: MIT
"""What files that grow over several runs have in common: appending after the last complete line, and a header
that says what the file belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from eaglecpp.errors import DataError

__all__ = ["as_line", "differences", "locked", "open_behind", "read_entries", "write_line"]


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


def read_entries(
    out: Path, header: Mapping[str, Any], what: str, take: Callable[[str, dict[str, Any]], None]
) -> int:
    """Hands the lines behind the header of a file that is gone on with to `take`: their place, for messages,
    and what they say. Returns how many bytes are whole lines: 0 for a file that is not there. A half line,
    which a killed run leaves, is passed over.

    what: of what kind the lines are, in the plural, for messages
    Raises DataError for a file of something else and for one with another header.
    """
    if not out.exists():
        return 0
    is_other = f"{out}: expected {what} of an earlier run, found something else; name another file"
    n_bytes = 0
    with out.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            place = f"{out}:{number}"
            if not line.endswith(b"\n"):
                if number == 1 and not as_line(header).startswith(line):
                    raise DataError(is_other)
                break
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            if number == 1:
                if not isinstance(entry, dict) or entry.get("format") != header["format"]:
                    raise DataError(is_other)
                differing = differences(header, entry)
                if differing:
                    raise DataError(
                        f"{out}: these {what} were made with another target or other settings "
                        f"({differing}); name another file, or delete this one"
                    )
            elif not isinstance(entry, dict) or type(entry.get("index")) is not int:
                raise DataError(
                    f"{place}: expected one of the {what}, found {line[:60]!r}; name another file"
                )
            else:
                take(place, entry)
            n_bytes += len(line)
    return n_bytes


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


def as_line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"
