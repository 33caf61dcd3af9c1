# SPDX-License-Identifier: MIT
"""Atomic file operations: a file is written under another name, flushed to the disk, then renamed.

Even if the process is killed, a reader sees either the old content or the new content. Functions that
`convert` needs too are in `eaglecpp.convert.files`, because `convert` imports no other module of this
package.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

from eaglecpp.convert import files as of_convert

NotAFileError = of_convert.NotAFileError
make_folder = of_convert.make_folder
open_regular = of_convert.open_regular
is_deeper = of_convert.is_deeper
read_json = of_convert.read_json
read_limited = of_convert.read_limited
remove_leftover = of_convert.remove_leftover
replaced = of_convert.replaced
sync = of_convert.sync


def check_regular(path: Path) -> None:
    """Raises NotAFileError unless the path is a file or folder, and FileNotFoundError if the path does not
    exist.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise NotAFileError(path, mode)


def make_private(path: Path) -> None:
    """Creates a folder and its missing parents, readable only by the user. Removes other users' rights from
    an existing folder.
    """
    make_folder(path, 0o700)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)


def replace_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Writes a file atomically."""
    with replaced(path, mode=mode) as temporary:
        temporary.write_bytes(data)


def exists(path: Path) -> bool:
    """Returns whether the path exists. False for an impossible path (too long, or with a NUL). Raises OSError
    if the system cannot tell.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            raise
        return False
    return True


def fingerprint(path: Path) -> str:
    """Returns a hash of a file's size and of 65 samples across the file. The hash identifies the file without
    reading gigabytes.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with open_regular(path) as file:
        for i in range(65):
            file.seek(max(0, size - 4096) * i // 64)
            digest.update(file.read(4096))
    return digest.hexdigest()[:16]


def link(file: Path, path: Path) -> None:
    """Makes `file` readable as `path` too, without a copy. Raises OSError if the file can be linked neither
    by a hard link nor by a symbolic link. A hard link cannot cross volumes, and Windows lets only
    administrators and developers make symbolic links.
    """
    real = file.resolve()  # a hard link to a symbolic link would be another symbolic link
    try:
        os.link(real, path)
    except OSError:
        path.symlink_to(real)
