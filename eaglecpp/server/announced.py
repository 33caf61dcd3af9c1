# SPDX-License-Identifier: MIT
"""The address of this user's `eaglecpp serve` on this machine, for `run`.

`server.json` in the user's folder has the address, and the server locks a file next to it while it runs. So
the address of a killed server is ignored, and another program on its port receives nothing.
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

_PATIENCE_S = 1.0  # `find_server` holds the lock only briefly


@dataclass(frozen=True)
class Address:
    """Address of a server on this machine."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def reached_as(host: str) -> str:
    """Returns the address at which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)


@contextlib.contextmanager
def announced(address: Address) -> Iterator[None]:
    """Announces the server for the block. Only the first of several servers is announced, and none if the
    folder is read-only.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, Timeout):
            stack.enter_context(_lock().acquire(timeout=_PATIENCE_S))
            record = {"host": address.host, "port": address.port, "models": str(default_root())}
            replace_bytes(_file(), json.dumps(record).encode(), mode=0o600)
            stack.callback(_file().unlink, missing_ok=True)
        yield


def find_server() -> Address | None:
    """Returns the address of the running server, or None."""
    try:
        record = read_json(_file())
        address = Address(str(record["host"]), int(record["port"]))
        if record["models"] != str(default_root()):  # this process has another EAGLECPP_MODELS
            return None
        _lock().acquire(timeout=0).lock.release()
    except Timeout:  # the server holds its lock
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
