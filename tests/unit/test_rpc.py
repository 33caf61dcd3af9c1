# SPDX-License-Identifier: MIT
"""Tests RPC servers. eaglecpp refuses an invalid server before ggml connects to it, because ggml would end
the process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from eaglecpp._extension import core
from eaglecpp.engine import rpc
from eaglecpp.errors import UnsupportedError
from eaglecpp.modelfile import Modelfile
from eaglecpp.options import DraftOptions, ModelOptions
from helpers.opening import options_in

Serve = Callable[[bytes], tuple[str, list[bytes]]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Returns a function `serve(answer)` that starts a server. The server reads the greeting of each
    connection, sends the answer and closes the connection. The function returns the server's endpoint and the
    received bytes.
    """
    with contextlib.ExitStack() as servers:

        def start(answer: bytes) -> tuple[str, list[bytes]]:
            heard: list[bytes] = []

            class Once(socketserver.BaseRequestHandler):
                def handle(self) -> None:
                    heard.append(self.request.recv(100))
                    self.request.sendall(answer)

            server = servers.enter_context(socketserver.TCPServer(("127.0.0.1", 0), Once))
            threading.Thread(target=server.serve_forever, args=(0.01,)).start()
            servers.callback(server.shutdown)
            return f"127.0.0.1:{server.server_address[1]}", heard

        yield start


def answer(major: int, minor: int) -> bytes:
    return struct.pack("<QBBBx24x", 28, major, minor, 0)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (answer(6, 0), r"expected protocol version 7\.0\.0, found 6\.0\.0"),
        (answer(7, 1), "use rpc-server of the same"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n", "is not llama.cpp's rpc-server"),
        (b"", "is not llama.cpp's rpc-server"),
        (None, "cannot be reached"),
    ],
)
def test_a_server_of_another_protocol_is_refused(said: bytes | None, text: str, serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        endpoint = f"127.0.0.1:{gone.getsockname()[1]}"
    if said is not None:
        endpoint, _ = serve(said)
    with pytest.raises(UnsupportedError, match=f"RPC server {endpoint}: .*{text}"):
        rpc.start_relay(endpoint)


@pytest.mark.parametrize("endpoint", ["", "host", "host:", ":1", "host:x", "host:0", "host:70000", "::1:5"])
def test_an_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="rpc: expected host:port"):
        rpc.connect([endpoint])


def test_a_llama_cpp_without_the_backend_says_how_to_get_it(serve: Serve) -> None:
    from eaglecpp.lowlevel import system_info, versions

    if system_info()["rpc"]:
        pytest.skip("this llama.cpp has the RPC backend")
    endpoint, heard = serve(answer(7, 0))
    with pytest.raises(UnsupportedError) as caught:
        rpc.connect([endpoint])
    assert "has no RPC backend" in str(caught.value)
    assert f"llama-cpp-python=={versions()['llama_cpp_python']}; or set GGML_BACKEND_PATH" in str(
        caught.value
    )
    assert heard == []


def test_the_drafter_stays_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "_connected", {"far:50052": "127.0.0.1:40000"})
    far = {"name": "RPC0", "kind": "gpu", "description": "127.0.0.1:40000"}
    near = {"name": "CUDA0", "kind": "gpu", "description": "a GPU"}
    cpu = {"name": "CPU", "kind": "cpu", "description": "a CPU"}
    assert rpc.keep_drafter_here(DraftOptions(), [cpu, far]).draft_device == "cpu"
    assert rpc.keep_drafter_here(DraftOptions(), [cpu, far, near]).draft_device == "CUDA0"
    asked = DraftOptions(draft_device="RPC0")
    assert rpc.keep_drafter_here(asked, [cpu, far]) == asked


def test_a_modelfile_names_servers() -> None:
    modelfile = Modelfile.from_text("FROM a\n#eaglecpp: rpc one:1\n#eaglecpp: rpc two:2\n")
    assert modelfile.notices == ()
    assert ModelOptions(rpc=options_in(modelfile)["model.rpc"]).rpc == ("one:1", "two:2")


@pytest.mark.skipif(os.name != "posix", reason="there is no relay")
def test_a_lost_server_is_reported_before_a_substitute_answers(serve: Serve) -> None:
    """A lost server must be reported before another server takes its place, because ggml would end the
    process if an answer did not arrive.
    """
    endpoint, heard = serve(answer(7, 0))
    relay = rpc.start_relay(endpoint)
    assert heard == [bytes([14]) + (24).to_bytes(8, "little") + bytes(24)], "expected llama.cpp's greeting"
    host, _, port = relay.partition(":")
    numbers = struct.Struct("<BQ")

    def lost() -> list[str]:
        return [why for _, its_relay, why in core.lost_rpc_servers() if its_relay == relay]

    with socket.create_connection((host, int(port)), timeout=60) as ggml, ggml.makefile("rb") as answers:
        ggml.sendall(numbers.pack(14, 24) + bytes(24))  # sends the greeting
        assert answers.read(36) == answer(7, 0)
        assert lost() == []
        # sends get_tensor for 5 bytes
        ggml.sendall(numbers.pack(8, 24) + bytes(16) + (5).to_bytes(8, "little"))
        assert answers.read(13) == (5).to_bytes(8, "little") + bytes(5)
        assert len(lost()) == 1
        # Two commands are sent. The first command (device_count) gets no answer.
        ggml.sendall(numbers.pack(6, 0) + numbers.pack(15, 0))
        assert answers.read(12) == (4).to_bytes(8, "little") + bytes(4)
    with socket.create_connection((host, int(port)), timeout=60) as ggml, ggml.makefile("rb") as answers:
        ggml.sendall(numbers.pack(14, 24) + bytes(24))
        assert answers.read(36) == answer(7, 0)  # the relay itself sends this answer
