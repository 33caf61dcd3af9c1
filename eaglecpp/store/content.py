# SPDX-License-Identifier: MIT
"""Files of a store: addressed by digest, linked to the user's files instead of copied, and locked.

Locks are file locks of the operating system, so a killed process leaves no lock behind. The store's lock is
held only briefly (for renames and small files), and a blob's lock for the whole download. No process waits
for a blob's lock while it holds another lock, so deadlocks cannot occur.
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
"""Device, inode, size and mtime in ns; changes whenever the content of a file changes."""
_CHUNK = 4 << 20
_SPARE = 64 << 20
"""Bytes of disk space that a download or copy leaves free."""
MORE_ROOM = "free some space (eaglecpp rm), or set EAGLECPP_MODELS to another disk"
_PATIENCE_S = 120.0


def file_digest(path: Path, report: Report = silent, step: Status | None = None) -> str:
    """Returns `sha256:` and the hex digest of a file's content. step: the status to report. The function adds
    the byte counts to it.
    """
    sha, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            sha.update(chunk)
            done += len(chunk)
            if step is not None:
                report(replace(step, total=total, completed=done))
    return f"sha256:{sha.hexdigest()}"


def file_state(path: Path) -> FileState:
    """Returns the state of a file, to detect later changes. Raises OSError."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def known_digest(path: Path) -> str:
    """Like `file_digest`, but cached in this process for each state of a file."""
    return _known_digest(path, file_state(path))


@lru_cache(maxsize=256)
def _known_digest(path: Path, state: FileState) -> str:
    return file_digest(path)


def same_content(one: Path, other: Path) -> bool:
    """Returns whether two model files of equal size are copies of each other. Compares only the first and
    last 4 MiB, because reading the whole files takes seconds. This suffices, because the last weights of a
    fine-tune differ too.
    """
    ends = []
    for path in (one, other):
        with path.open("rb") as file:
            ends.append(file.read(_CHUNK))
            file.seek(-len(ends[-1]), os.SEEK_END)
            ends.append(file.read())
    return ends[:2] == ends[2:]


def is_sound(blob: Path, digest: str, size: int) -> bool:
    """Returns whether a blob exists with this content. The content of a blob that is also a user's file is
    hashed, because the user may have changed the file.
    """
    try:
        stat = blob.stat()
    except FileNotFoundError:
        return False
    return stat.st_size == size and (stat.st_nlink == 1 or known_digest(blob) == digest)


def check_space(folder: Path, n_bytes: int, what: str) -> None:
    """Raises StoreError if the disk of `folder` has less than `n_bytes` of free space."""
    free = shutil.disk_usage(folder).free
    if n_bytes + _SPARE > free:
        needs, has = human_bytes(n_bytes), human_bytes(free)
        raise StoreError(f"not enough space for {what}: needs {needs}, {folder} has {has} free; {MORE_ROOM}")


@contextlib.contextmanager
def lock_store(root: Path, digest: str = "", report: Report = silent) -> Iterator[None]:
    """Locks manifests and blobs until the `with` block ends. If a digest is given, locks only the partial
    file of the blob with this digest.

    Raises StoreError after two minutes. With a digest, waits without a time limit, and reports the waiting.
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
        busy = f"another process has held the store's lock for {_PATIENCE_S:.0f} s; end it if it is stuck"
        raise StoreError(f"{root}: {busy}") from None
    except OSError as error:
        raise StoreError(f"cannot write to {path.parent}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release(force=True)


def try_lock(folder: Path) -> BaseFileLock:
    """Takes and returns the lock of a folder. Raises Timeout if another process holds this lock."""
    lock = FileLock(folder / "lock", mode=0o644, is_singleton=False)
    lock.acquire(timeout=0)
    return lock
