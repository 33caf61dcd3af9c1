# SPDX-License-Identifier: MIT
"""ggml's RPC server with this machine's CPU, in a separate process on the loopback interface.

Needs a llama.cpp with the RPC backend, or this backend in GGML_BACKEND_PATH.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time

_PROGRAM = """
import ctypes, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # dies with the process that started it
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


class RpcServer:
    """An RPC server, which starts when the object is created. `endpoint` is the server's address."""

    def __init__(self, port: int = 0) -> None:
        with socket.create_server(("127.0.0.1", port)) as free:
            self.port = int(free.getsockname()[1])
        self.endpoint = f"127.0.0.1:{self.port}"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, self.endpoint], stdout=subprocess.DEVNULL
        )
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except ConnectionRefusedError:
                if self._process.poll() is not None:
                    raise RuntimeError("the RPC server did not start") from None
                time.sleep(0.1)
        raise RuntimeError("the RPC server did not listen within a minute")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
