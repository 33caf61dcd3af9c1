# SPDX-License-Identifier: MIT
"""Files that are whole or absent: written under another name, flushed to the disk, renamed.

A reader, or a kill, sees the old content or the new one. Much of it lives in `eaglecpp.convert.files`,
because `convert` imports nothing of ours.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from eaglecpp.convert import files as of_convert
from eaglecpp.errors import InvalidValueError

NotAFileError = of_convert.NotAFileError
check_regular = of_convert.check_regular
make_folder = of_convert.make_folder
open_regular = of_convert.open_regular
read_limited = of_convert.read_limited
remove_leftover = of_convert.remove_leftover
replaced = of_convert.replaced
sync = of_convert.sync


def make_private(path: Path) -> None:
    """Makes a folder, with its missing parents, that only its user can read. Tightens an existing folder."""
    make_folder(path, 0o700)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)


def replace_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Writes a file in one step."""
    with replaced(path, mode=mode) as temporary:
        temporary.write_bytes(data)


def read_json(path: Path, limit: int = 16 << 20) -> Any:
    """A value of a file of ours, which may be damaged. Raises OSError, and ValueError for what is not JSON,
    too long or too deep.
    """
    data = read_limited(path, limit)
    if len(data) > limit:
        raise InvalidValueError(f"{path}: more than {limit} bytes")
    try:
        return json.loads(data)
    except RecursionError:
        raise InvalidValueError(f"{path}: nested too deeply") from None


def exists(path: Path) -> bool:
    """Whether something is there; nothing is where the path cannot be one, being too long, say, or holding a
    NUL. Raises OSError where that cannot be known.
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
    """Tells files apart without reading gigabytes: the size and 65 pieces spread over the file, hashed."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with open_regular(path) as file:
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
