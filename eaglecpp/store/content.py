# SPDX-License-Identifier: MIT
"""Files of a store: shared instead of copied where the system can, and known by their digest.

`share` prefers a copy-on-write clone (same space as a link, and later changes to one side stay there), then a
hard link; `place` copies when neither works.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from eaglecpp.human import human_bytes
from eaglecpp.store.errors import Report, Status, StoreError, silent

__all__ = [
    "FileState",
    "Placed",
    "check_space",
    "file_digest",
    "file_state",
    "known_digest",
    "place",
    "read_small",
    "share",
]

Placed = Literal["clone", "link", "copy"]
FileState = tuple[int, int, int, int]
"""Device, inode, size and mtime in ns: another content of a file has another one."""
_CHUNK = 4 << 20
_FICLONE = 0x40049409  # linux/fs.h
_SPARE = 64 << 20
"""Bytes of the disk that are left alone."""


def read_small(path: Path, limit: int) -> bytes:
    """The content of a file, of a longer one `limit` + 1 bytes, which whoever reads them refuses."""
    with path.open("rb") as stream:
        return stream.read(limit + 1)


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


def share(source: Path, destination: Path) -> Placed | None:
    """Makes `destination` (which must not exist) the content of `source` without taking space for it.

    None, and nothing made, when the system cannot: another file system, or a file that is not ours to link.
    """
    source = Path(os.path.realpath(source))
    if _clone(source, destination):
        return "clone"
    with contextlib.suppress(OSError):
        os.link(source, destination)
        return "link"
    return None


def place(source: Path, destination: Path) -> Placed:
    """As `share`, but copies when it must.

    Raises StoreError when the disk is too full for the copy, OSError for the rest.
    """
    shared = share(source, destination)
    if shared is not None:
        return shared
    check_space(destination.parent, source.stat().st_size, f"a copy of {source}")
    shutil.copyfile(source, destination)
    return "copy"


def check_space(folder: Path, n_bytes: int, what: str) -> None:
    """Raises StoreError when the disk of `folder` has no room for `n_bytes` more."""
    free = shutil.disk_usage(folder).free
    if n_bytes + _SPARE > free:
        raise StoreError(
            f"not enough room for {what}: it needs {human_bytes(n_bytes)}, {folder} has "
            f"{human_bytes(free)} free; free some space (eaglecpp rm), or set EAGLECPP_MODELS to another disk"
        )


def _clone(source: Path, destination: Path) -> bool:
    if sys.platform == "darwin":
        clonefile = getattr(ctypes.CDLL(None), "clonefile", None)
        return clonefile is not None and clonefile(os.fsencode(source), os.fsencode(destination), 0) == 0
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        with source.open("rb") as old, destination.open("xb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
    except OSError:
        destination.unlink(missing_ok=True)
        return False
    return True
