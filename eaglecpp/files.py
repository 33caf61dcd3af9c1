# SPDX-License-Identifier: MIT
"""Files that are whole or absent: written under another name, flushed to the disk, renamed.

A reader, or a kill, sees the old content or the new one. `eaglecpp.convert` has a helper of its own, because
it imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["fingerprint", "link", "replace_bytes", "replaced", "sync"]


@contextlib.contextmanager
def replaced(path: Path, *, mode: int | None = None) -> Iterator[Path]:
    """A temporary file beside `path`, to be written in the block; it is renamed to it when the block ends
    well and removed when it does not. The folder is made if it is missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(_usual_mode(path) if mode is None else mode)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def replace_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Writes a file in one step."""
    with replaced(path, mode=mode) as temporary:
        temporary.write_bytes(data)


def fingerprint(path: Path) -> str:
    """Tells files apart without reading gigabytes: the size and 65 pieces spread over the file, hashed."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for i in range(65):
            file.seek(max(0, size - 4096) * i // 64)
            digest.update(file.read(4096))
    return digest.hexdigest()[:16]


def link(file: Path, path: Path) -> None:
    """Makes `file` readable as `path` too, without a copy. Raises OSError where that cannot be: Windows lets
    only administrators and developers make symbolic links, and a hard link does not leave its volume.
    """
    real = file.resolve()  # a hard link to a symbolic one would be another symbolic one, in another folder
    try:
        os.link(real, path)
    except OSError:
        path.symlink_to(real)


def _usual_mode(path: Path) -> int:
    """The old file's mode, or what a plain open() would give; mkstemp's 0600 would surprise."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def sync(path: Path) -> None:
    """Asks the system to put a file, or the names in a folder, onto the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder, and needs no such call
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
