# SPDX-License-Identifier: MIT
"""Files of others are opened only if they are files; files of ours are whole or absent; how sizes are said.

`eaglecpp.files` and `eaglecpp.human` have these for everything that is not `convert`, which imports nothing
else of ours.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB"))


def human_bytes(n_bytes: float | None) -> str:
    """A size, in powers of 1000 and as Ollama rounds it: 1.3 GB, 98 MB, 512 B; "?" for what is not known."""
    if n_bytes is None:
        return "?"
    size, unit = next((one for one in _UNITS if n_bytes >= one[0]), (1, "B"))
    digits = 1 if unit != "B" and n_bytes < 10 * size else 0
    return f"{n_bytes / size:.{digits}f} {unit}"


def counted(n: int, noun: str) -> str:
    """1 token, 2 tokens."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


class NotAFileError(OSError):
    """A name of something that cannot be read like a file: a pipe waits for a writer, a device has no end."""

    def __init__(self, path: Path, mode: int) -> None:
        found = _KINDS.get(stat.S_IFMT(mode), "something else")
        super().__init__(errno.EINVAL, f"expected a file, found {found}", str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def check_regular(path: Path) -> None:
    """Raises NotAFileError for what is neither a file nor a folder, FileNotFoundError where nothing is."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise NotAFileError(path, mode)


def open_regular(path: Path) -> io.BufferedReader:
    """Opens a file for reading. Raises NotAFileError, at once, for what is none, OSError as `open` does."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    found = path.stat()  # opening may do something to a device
    if not stat.S_ISREG(found.st_mode):
        raise NotAFileError(path, found.st_mode)
    handle = os.open(path, flags)  # without waiting, should it have become a pipe
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise NotAFileError(path, mode)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_limited(path: Path, limit: int) -> bytes:
    """The content of a file, of a longer one `limit` + 1 bytes, which whoever reads them refuses."""
    with open_regular(path) as file:
        return file.read(limit + 1)


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Makes a folder and its missing parents. The umask can only remove permissions from `mode`."""
    if not path.is_dir():
        if path.parent != path:
            make_folder(path.parent, mode)
        path.mkdir(mode, exist_ok=True)


@contextlib.contextmanager
def replaced(path: Path, *, mode: int | None = None) -> Iterator[Path]:
    """A temporary file beside `path`, to be written in the block; it is renamed to it when the block ends
    well and removed when it does not. What a killed process left there is removed before. The folder is made
    if it is missing. mode: else the old file's, or 0644 less the umask.
    """
    make_folder(path.parent)
    ours = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{8}\.tmp")
    with contextlib.suppress(PermissionError):  # a folder that may be written to, but not listed
        for leftover in [other for other in path.parent.iterdir() if ours.fullmatch(other.name)]:
            remove_leftover(leftover)
    if mode is None and path.exists():
        mode = stat.S_IMODE(path.stat().st_mode)
    handle, temporary = _temporary(path, 0o644 if mode is None else mode)
    try:
        usual = stat.S_IMODE(os.fstat(handle).st_mode)
        if sys.platform == "win32":
            os.close(handle)  # an open file cannot be renamed there
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
    """A new empty file, locked for as long as it is open, which tells it from what a killed process left."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        if _locked(handle) is not False and temporary.exists():
            return handle, temporary
        os.close(handle)  # another process took it for a leftover, between the two lines above


def remove_leftover(path: Path) -> None:
    """Removes a temporary file that a killed process left, and no other."""
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            return  # there is no such lock to tell by
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if _locked(handle):
                path.unlink()
        finally:
            os.close(handle)


def _locked(handle: int) -> bool | None:
    """Whether the lock is ours now; None where the file system has no locks."""
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
    """Asks the system to put a file, or the names in a folder, onto the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder, and needs no such call
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
