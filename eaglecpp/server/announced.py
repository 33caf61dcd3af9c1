# SPDX-License-Identifier: MIT
"""The server that `eaglecpp serve` runs for this user on this machine: where it listens, for `run`.

`server.json` in the user's folder has the address, and the server holds a lock on the file beside it as long
as it lives. So the address of one that was killed is not believed, and a program that listens there now gets
nothing to read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from eaglecpp.data_dir import data_dir
from eaglecpp.files import make_folder, read_json, replace_bytes
from eaglecpp.store.layout import default_root

_PATIENCE_S = 1.0  # `find_server` holds the lock for a moment


@dataclass(frozen=True)
class Address:
    """Of a server on this machine."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def reached_as(host: str) -> str:
    """What this machine itself reaches a server under that listens there."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)


@contextlib.contextmanager
def announced(address: Address) -> Iterator[None]:
    """Inside the block the server there is found. Of several the first is; a folder that cannot be written
    announces none.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, Timeout):
            stack.enter_context(_lock().acquire(timeout=_PATIENCE_S))
            record = {"host": address.host, "port": address.port, "models": str(default_root())}
            replace_bytes(_file(), json.dumps(record).encode(), mode=0o600)
            stack.callback(_file().unlink, missing_ok=True)
        yield


def find_server() -> Address | None:
    """The server that lives; None without one."""
    try:
        record = read_json(_file())
        address = Address(str(record["host"]), int(record["port"]))
        if record["models"] != str(default_root()):  # EAGLECPP_MODELS says another one here
            return None
        _lock().acquire(timeout=0).lock.release()
    except Timeout:  # it holds its lock
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
