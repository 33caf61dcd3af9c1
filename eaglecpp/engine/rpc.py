# SPDX-License-Identifier: MIT
"""Other machines as devices: connects this process to llama.cpp's RPC servers before a model is loaded.

llama.cpp distributes layers over the devices of the servers. The RPC backend must be part of llama.cpp; the
wheels on PyPI lack it. ggml aborts the process if a server misbehaves. So ggml connects through a relay
(rpc_relay.py, a separate process), which greets the server first and survives the loss of the server. On
Windows, the relay only greets. A connection lasts as long as the process, or until the server is lost.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eaglecpp._extension import core
from eaglecpp.errors import InvalidValueError, UnsupportedError
from eaglecpp.options import DraftOptions

_REMEDY = (
    "the installed llama.cpp has no RPC backend (the wheels on PyPI are built without it). Build it with: "
    "CMAKE_ARGS=-DGGML_RPC=ON pip install --force-reinstall --no-binary llama-cpp-python "
    "llama-cpp-python=={}; or set GGML_BACKEND_PATH to a libggml-rpc of that release, built with "
    "GGML_BACKEND_DL; or leave out the RPC servers"
)

_log = logging.getLogger("eaglecpp.rpc")
_connected: dict[str, str] = {}  # endpoint of the relay for each server; ggml connects to the relay


def connect(endpoints: Sequence[str]) -> None:
    """Registers the devices of each server in llama.cpp, once per process, and again after the server was
    lost.

    endpoints: "host:port", IPv4 or a name. Every model loaded afterwards may use these devices. Raises
    ValueError for an invalid endpoint, UnsupportedError without the RPC backend or for a server that is
    unreachable, is not an RPC server, or has another version.
    """
    for endpoint, relay, _ in core.lost_rpc_servers():
        if _connected.get(endpoint) == relay:
            del _connected[endpoint]
    new = [endpoint for endpoint in dict.fromkeys(endpoints) if endpoint not in _connected]
    for endpoint in new:
        _check(endpoint)
    add = _add_server_function() if new else None
    for endpoint in new:
        assert add is not None
        relay = start_relay(endpoint)
        registry = add(relay.encode())
        if not registry:
            raise UnsupportedError(f"RPC server {endpoint} offers no device; start it with a device")
        _function("ggml_backend_register", None, ctypes.c_void_p)(registry)
        _connected[endpoint] = relay
        _log.info("RPC server %s: connected", endpoint)


def start_relay(endpoint: str) -> str:
    """Starts a relay to a server. Returns the relay's endpoint, to which ggml connects. Raises
    UnsupportedError.
    """
    command = [sys.executable, "-I", str(Path(__file__).with_name("rpc_relay.py")), endpoint]
    pipe = subprocess.PIPE
    # The relay has its own session, so that Ctrl+C does not reach it.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True) as process:
        assert process.stdin is not None and process.stdout is not None
        line = process.stdout.readline().decode("utf-8", "replace").strip()
        if not line.isdecimal():
            raise UnsupportedError(f"RPC server {endpoint}: {line or 'its relay could not be started'}")
        if sys.platform == "win32":
            return endpoint
        # This copy of the relay's stdin stays open until the process ends, because models are freed through
        # the relay at exit.
        os.dup(process.stdin.fileno())
        says = os.dup(process.stdout.fileno())
        process.returncode = 0  # Popen does not wait for the relay, because the relay ends with this process
    relay = f"127.0.0.1:{line}"
    core.watch_rpc_server(endpoint, relay, says)
    return relay


def keep_drafter_here(options: DraftOptions, devices: Sequence[dict[str, Any]]) -> DraftOptions:
    """Resolves `draft_device` "auto" to this machine's GPU, or to its CPU. A drafter takes many short steps,
    so running the drafter over a network would cost more time than it saves.

    devices: as in `lowlevel.system_info()["devices"]`
    """
    if options.draft_device != "auto":
        return options
    relays = set(_connected.values()) | {relay for _, relay, _ in core.lost_rpc_servers()}
    here = [d["name"] for d in devices if d["kind"] == "gpu" and d["description"] not in relays]
    return replace(options, draft_device=here[0] if here else "cpu")


def _check(endpoint: str) -> None:
    host, _, port = endpoint.rpartition(":")
    if not (host and ":" not in host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise InvalidValueError(f"rpc: expected host:port, such as 192.168.0.2:50052, found {endpoint!r}")


def _add_server_function() -> Any:
    """Returns ggml's function that connects to a server. Raises UnsupportedError without the RPC backend."""
    import llama_cpp

    core.system_info()  # `system_info` loads the backends that are separate libraries
    registry = _function("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p)(b"RPC")
    look_up = _function(
        "ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p
    )
    address = look_up(registry, b"ggml_backend_rpc_add_server") if registry else None
    if not address:
        raise UnsupportedError(_REMEDY.format(llama_cpp.__version__))
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """Returns a function of ggml from the library that llama_cpp loaded, or from its dependencies."""
    from llama_cpp import llama_cpp

    libraries = [llama_cpp._lib]
    if sys.platform == "win32":  # on Windows, a library does not export the symbols of its dependencies
        libraries += [ctypes.CDLL("ggml.dll"), ctypes.CDLL("ggml-base.dll")]
    for library in libraries:
        if hasattr(library, name):
            function = library[name]
            function.restype, function.argtypes = result, arguments
            return function
    raise UnsupportedError(f"the installed llama.cpp has no function {name}; install the pinned version")
