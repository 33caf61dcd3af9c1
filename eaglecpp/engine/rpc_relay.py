# SPDX-License-Identifier: MIT
"""A relay between ggml's RPC client and a server on another machine, run as a separate program:

    python -I rpc_relay.py HOST:PORT

When a server disappears, ggml aborts the process from one of ggml's threads, and no handler can catch that.
The relay notices the loss before ggml does. The relay prints the reason, and only then answers in place of
the server with zeros of the right sizes, so that ggml continues. The engine reads the reason before the
engine uses a result (native/target/llama_bridge.h).

The relay prints one line with the listening port, or with the reason why the server cannot be used. If the
server is lost later, the relay prints one line with the reason. The relay ends when its input is closed.

The relay uses blocking threads instead of asyncio, because a round exchanges some twenty messages, one after
the other. Protocol: ggml/src/ggml-rpc/ggml-rpc.cpp of the pinned llama.cpp. The relay supports only TCP. It
does not offer RDMA, which RPC peers may negotiate otherwise.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import sys
import threading
from enum import IntEnum
from typing import BinaryIO

CHUNK = 1 << 20
# The first request of ggml: command, size, and 24 bytes of capabilities, which are all zero.
HELLO = bytes((14, 24)).ljust(33, b"\0")
# A server's greeting begins with the protocol version. If a server is lost, the relay sends this greeting
# too, because ggml reconnects to query a device's memory.
GREETING = bytes((7, 0, 0))
GREETING_S = 5.0
# A server counts as lost if no network packet has arrived from it for this time.
IDLE_S, PROBE_S, PROBES = 10, 5, 3


class RpcCmd(IntEnum):
    """ggml's RPC commands that have an answer, and the other commands that the relay handles."""

    ALLOC_BUFFER = 0
    GET_ALIGNMENT = 1
    GET_MAX_SIZE = 2
    BUFFER_GET_BASE = 3
    SET_TENSOR_HASH = 7
    GET_TENSOR = 8
    COPY_TENSOR = 9
    GET_DEVICE_MEMORY = 11
    GET_ALLOC_SIZE = 13
    HELLO = 14
    DEVICE_COUNT = 15


# Number of bytes of the answer to each command. The answer to GET_TENSOR has a variable length, which is the
# last number of the request.
ANSWER_BYTES: dict[int, int] = {
    RpcCmd.ALLOC_BUFFER: 16, RpcCmd.GET_ALIGNMENT: 8, RpcCmd.GET_MAX_SIZE: 8, RpcCmd.BUFFER_GET_BASE: 8,
    RpcCmd.SET_TENSOR_HASH: 1, RpcCmd.COPY_TENSOR: 1, RpcCmd.GET_DEVICE_MEMORY: 16,
    RpcCmd.GET_ALLOC_SIZE: 8, RpcCmd.HELLO: 28, RpcCmd.DEVICE_COUNT: 4,
}  # fmt: skip


def _report(line: object) -> None:
    """Prints a line for the parent process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def greet(address: tuple[str, int]) -> str:
    """Greets a server as llama.cpp does. Returns "" if the server has this version of the protocol, else the
    problem.
    """
    try:
        with socket.create_connection(address, timeout=GREETING_S) as far, far.makefile("rb") as answers:
            far.sendall(HELLO)
            answer = answers.read(36)
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}. Is llama.cpp's rpc-server running there?"
    theirs = answer[8:11]
    if len(answer) < 36 or answer[:8] != ANSWER_BYTES[RpcCmd.HELLO].to_bytes(8, "little"):
        return "the program at this address is not llama.cpp's rpc-server"
    if theirs[0] != GREETING[0] or theirs[1] > GREETING[1]:
        found, expected = (".".join(map(str, version)) for version in (theirs, GREETING))
        return (
            f"expected protocol version {expected}, found {found}; use rpc-server of the same llama.cpp "
            "release"
        )
    return ""


class Relay(socketserver.ThreadingTCPServer):
    """Relays ggml's connections to one server. A lost server stays lost, because a new server at the same
    address lacks the buffers of the lost server.
    """

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        host, _, port = endpoint.rpartition(":")
        self.far_address = host, int(port)
        self.is_lost = False
        self._lock = threading.Lock()

    def lose(self, why: str) -> None:
        with self._lock:
            if not self.is_lost:
                _report(why)
                self.is_lost = True


class Connection(socketserver.StreamRequestHandler):
    """One connection from ggml. ggml sends the next request only after the answer to the last request."""

    disable_nagle_algorithm = True
    server: Relay
    far: socket.socket | None = None
    answers: BinaryIO

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # ggml may have closed the connection
            self._connect()
            while len(header := self.rfile.read(9)) == 9:
                self._pass_on(header)

    def _connect(self) -> None:
        if self.server.is_lost:
            return
        try:
            far = socket.create_connection(self.server.far_address)
        except OSError:
            self._lose("it cannot be reached")
            return
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        patience = {
            "TCP_KEEPIDLE": IDLE_S, "TCP_KEEPALIVE": IDLE_S, "TCP_KEEPINTVL": PROBE_S, "TCP_KEEPCNT": PROBES,
            "TCP_USER_TIMEOUT": 1000 * (IDLE_S + PROBES * PROBE_S),
        }  # fmt: skip
        for name, value in patience.items():
            if hasattr(socket, name):
                far.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.far, self.answers = far, far.makefile("rb")

    def _pass_on(self, header: bytes) -> None:
        """Forwards a request to the server. If the command has an answer, forwards the answer to ggml."""
        command, left = header[0], int.from_bytes(header[1:], "little")
        self._send(header)
        last = b""
        while left:
            data = self.rfile.read(min(left, CHUNK))
            if not data:
                raise ConnectionResetError
            left -= len(data)
            last = (last + data)[-8:]
            # The server's capabilities are replaced by zeros. Otherwise ggml might use another transport.
            self._send(bytes(len(data)) if command == RpcCmd.HELLO else data)
        left = (
            int.from_bytes(last, "little") if command == RpcCmd.GET_TENSOR else ANSWER_BYTES.get(command, -1)
        )
        if left < 0:
            return
        size = left.to_bytes(8, "little")
        if self._receive(8) != size and self.far:
            self._lose("its answer has an unexpected size")
        self.wfile.write(size)
        while left:
            part = self._receive(min(left, CHUNK))
            if command == RpcCmd.HELLO and not self.far:
                part = GREETING.ljust(len(part), b"\0")
            self.wfile.write(part)
            left -= len(part)

    def _send(self, data: bytes) -> None:
        if self.far:
            try:
                self.far.sendall(data)
            except OSError as error:
                self._lose(error.strerror or str(error))

    def _receive(self, n_bytes: int) -> bytes:
        if self.far:
            try:
                data = self.answers.read(n_bytes)
                if len(data) == n_bytes:
                    return data
                self._lose("it closed the connection")
            except OSError as error:
                self._lose(error.strerror or str(error))
        return bytes(n_bytes)

    def _lose(self, why: str) -> None:
        self.far = None
        self.server.lose(why)


if __name__ == "__main__":
    relay = Relay(sys.argv[1])
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    _report(greet(relay.far_address) or relay.server_address[1])
    sys.stdin.buffer.read()
