# SPDX-License-Identifier: MIT
"""File helpers: opens only regular files, and writes atomically.

The rest of eaglecpp imports these helpers from `eaglecpp.files`. They are defined here because `convert` must
not import eaglecpp.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import fcntl

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_MAX_LEVELS = 64


class NotAFileError(OSError):
    """A path is neither a file nor a folder. Reading a pipe could wait forever, and reading a device could
    never end.
    """

    def __init__(self, path: Path, mode: int) -> None:
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        super().__init__(errno.EINVAL, f"expected a file, found {kind}", str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def open_regular(path: Path) -> io.BufferedReader:
    """Opens a file for reading. Raises NotAFileError for a pipe or device, without blocking, and OSError like
    `open`.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    status = path.stat()  # the type is checked before opening, because opening a device may have an effect
    if not stat.S_ISREG(status.st_mode):
        raise NotAFileError(path, status.st_mode)
    handle = os.open(path, flags)  # if the path has become a pipe, `flags` keeps this call from blocking
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise NotAFileError(path, mode)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_limited(path: Path, limit: int) -> bytes:
    """Returns a file's content, at most `limit` + 1 bytes, so that the caller can reject a longer file."""
    with open_regular(path) as file:
        return file.read(limit + 1)


def read_json(path: Path, limit: int = 16 << 20) -> Any:
    """Reads a JSON file, which may be damaged. Raises OSError. Raises ValueError for content that is not
    JSON, is longer than `limit` bytes, or is nested too deeply. The nesting is limited, because recursion
    over the value may have less stack than the parser.
    """
    data = read_limited(path, limit)
    if len(data) > limit:
        raise ValueError(f"expected at most {limit} bytes, found more")
    try:
        value = json.loads(data)
        is_deep = is_deeper(value, _MAX_LEVELS)
    except RecursionError:
        is_deep = True
    if is_deep:
        raise ValueError(f"expected at most {_MAX_LEVELS} nested levels, found more")
    return value


def is_deeper(value: Any, n_levels: int) -> bool:
    """Returns whether objects and lists in a JSON value are nested more than `n_levels` levels deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(n_levels):
        inner = (node.values() if isinstance(node, dict) else node for node in level)
        level = [entry for entries in inner for entry in entries if isinstance(entry, dict | list)]
        if not level:
            return False
    return True


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Creates a folder and its missing parents. mode: permissions, reduced by the umask."""
    if not path.is_dir():
        if path.parent != path:
            make_folder(path.parent, mode)
        path.mkdir(mode, exist_ok=True)


@contextlib.contextmanager
def replaced(path: Path, *, mode: int | None = None) -> Iterator[Path]:
    """Yields a temporary file next to `path`. If the `with` block succeeds, the temporary file replaces
    `path`. If the block fails, the temporary file is removed. Creates a missing folder, and removes temporary
    files of killed processes first. mode: permissions; None = the permissions of the old file, or 0644 minus
    the umask.
    """
    make_folder(path.parent)
    ours = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{8}\.tmp")
    # the user may be allowed to write to a folder but not to list it
    with contextlib.suppress(PermissionError):
        for leftover in [other for other in path.parent.iterdir() if ours.fullmatch(other.name)]:
            remove_leftover(leftover)
    if mode is None and path.exists():
        mode = stat.S_IMODE(path.stat().st_mode)
    handle, temporary = _temporary(path, 0o644 if mode is None else mode)
    try:
        usual = stat.S_IMODE(os.fstat(handle).st_mode)
        if sys.platform == "win32":
            os.close(handle)  # Windows cannot rename an open file
        yield temporary
        temporary.chmod(usual if mode is None else mode)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        if sys.platform != "win32":
            os.close(handle)


def _temporary(path: Path, mode: int) -> tuple[int, Path]:
    """Creates an empty temporary file. The file stays locked while it is open, so a temporary file without a
    lock is left over from a killed process.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        if _locked(handle) is not False and temporary.exists():
            return handle, temporary
        os.close(handle)  # another process removed the file as a leftover before it was locked


def remove_leftover(path: Path) -> None:
    """Removes a temporary file if the process that created it was killed. Keeps the file of a running
    process.
    """
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            return  # without locks, a file of a killed process looks the same as a file of a running process
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if _locked(handle):
                path.unlink()
        finally:
            os.close(handle)


def _locked(handle: int) -> bool | None:
    """Tries to lock a file. Returns True on success, False if another process holds the lock, None if the
    system has no file locks.
    """
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def sync(path: Path) -> None:
    """Flushes a file, or a folder's entries, to the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder, and does not need to flush it
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
