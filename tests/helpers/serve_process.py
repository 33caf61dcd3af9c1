# SPDX-License-Identifier: MIT
"""`eaglecpp serve` as a process of its own, with one thread: two wait for each other where others compute."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import requests

QUICK = ("-c", "512", "--exact", "off")
"""Options of a server that is there soon."""
_START_S = 300.0


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start_server(
    model: str | Path,
    port: int,
    *options: str,
    output: int | IO[bytes] | None = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A server that answers on that port. Raises RuntimeError when it does not start."""
    command = [
        sys.executable, "-P",  # not the checkout, which has no extension
        "-m", "eaglecpp", "serve", str(model), "--port", str(port), "-t", "1", *options,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    end = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            requests.get(f"http://127.0.0.1:{port}/health", timeout=5)
            return process
        except requests.RequestException:
            time.sleep(0.05)
    process.kill()
    raise RuntimeError(f"the server did not start; its status is {process.wait()}")
