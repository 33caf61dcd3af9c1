# SPDX-License-Identifier: MIT
"""Files on disk that survive a kill: whole or absent, shared instead of copied where the system can.

`share` prefers a copy-on-write clone (same space as a link, and later changes to one side stay there), then a
hard link; `place` copies when neither works.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

from eaglecpp.store.errors import StoreError

__all__ = ["Placed", "check_space", "place", "read_small", "replace_bytes", "share", "sync"]

Placed = Literal["clone", "link", "copy"]
_FICLONE = 0x40049409  # linux/fs.h
_SPARE = 64 << 20
"""Bytes of the disk that are left alone."""


def replace_bytes(path: Path, data: bytes) -> None:
    """Writes a file in one step: a reader, or a kill, sees the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
        sync(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_small(path: Path, limit: int) -> bytes:
    """The content of a file, of a longer one `limit` + 1 bytes, which whoever reads them refuses."""
    with path.open("rb") as stream:
        return stream.read(limit + 1)


def sync(path: Path) -> None:
    """Asks the system to put a file, or the names in a folder, onto the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder, and needs no such call
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
            f"not enough room for {what}: it needs {_gigabytes(n_bytes)}, {folder} has {_gigabytes(free)} "
            "free; make room (eaglecpp rm), or set EAGLECPP_MODELS to another disk"
        )


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB"


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
