# SPDX-License-Identifier: MIT
"""What files that grow over several runs have in common: writing on behind what is whole, and a header that
says what they are for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["differences", "open_behind"]


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
