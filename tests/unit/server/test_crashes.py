# SPDX-License-Identifier: MIT
"""What is left when something goes wrong at the worst moment: a killed server, a full disk during a pull."""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import requests

from eaglecpp.store import Stores
from helpers.http_server import DRAFT, TARGET, TestServer
from helpers.hub_server import HubServer
from helpers.serve_process import free_port, start_server
from helpers.store_check import store_problems

REPO = "user/demo-GGUF"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    with HubServer() as running:
        monkeypatch.setenv("MODEL_ENDPOINT", running.url)
        running.add(REPO, {"demo-Q8_0.gguf": TARGET.read_bytes()})
        yield running


def test_a_pulled_model_answers(hub: HubServer, server: TestServer) -> None:
    name = f"hf.co/{REPO}:Q8_0"
    lines = list(server.lines("/api/pull", {"model": name}))
    assert [lines[0]["status"], lines[-1]["status"]] == ["pulling manifest", "success"]
    digest = f"sha256:{hashlib.sha256(TARGET.read_bytes()).hexdigest()}"
    bars = [line for line in lines if line.get("digest") == digest]
    assert bars[-1]["completed"] == bars[-1]["total"] == TARGET.stat().st_size
    assert name in {model["name"] for model in server.get("/api/tags").json()["models"]}
    body = {"model": name, "prompt": "def", "stream": False, "options": {"num_predict": 4, "temperature": 0}}
    assert server.post("/api/generate", body).json()["eval_count"] == 4
    assert server.post("/api/pull", {"model": name, "stream": False}).json() == {"status": "success"}
    assert requests.delete(f"{server.url}/api/delete", json={"model": name}, timeout=30).status_code == 200


def test_a_disk_that_fills_up_ends_the_pull_and_nothing_else(
    hub: HubServer, server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, real = f"hf.co/{REPO}:Q8_0", Path.open

    class Full:
        """A file on a disk that takes no more than the first bytes."""

        def __init__(self, file: Any) -> None:
            self._file, self._room = file, 100_000

        def write(self, data: bytes) -> int:
            self._room -= len(data)
            if self._room < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return int(self._file.write(data))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *exc: object) -> None:
            self._file.close()

    def opened(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        file = real(path, mode, *args, **options)
        return Full(file) if "partial" in path.name and "b" in mode and mode != "rb" else file

    root = Stores.open().own.root
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        lines = list(server.lines("/api/pull", {"model": name}))
        assert "No space left" in lines[-1]["error"], lines
        assert server.get("/health").status_code == 200
    assert store_problems(root) == []
    assert name not in {model["name"] for model in server.get("/api/tags").json()["models"]}
    assert list(server.lines("/api/pull", {"model": name}))[-1] == {"status": "success"}
    assert store_problems(root) == []
    assert requests.delete(f"{server.url}/api/delete", json={"model": name}, timeout=30).status_code == 200


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_server_killed_in_the_middle_of_an_answer_leaves_port_and_store(
    store_root: Path, tmp_path: Path
) -> None:
    port = free_port()
    before = sorted(path.name for path in store_root.rglob("*")) if store_root.exists() else []
    body = json.dumps({"model": "demo-target", "prompt": "def", "options": {"ignore_eos": True}})
    for _ in range(2):  # the second one comes up at once, on the same port and store
        process = start_server(TARGET, DRAFT, port)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", "/api/generate", body)
            answer = connection.getresponse()
            assert json.loads(answer.readline())["done"] is False
            process.send_signal(signal.SIGKILL)
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                while answer.readline():
                    pass
                raise ConnectionError("the stream ended without its last line")
            answer.close()
        finally:
            connection.close()
            process.kill()
            process.wait()
    after = sorted(path.name for path in store_root.rglob("*")) if store_root.exists() else []
    assert after == before
