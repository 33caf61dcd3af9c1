# SPDX-License-Identifier: MIT
"""Tests the server with many clients, clients that disconnect, untrusted clients, limits, and several
models.
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import requests

from helpers.http_server import FAST, MODEL, TARGET, TestServer, until

pytestmark = pytest.mark.alone  # these tests measure time


def ask(text: str, **rest: Any) -> dict[str, Any]:
    options = {"temperature": 0, "num_predict": 30} | rest.pop("options", {})
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "options": options} | rest


def endless(**rest: Any) -> dict[str, Any]:
    """Returns a request whose answer continues until the context is full."""
    return ask("What is len?", options={"ignore_eos": True, "num_predict": 400}, **rest)


def running(server: TestServer) -> tuple[int, int]:
    reply = server.get("/health").json()
    return reply["running"], reply["waiting"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(server: TestServer, slow_rounds: None, stream: bool) -> None:
    """Tests that the server stops generating an answer if its client disconnects, and frees the slot."""
    until(lambda: running(server) == (0, 0))
    before = server.metric("eaglecpp_predicted_tokens_total")
    client = http.client.HTTPConnection(*server.listener.getsockname())
    client.request("POST", "/api/chat", json.dumps(endless(stream=stream, draft=False)))
    until(lambda: running(server)[0] == 1)
    if stream:
        client.getresponse().readline()
    client.sock.shutdown(socket.SHUT_RDWR)
    client.close()
    until(lambda: running(server) == (0, 0))
    assert server.metric("eaglecpp_predicted_tokens_total") - before < 400


def test_a_long_prompt_does_not_stall_others(store_root: Path, slow_rounds: None) -> None:
    """Tests that a long prompt does not stall other requests. The prompt is read in slices, and between two
    slices every other request gets a round.
    """
    engine = FAST | {"n_ctx": 2048, "n_batch": 32}
    long = {"model": MODEL, "prompt": "len is " * 600, "stream": False, "options": {"num_predict": 1}}
    with TestServer(engine=engine, preload=MODEL) as own, ThreadPoolExecutor() as pool:
        lines = own.lines("/api/chat", endless(draft=False))
        next(lines)
        future = pool.submit(own.call, "/api/generate", long)
        n_between = sum(1 for _ in takewhile(lambda line: not future.done(), lines))
        assert future.result()["done"]
        lines.close()
    assert 10 <= n_between < 300, "expected one round for each of some 40 slices"


def test_limits_of_body_and_time(store_root: Path, slow_rounds: None) -> None:
    with TestServer(n_body=2000, request_s=0.5, preload=MODEL) as own:
        assert own.post("/api/chat", ask("x" * 3000)).status_code == 413
        parts = (b"x" * 500 for _ in range(10))  # the body is sent in chunks, so its length is not declared
        assert requests.post(f"{own.url}/api/chat", data=parts, timeout=30).status_code == 413
        slow = own.post("/api/chat", endless(stream=False, draft=False))
        assert slow.status_code == 504 and "longer than this server allows" in slow.json()["error"]
        until(lambda: running(own) == (0, 0))


def test_the_least_recently_used_model_is_unloaded_first(store_root: Path, tmp_path: Path) -> None:
    files = {MODEL: TARGET} | {name: tmp_path / f"{name}.gguf" for name in ("second", "third")}
    for name in ("second", "third"):
        shutil.copy(TARGET, files[name])
    with TestServer(files=files, n_models=2) as own:
        for name in (MODEL, "second", MODEL, "third"):
            assert own.post("/api/chat", ask("Hi", model=name, stream=False)).status_code == 200
        assert {one["name"] for one in own.get("/api/ps").json()["models"]} == {MODEL, "third"}
    with TestServer(files=files, n_bytes=1 << 20) as own:
        refused = own.post("/api/chat", ask("Hi"))
        assert refused.status_code == 503 and "1.0 MB" in refused.json()["error"]


def test_a_request_preempted_for_memory_says_so(store_root: Path, tmp_path: Path, slow_rounds: None) -> None:
    files = {MODEL: TARGET, "second": Path(shutil.copy(TARGET, tmp_path / "second.gguf"))}
    with TestServer(files=files, n_models=1, slot_time_s=0.2) as own, ThreadPoolExecutor() as pool:
        lines = own.lines("/api/chat", endless(draft=False))
        next(lines)
        future = pool.submit(own.post, "/api/chat", ask("Hi", model="second", stream=False))
        *_, last = lines
        assert "requests were queued" in last["error"] and future.result().status_code == 200
