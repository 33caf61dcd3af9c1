# SPDX-License-Identifier: MIT
"""A target on another machine's devices says what it says here. Needs a llama.cpp with the RPC backend."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from eaglecpp import Engine
from eaglecpp.lowlevel import system_info

if TYPE_CHECKING:
    from conftest import Models

pytestmark = pytest.mark.skipif(not system_info()["rpc"], reason="this llama.cpp has no RPC backend")

SERVER = """
import ctypes, sys
from llama_cpp.llama_cpp import _lib as lib
from eaglecpp.lowlevel import system_info
system_info()
for name in ("ggml_backend_reg_by_name", "ggml_backend_reg_get_proc_address", "ggml_backend_dev_by_type"):
    getattr(lib, name).restype = ctypes.c_void_p
lib.ggml_backend_reg_get_proc_address.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
address = lib.ggml_backend_reg_get_proc_address(
    lib.ggml_backend_reg_by_name(b"RPC"), b"ggml_backend_rpc_start_server")
text, size, pointer = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
start = ctypes.CFUNCTYPE(None, text, text, size, size, pointer)(address)
cpu = (pointer * 1)(lib.ggml_backend_dev_by_type(0))
start(sys.argv[1].encode(), None, 1, 1, ctypes.cast(cpu, pointer))
"""


@pytest.fixture
def server() -> Iterator[str]:
    """An rpc-server with this machine's CPU; gives its endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen([sys.executable, "-P", "-c", SERVER, endpoint])
    try:
        host, port = endpoint.split(":")
        for _ in range(100):
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        yield endpoint
    finally:
        process.kill()
        process.wait()


def test_the_same_tokens_over_the_network(server: str, models: Models) -> None:
    script = (
        "import sys\n"
        "from eaglecpp import Engine\n"
        "target, draft, endpoint = sys.argv[1:]\n"
        "options = dict(n_ctx=256, n_threads=1, strategy='chain:3', rpc=(endpoint,))\n"
        "with Engine.open(target, draft, **options) as engine:\n"
        "    assert 'RPC0' in engine.device_info['target'] and engine.device_info['draft'] == 'CPU'\n"
        "    print(engine.generate('ab cd', max_tokens=24, temperature=0.0).tokens)\n"
    )
    # in a process of its own: the devices stay, and later tests should not use them
    command = [sys.executable, "-P", "-c", script, str(models.target), str(models.draft), server]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    with Engine.open(models.target, n_ctx=256, n_threads=1) as engine:
        assert done.stdout == f"{engine.generate('ab cd', max_tokens=24, temperature=0.0).tokens}\n"
