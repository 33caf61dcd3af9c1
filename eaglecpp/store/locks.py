# SPDX-License-Identifier: MIT
"""Locks between processes: one for changing the store, one per blob that is being downloaded.

They are locks of the operating system on files, so a killed process holds none. The store's lock is held for
moments (renames and small files), a blob's for as long as its download takes. Nobody waits for a blob's lock
while holding another one, so they cannot block each other forever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from eaglecpp.store.errors import Report, Status, StoreError
from eaglecpp.store.layout import LOCKS, blob_path

_PATIENCE_S = 120.0


@contextlib.contextmanager
def lock_store(root: Path) -> Iterator[None]:
    """Nobody else changes manifests and blobs inside the block. Raises StoreError after two minutes."""
    try:
        with _file_lock(root / LOCKS / "store.lock").acquire(timeout=_PATIENCE_S):
            yield
    except Timeout:
        raise StoreError(
            f"{root}: another process has been changing the store for {_PATIENCE_S:.0f} s; is it stuck?"
        ) from None


@contextlib.contextmanager
def lock_blob(root: Path, digest: str, report: Report) -> Iterator[None]:
    """Nobody else writes to that blob's partial file inside the block; waits, and says so."""
    path = root / LOCKS / f"{blob_path(root, digest).name}.lock"
    lock = _file_lock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(Status("waiting for another process that is downloading this file", digest))
        lock.acquire(poll_interval=0.2)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows keeps an open file
            path.unlink()  # while it is ours: whoever waits for it makes a new one
        lock.release()


def try_lock(folder: Path) -> BaseFileLock:
    """The lock of a folder, which is ours now, until it is released. Raises Timeout where it is taken."""
    lock = FileLock(folder / "lock", is_singleton=False)
    lock.acquire(timeout=0)
    return lock


def _file_lock(path: Path) -> FileLock:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path, is_singleton=False)
    except OSError as error:
        raise StoreError(f"{path.parent}: cannot be written: {error.strerror or error}") from error
