# SPDX-License-Identifier: MIT
"""Announces the address of this user's `eaglecpp serve` on this machine, so that `eaglecpp run` finds the
server.

`server.json` in the user's data folder contains the address. The server locks a file next to `server.json`
while it runs. If that lock is free, the server was killed, and its address is ignored. So another program on
the same port receives no requests.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from eaglecpp.data_dir import data_dir
from eaglecpp.files import make_folder, read_json, replace_bytes
from eaglecpp.store.layout import default_root

_PATIENCE_S = 1.0  # maximum seconds to wait for the lock, which `find_server` holds only briefly


@contextlib.contextmanager
def announced(address: str) -> Iterator[None]:
    """Announces the server's address until the `with` block ends. If several servers run, only the first is
    announced. If the user's data folder is read-only, no server is announced.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, Timeout):
            stack.enter_context(_lock().acquire(timeout=_PATIENCE_S))
            record = {"address": address, "models": str(default_root())}
            replace_bytes(_file(), json.dumps(record).encode(), mode=0o600)
            stack.callback(_file().unlink, missing_ok=True)
        yield


def find_server() -> str | None:
    """Returns the address of this user's running server, or None."""
    try:
        record = read_json(_file())
        address = str(record["address"])
        # the other server uses another model store than this process
        if record["models"] != str(default_root()):
            return None
        _lock().acquire(timeout=0).lock.release()
    except Timeout:  # a running server holds the lock
        return address
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _file() -> Path:
    return data_dir() / "server.json"


def _lock() -> FileLock:
    folder = data_dir()
    make_folder(folder)
    return FileLock(folder / "server.lock", mode=0o644, is_singleton=False)
