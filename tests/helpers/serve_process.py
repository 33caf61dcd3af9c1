# SPDX-License-Identifier: MIT
"""Runs `eaglecpp serve` as a separate process, and clients that check that other requests do not slow them
down. The server has one thread, because two threads would wait for each other on a busy machine.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import requests

QUICK = ("-c", "512", "--exact", "off")
"""Options for a server that starts quickly."""
_START_S = 300.0


def free_port() -> int:
    """Returns an unused port of 127.0.0.1."""
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
    program: Sequence[str] = ("-m", "eaglecpp"),
) -> subprocess.Popen[bytes]:
    """Starts a server on this port. Raises RuntimeError if the server does not start."""
    command = [
        sys.executable, "-P",  # with -P, Python does not import the checkout, which has no extension
        *program, "serve", str(model), "--port", str(port), "-t", "1", *options,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    end = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            requests.get(f"http://127.0.0.1:{port}/health", timeout=5).raise_for_status()
            return process
        except requests.RequestException:
            time.sleep(0.05)
    process.kill()
    raise RuntimeError(f"the server did not start; its status is {process.wait()}")


@contextlib.contextmanager
def running_server(model: str | Path, *options: str, **settings: Any) -> Iterator[str]:
    """Starts a server and yields its address. At the end of the `with` block Ctrl+C must end the server
    without an error. settings: keyword arguments of `start_server`.
    """
    port = free_port()
    process = start_server(model, port, *options, **settings)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    assert code == 0, f"the server ended with {code}"


class Bystanders:
    """`with Bystanders(url, model)`: until the block ends, one thread polls `/health` and another reads
    streams.

    longest: longest wait of each thread in seconds. texts: texts of the complete streams. errors: failures of
    both threads.
    """

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model = url, model
        self.longest = {"health": 0.0, "stream": 0.0}
        self.texts: set[str] = set()
        self.errors: list[str] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(f,)) for f in (self._health, self._stream)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, once: Callable[[], None]) -> None:
        try:
            while not self._over.is_set():
                once()
        except Exception as error:
            self.errors.append(repr(error)[:300])

    def _note(self, what: str, since: float) -> float:
        now = time.monotonic()
        self.longest[what] = max(self.longest[what], now - since)
        return now

    def _health(self) -> None:
        start = time.monotonic()
        assert requests.get(f"{self.url}/health", timeout=60).status_code == 200
        self._note("health", start)
        time.sleep(0.05)

    def _stream(self) -> None:
        """Reads one stream to its end. Returns early if the server has no free slot."""
        options = {"num_predict": 200, "ignore_eos": True, "temperature": 0}
        body = {"model": self.model, "prompt": "What is len?", "options": options}
        last, rows = time.monotonic(), []
        with requests.post(f"{self.url}/api/generate", json=body, timeout=60, stream=True) as answer:
            if answer.status_code == 503:
                return
            assert answer.status_code == 200, answer.text[:200]
            for line in answer.iter_lines():
                last = self._note("stream", last)
                rows.append(json.loads(line))
        assert rows[-1]["done"], f"the stream ended without a done event: {rows[-1]}"
        self.texts.add("".join(row["response"] for row in rows))
