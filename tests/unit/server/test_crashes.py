# SPDX-License-Identifier: MIT
"""Tests the state after a failure at the worst moment: the server is killed, or the disk is full during a
pull.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from helpers.http_server import DRAFT, TARGET, TestServer
from helpers.hub_server import HubServer
from helpers.serve_process import QUICK, free_port, start_server

REPO = "user/demo-GGUF"
FILE = TARGET.read_bytes() + bytes(32)  # no other test stores this content


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    with HubServer() as running:
        monkeypatch.setenv("MODEL_ENDPOINT", running.url)
        running.add(REPO, {"demo-Q8_0.gguf": FILE})
        yield running


def test_a_pulled_model_answers(hub: HubServer, server: TestServer) -> None:
    name = f"hf.co/{REPO}:Q8_0"
    lines = list(server.lines("/api/pull", {"model": name}))
    assert [lines[0]["status"], lines[-1]["status"]] == ["pulling manifest", "success"]
    digest = f"sha256:{hashlib.sha256(FILE).hexdigest()}"
    bars = [line for line in lines if line.get("digest") == digest]
    assert bars[-1]["completed"] == bars[-1]["total"] == len(FILE)
    assert name in {model["name"] for model in server.get("/api/tags").json()["models"]}
    body = {"model": name, "prompt": "def", "stream": False, "options": {"num_predict": 4, "temperature": 0}}
    assert server.post("/api/generate", body).json()["eval_count"] == 4
    assert server.post("/api/pull", {"model": name, "stream": False}).json() == {"status": "success"}
    assert requests.delete(f"{server.url}/api/delete", json={"model": name}, timeout=30).status_code == 200


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("n_signals", [1, 2])
def test_ctrl_c_in_an_answer_logs_no_traceback(store_root: Path, tmp_path: Path, n_signals: int) -> None:
    body = {"model": "demo-target", "prompt": "def", "options": {"ignore_eos": True, "num_predict": -1}}
    log, port = tmp_path / "log", free_port()
    with log.open("wb") as output:
        process = start_server(TARGET, port, *QUICK, output=output)
        url = f"http://127.0.0.1:{port}/api/generate"
        next(requests.post(url, json=body, stream=True, timeout=60).iter_lines())
        for _ in range(n_signals):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        # the second signal may arrive while Python is already ending
        assert process.wait(60) in (0, -signal.SIGINT)
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_server_killed_during_an_answer_frees_its_port(store_root: Path) -> None:
    port = free_port()
    body = {"model": "demo-target", "prompt": "def", "options": {"ignore_eos": True}}
    for _ in range(2):  # the second server starts immediately, on the same port
        process = start_server(TARGET, port, "--draft", str(DRAFT), *QUICK)
        try:
            url = f"http://127.0.0.1:{port}/api/generate"
            lines = requests.post(url, json=body, stream=True, timeout=60).iter_lines()
            assert json.loads(next(lines))["done"] is False
            process.send_signal(signal.SIGKILL)
            with pytest.raises(requests.RequestException):
                list(lines)
        finally:
            process.kill()
            process.wait()


@pytest.mark.skipif(os.name != "posix", reason="Windows programs cannot handle SIGTERM")
def test_a_server_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    """Tests that a server that SIGTERM ends also removes its announcement. The lines of the server's log have
    the time.
    """
    home, log = tmp_path / "home", tmp_path / "log"
    environment, port = {**os.environ, "EAGLECPP_HOME": str(home)}, free_port()
    with log.open("wb") as file:
        process = start_server(TARGET, port, *QUICK, output=file, environment=environment)
    try:
        assert (home / "server.json").exists()
        assert requests.get(f"http://127.0.0.1:{port}/api/ps", timeout=60).ok
        process.send_signal(signal.SIGTERM)
        # the second signal may arrive while Python is already ending
        assert process.wait(60) in (0, -signal.SIGINT)
        assert not (home / "server.json").exists()
        assert re.search(
            r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO GET /health 200 ", log.read_text(), re.MULTILINE
        )
        assert "GET /api/ps" not in log.read_text(), "polling by the page must not be logged"
    finally:
        process.kill()
