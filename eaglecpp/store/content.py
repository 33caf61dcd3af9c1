# SPDX-License-Identifier: MIT
"""Files of a store: known by their digest, and shared with a user's file instead of copied."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from eaglecpp.human import human_bytes
from eaglecpp.store.errors import Report, Status, StoreError, silent

FileState = tuple[int, int, int, int]
"""Device, inode, size and mtime in ns: another content of a file has another one."""
_CHUNK = 4 << 20
_SPARE = 64 << 20
"""Bytes of the disk that are left alone."""


def file_digest(path: Path, report: Report = silent, step: Status | None = None) -> str:
    """`sha256:` and the hex digest of a file's content. step: what is reported, with the bytes filled in."""
    sha, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            sha.update(chunk)
            done += len(chunk)
            if step is not None:
                report(replace(step, total=total, completed=done))
    return f"sha256:{sha.hexdigest()}"


def file_state(path: Path) -> FileState:
    """What tells that a file is still the one that was read. Raises OSError."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def known_digest(path: Path) -> str:
    """As `file_digest`, computed once in this process for each state of a file."""
    return _known_digest(path, file_state(path))


@lru_cache(maxsize=256)
def _known_digest(path: Path, state: FileState) -> str:
    return file_digest(path)


def is_sound(blob: Path, digest: str, size: int) -> bool:
    """Whether a blob is there with this content. One that is a user's file as well may have been changed, so
    it is read.
    """
    try:
        stat = blob.stat()
    except FileNotFoundError:
        return False
    return stat.st_size == size and (stat.st_nlink == 1 or known_digest(blob) == digest)


def check_space(folder: Path, n_bytes: int, what: str) -> None:
    """Raises StoreError when the disk of `folder` has no room for `n_bytes` more."""
    free = shutil.disk_usage(folder).free
    if n_bytes + _SPARE > free:
        raise StoreError(
            f"not enough room for {what}: it needs {human_bytes(n_bytes)}, {folder} has "
            f"{human_bytes(free)} free; free some space (eaglecpp rm), or set EAGLECPP_MODELS to another disk"
        )
