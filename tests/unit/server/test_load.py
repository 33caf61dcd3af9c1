# SPDX-License-Identifier: MIT
"""Tests that many simultaneous slow requests do not block the server. Meanwhile a stream must continue,
`/health` must answer, and a new chat must begin and end.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.chat.codec import ChatCodec
from eaglecpp.chat.message import Message
from eaglecpp.engine.embedding import Embedder
from eaglecpp.engine.scheduler import Scheduler
from eaglecpp.server import answer, models
from eaglecpp.server.answer import ServedRequest
from eaglecpp.server.config import Preset
from eaglecpp.store import Status
from helpers.http_server import MODEL, TARGET, TestServer, until

pytestmark = pytest.mark.alone  # these tests measure time

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "What is len?"}], "stream": False,
        "max_tokens": 4}  # fmt: skip
LONG = {"model": MODEL, "prompt": "What", "draft": False, "options": {"num_predict": 450, "ignore_eos": True}}


@contextmanager
def asked(server: TestServer, n: int, path: str, body: Any) -> Iterator[list[http.client.HTTPConnection]]:
    """Opens clients that all send the same request and wait. The clients disconnect at the end of the `with`
    block.
    """
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    address = server.listener.getsockname()
    clients = [http.client.HTTPConnection(*address, timeout=120) for _ in range(n)]
    try:
        for client in clients:
            client.request("POST", path, data)
        yield clients
    finally:
        for client in clients:
            leave(client)


def leave(client: http.client.HTTPConnection) -> None:
    with suppress(OSError):
        client.sock.shutdown(socket.SHUT_RDWR)
    client.close()


def others_are_served(server: TestServer) -> None:
    """Checks that the server serves other clients in the meantime: a stream, `/health` and a new chat."""
    lines = server.lines("/api/generate", LONG)
    assert not next(lines)["done"]
    assert server.get("/health").json()["status"] == "ok"
    assert server.post("/v1/chat/completions", CHAT).status_code == 200
    assert not next(lines)["done"]
    lines.close()


def test_silent_hosts_do_not_block_others(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the maximum number of downloads from hosts that never answer. One more download is refused, and
    other requests are served.
    """
    goes_on, begun = threading.Event(), []

    def pull(name: Any, report: Any, **options: Any) -> None:
        begun.append(name)
        assert goes_on.wait(120)
        while True:  # the loop ends when the server reports that no request is waiting
            report(Status("pulling"))
            time.sleep(0.01)

    monkeypatch.setattr("eaglecpp.store.remote.pull.pull", pull)
    downloads = server.server._shared.work.downloads
    try:
        with asked(server, 8, "/api/pull", {"model": "some/model"}):
            until(lambda: len(begun) == 8)
            others_are_served(server)
            refused = server.post("/api/pull", {"model": "some/other"})
            assert refused.status_code == 503 and "downloads" in refused.json()["error"]
            assert server.post("/api/show", {"model": MODEL}).status_code == 200
    finally:
        goes_on.set()
    until(lambda: downloads._free._value == 8)


def test_long_bodies_wait_only_for_each_other(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that long bodies only wait for each other: the server reads them outside the event loop."""
    goes_on, on_the_loop, n_begun = threading.Event(), [], 0
    real = Message.from_dict.__func__  # type: ignore[attr-defined]

    def from_dict(cls: type[Message], entry: Any, *args: Any, **options: Any) -> Message:
        nonlocal n_begun
        with suppress(RuntimeError):
            on_the_loop.append(asyncio.get_running_loop())
        if entry["content"] == "x":
            n_begun += 1
            assert goes_on.wait(120)
        message: Message = real(cls, entry, *args, **options)
        return message

    body = CHAT | {"messages": [{"role": "user", "content": "x"}] * 3000}
    monkeypatch.setattr(Message, "from_dict", classmethod(from_dict))
    try:
        with asked(server, 8, "/v1/chat/completions", body):
            until(lambda: n_begun > 0)
            on_the_loop.clear()
            others_are_served(server)
            assert len(on_the_loop) == 2, "only two short bodies may be parsed on the loop"
    finally:
        goes_on.set()


def test_many_prompts_leave_slots_to_others(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that many long prompts leave slots to other requests. Prompts are prepared one by one, so the
    chat has its answer before the last prompt is prepared.
    """
    goes_on, real = threading.Event(), answer.resolve

    def resolve(model: Any, request: ServedRequest) -> Any:
        assert request.prompt != "last" or goes_on.wait(120)
        return real(model, request)

    monkeypatch.setattr(answer, "resolve", resolve)
    prompts = [*["What is len?"] * 20, "last"]
    body = {"model": MODEL, "prompt": prompts, "n_predict": 20, "is_long": "x" * (128 << 10)}
    with ThreadPoolExecutor() as pool:
        many = pool.submit(server.post, "/completion", body)
        until(lambda: server.get("/health").json()["running"] > 0)
        reply = server.get("/health").json()
        assert reply["running"] + reply["waiting"] <= 2
        assert server.post("/v1/chat/completions", CHAT).status_code == 200
        goes_on.set()
        assert len(many.result().json()) == len(prompts)
    streamed = list(server.events("/completion", body | {"prompt": ["What is len?"] * 5, "n_predict": 3}))
    assert sorted(one["index"] for one in streamed if one["stop"]) == [0, 1, 2, 3, 4]
    refused = server.post("/completion", body | {"prompt": ["x"] * 5000})
    assert (
        refused.status_code == 400 and "at most 514 prompts, found 5000" in refused.json()["error"]["message"]
    )


def test_a_request_for_a_full_queue_is_not_prepared(store_root: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, real = threading.Event(), Scheduler.step

    def step(self: Scheduler) -> Any:
        goes_on.wait(120)
        return real(self)

    with TestServer(n_parallel=1, n_queue=1, preload=MODEL) as own:
        with asked(own, 2, "/api/generate", LONG | {"raw": True}), monkeypatch.context() as patch:
            patch.setattr(Scheduler, "step", step)
            until(lambda: sum(own.get("/health").json()[key] for key in ("running", "waiting")) == 2)
            patch.setattr(ChatCodec, "render", lambda *args, **options: pytest.fail("it is prepared"))
            refused = own.post("/v1/chat/completions", CHAT)
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "queue_full"
            assert own.get(f"/props?model={MODEL}").status_code == 200, "/props must not count in the queue"
            goes_on.set()
        until(lambda: own.post("/v1/chat/completions", CHAT).status_code == 200)


def test_embedding_requests_take_turns(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that embedding requests take turns. In this test, the first turn of a request with many texts
    lasts until another request arrives. The second turn must go to the other request.
    """
    model = next(one for one in server.server._shared.models.values() if one.name == MODEL)
    turns, real = list[int](), Embedder.embed

    def embed(self: Embedder, texts: Any, *args: Any, **options: Any) -> Any:
        turns.append(len(texts))
        if len(turns) == 1:
            until(lambda: model.engine._n_embedding == 2)
        return real(self, texts, *args, **options)

    monkeypatch.setattr(Embedder, "embed", embed)
    with ThreadPoolExecutor() as pool:
        many = pool.submit(server.post, "/api/embed", {"model": MODEL, "input": ["the quick fox"] * 800})
        until(lambda: bool(turns))
        assert server.post("/api/embed", {"model": MODEL, "input": "a"}).status_code == 200
        assert many.result().status_code == 200
    assert turns.index(1) == 1 and len(turns) > 3


def test_the_port_is_open_while_a_model_loads(store_root: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    may_load = threading.Event()
    opens = models.open_fitting
    monkeypatch.setattr(models, "open_fitting", lambda plan: may_load.wait(60) and opens(plan))
    server = TestServer(preload=MODEL)
    server.thread.start()
    try:
        until(lambda: server.server.started)
        answer = server.get("/health")
        assert answer.status_code == 503 and "Loading model" in answer.json()["error"]["message"]
        assert server.get("/api/version").status_code == 200
        may_load.set()
        until(lambda: server.get("/health").status_code == 200)
    finally:
        may_load.set()
        server.__exit__()


def test_a_full_queue_does_not_keep_a_pinned_model_from_loading(
    store_root: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load = threading.Event()
    opens = models.open_fitting
    monkeypatch.setattr(models, "open_fitting", lambda plan: may_load.wait(60) and opens(plan))
    second = tmp_path / "second.gguf"
    second.symlink_to(TARGET)
    presets = {"second": Preset(str(second), pinned=True)}
    server = TestServer({MODEL: TARGET, "second": second}, MODEL, presets=presets, n_queue=0, n_parallel=1)
    server.thread.start()
    try:
        until(lambda: server.server.started)
        body = b'{"model": "second"}'
        asks = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        clients = [server.connect(asks + body) for _ in range(server.config.n_answers)]
        until(lambda: sum(server.server._shared._n_asked.values()) > server.config.n_answers - 1)
        time.sleep(0.2)
        may_load.set()
        until(lambda: server.get("/health").status_code == 200)
        for client in clients:
            client.close()
    finally:
        may_load.set()
        server.__exit__()
