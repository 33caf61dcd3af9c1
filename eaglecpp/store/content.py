# SPDX-License-Identifier: MIT
"""Files of a store: known by their digest, shared with a user's file instead of copied, and locked.

Locks are those of the operating system on files, so a killed process holds none. The store's lock is held for
moments (renames and small files), a blob's for as long as its download takes. Nobody waits for a blob's lock
while holding another one, so they cannot block each other forever.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from eaglecpp.files import make_folder
from eaglecpp.human import human_bytes
from eaglecpp.store.errors import Report, Status, StoreError, silent
from eaglecpp.store.layout import LOCKS, blob_path

FileState = tuple[int, int, int, int]
"""Device, inode, size and mtime in ns: another content of a file has another one."""
_CHUNK = 4 << 20
_SPARE = 64 << 20
"""Bytes of the disk that are left alone."""
MORE_ROOM = "free some space (eaglecpp rm), or set EAGLECPP_MODELS to another disk"
_PATIENCE_S = 120.0


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


def same_content(one: Path, other: Path) -> bool:
    """Whether two model files of one size are copies of each other, told by their beginnings and ends: to
    read all of them takes seconds, and a fine-tune differs in its last weights, too.
    """
    ends = []
    for path in (one, other):
        with path.open("rb") as file:
            ends.append(file.read(_CHUNK))
            file.seek(-len(ends[-1]), os.SEEK_END)
            ends.append(file.read())
    return ends[:2] == ends[2:]


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
        needs, has = human_bytes(n_bytes), human_bytes(free)
        raise StoreError(f"not enough room for {what}: it needs {needs}, {folder} has {has}; {MORE_ROOM}")


@contextlib.contextmanager
def lock_store(root: Path, digest: str = "", report: Report = silent) -> Iterator[None]:
    """Nobody else changes manifests and blobs inside the block; with a digest, nobody else writes to that
    blob's partial file. Raises StoreError after two minutes; for a digest it waits on, and says so.
    """
    path = root / LOCKS / (f"{blob_path(root, digest).name}.lock" if digest else "store.lock")
    try:
        make_folder(path.parent)
        lock = FileLock(path, mode=0o644, is_singleton=False)
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
        if digest and not lock.is_locked:
            report(Status("waiting for another process that is downloading this file", digest))
        lock.acquire(timeout=-1 if digest else _PATIENCE_S)
    except Timeout:
        busy = f"another process has been changing the store for {_PATIENCE_S:.0f} s; is it stuck?"
        raise StoreError(f"{root}: {busy}") from None
    except OSError as error:
        raise StoreError(f"{path.parent}: cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release(force=True)


def try_lock(folder: Path) -> BaseFileLock:
    """The lock of a folder, which is ours now, until it is released. Raises Timeout where it is taken."""
    lock = FileLock(folder / "lock", mode=0o644, is_singleton=False)
    lock.acquire(timeout=0)
    return lock
