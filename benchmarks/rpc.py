# SPDX-License-Identifier: MIT
"""What drafting gains where the target is on other machines: two RPC servers on the loopback interface,
behind a proxy that delays what goes each way. Speed over plain decoding with the same delay, in turns.

    GGML_BACKEND_PATH=.../libggml-rpc.so python benchmarks/rpc.py TARGET.gguf DRAFT.gguf [--delays 0,1,5]

A llama.cpp with the RPC backend needs no GGML_BACKEND_PATH. `python tests/run.py gpu` builds one and keeps it
under ~/.cache/eaglecpp-tests.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from typing import Any

from common import arguments, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import eaglecpp
from helpers.rpc_server import RpcServer

PROMPT = "Write a Python class for a queue with a maximum length, with its tests."


class DelayingProxy:
    """Hands on what comes, `delay` seconds later, in order and at full bandwidth."""

    def __init__(self, port: int, delay: float) -> None:
        self._port, self._delay = port, delay
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._port))
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pump(one, other)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        queue: Queue[tuple[float, bytes]] = Queue()

        def read() -> None:
            while True:
                try:
                    data = source.recv(1 << 18)
                except OSError:
                    data = b""
                queue.put((time.monotonic() + self._delay, data))
                if not data:
                    return

        def write() -> None:
            while True:
                due, data = queue.get()
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    sink.sendall(data) if data else sink.shutdown(socket.SHUT_WR)
                except OSError:
                    return
                if not data:
                    return

        for work in (read, write):
            threading.Thread(target=work, daemon=True).start()


def run_proxies(ports: list[int], delay: float, parent: Connection) -> None:
    """In a process of its own: threads of the engine's would wait for each other."""
    parent.send([DelayingProxy(port, delay).endpoint for port in ports])
    parent.recv()  # until told, or until the parent is gone


@contextmanager
def proxies(ports: list[int], delay: float) -> Iterator[tuple[str, ...]]:
    """Endpoints of delaying proxies, one before each port."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=run_proxies, args=(ports, delay, there), daemon=True
    )
    child.start()
    try:
        yield tuple(here.recv())
    finally:
        child.terminate()
        child.join()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--delays", default="0,1,5", help="milliseconds each way")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--strategies", default="off,chain:3,chain:6,auto")
    args = parser.parse_args()
    names = args.strategies.split(",")
    rows = []
    for delay in (float(text) for text in args.delays.split(",")):
        found = measure(args, names, delay)
        plain = statistics.median(speed for speed, _ in found["off"])
        for name in names:
            speed = statistics.median(speed for speed, _ in found[name])
            length = statistics.mean(length for _, length in found[name])
            rows.append([f"{delay:g}", name, f"{speed:.1f}", f"{speed / plain:.2f}", f"{length:.2f}"])
    print(table(["ms each way", "strategy", "tokens/s", "over plain", "tokens a round"], rows))


def measure(args: argparse.Namespace, names: list[str], delay: float) -> dict[str, list[tuple[float, float]]]:
    """(tokens per second, tokens a round) of each strategy; the first turn warms up."""
    servers = [RpcServer(), RpcServer()]
    try:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "planner_cache": False, "exact": "off"}
        with (
            proxies([server.port for server in servers], delay / 1000) as rpc,
            eaglecpp.Engine.open(args.target, args.draft, rpc=rpc, **options) as engine,
        ):
            prompt: str | list[int] = PROMPT
            if engine.has_chat_template:
                prompt = engine.chat_prompt([{"role": "user", "content": PROMPT}])
            for turn in range(args.repeats + 1):
                for name in names:
                    engine.clear()
                    done = engine.generate(
                        prompt, max_tokens=args.tokens, temperature=0.0, ignore_eos=True, strategy=name
                    )
                    stats = done.timings
                    speed = 1000 * (stats.predicted_n - 1) / stats.predicted_ms
                    if turn > 0:
                        found[name].append((speed, stats.predicted_n / max(1, stats.rounds)))
        return found
    finally:
        for server in servers:
            server.kill()


if __name__ == "__main__":
    main()
