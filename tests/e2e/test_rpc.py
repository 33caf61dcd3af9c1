# SPDX-License-Identifier: MIT
"""A target on another machine's devices says what it says here. Needs a llama.cpp with the RPC backend."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from eaglecpp import Engine
from eaglecpp.lowlevel import system_info
from helpers.models import Models
from helpers.rpc_server import RpcServer

pytestmark = pytest.mark.skipif(not system_info()["rpc"], reason="this llama.cpp has no RPC backend")


@pytest.fixture
def server() -> Iterator[str]:
    """An rpc-server with this machine's CPU; gives its endpoint."""
    running = RpcServer()
    try:
        yield running.endpoint
    finally:
        running.kill()


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
