# SPDX-License-Identifier: MIT
"""Many slow requests at a time take the server from nobody: one stream goes on, `/health` answers and a new
chat is begun and ended while they are under way.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from eaglecpp.chat.message import Message
from eaglecpp.chat.model import ChatModel
from eaglecpp.engine.embedding import Embedder
from eaglecpp.limits import EMBEDDING_VALUES
from eaglecpp.server import loaded
from helpers.http_server import FAST, MODEL, TestServer

pytestmark = pytest.mark.alone  # measures time

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "What is len?"}], "stream": False,
        "max_tokens": 4}  # fmt: skip
LONG = {"model": MODEL, "prompt": "What", "draft": False, "options": {"num_predict": 450, "ignore_eos": True}}


@pytest.fixture(scope="module")
def server(store_root: Any) -> Iterator[TestServer]:
    with TestServer(preload=MODEL, n_parallel=2) as running:
        yield running


@contextmanager
def asked(server: TestServer, n: int, path: str, body: Any) -> Iterator[list[http.client.HTTPConnection]]:
    """Clients that have sent the same request and wait; they leave at the end."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    clients = [http.client.HTTPConnection(host, int(port), timeout=120) for _ in range(n)]
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


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "that took too long"
        time.sleep(0.02)


def others_are_served(server: TestServer) -> None:
    """Three at a time, as the module says."""
    lines = server.lines("/api/generate", LONG)
    assert not next(lines)["done"]
    assert server.get("/health").json()["status"] == "ok"
    assert server.post("/v1/chat/completions", CHAT).status_code == 200
    assert not next(lines)["done"]
    lines.close()


def test_hosts_that_say_nothing_hold_nobody_up(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may be asked at a time; one more is told so."""
    goes_on, n_begun = threading.Event(), 0

    def pull(name: Any, report: Any, **options: Any) -> None:
        nonlocal n_begun
        n_begun += 1
        assert goes_on.wait(120)
        report(None)

    monkeypatch.setattr("eaglecpp.store.remote.pull.pull", pull)
    downloads = server.server._shared.work.downloads
    try:
        with asked(server, 8, "/api/pull", {"model": "some/model"}):
            until(lambda: n_begun == 8)
            others_are_served(server)
            refused = server.post("/api/pull", {"model": "some/other"})
            assert refused.status_code == 503 and "downloads" in refused.json()["error"]
            assert server.post("/api/show", {"model": MODEL}).status_code == 200
    finally:
        goes_on.set()
    until(lambda: downloads._free._value == 8)


def test_long_bodies_wait_for_each_other_alone(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are read beside the loop."""
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
            assert len(on_the_loop) == 2, "the short ones"
    finally:
        goes_on.set()


def test_many_prompts_of_one_request_leave_places_to_others(server: TestServer) -> None:
    """They are prepared when it is their turn."""
    body = {"model": MODEL, "prompt": ["What is len?"] * 60, "n_predict": 20}
    ended: list[str] = []

    def many() -> None:
        answer = server.post("/completion", body)
        assert answer.status_code == 200 and len(answer.json()) == 60
        ended.append("many")

    thread = threading.Thread(target=many)
    thread.start()
    until(lambda: server.get("/health").json()["running"] > 0)
    told = server.get("/health").json()
    assert told["running"] + told["waiting"] <= 2
    assert server.post("/v1/chat/completions", CHAT).status_code == 200
    ended.append("chat")
    thread.join()
    assert ended == ["chat", "many"]
    streamed = list(server.events("/completion", body | {"prompt": ["What is len?"] * 5, "n_predict": 3}))
    assert sorted(one["index"] for one in streamed if one["stop"]) == [0, 1, 2, 3, 4]
    refused = server.post("/completion", body | {"prompt": ["x"] * 5000})
    assert refused.status_code == 400 and "5000 answers, at most 514" in refused.json()["error"]["message"]


def test_who_finds_the_queue_full_has_nothing_prepared(
    store_root: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_rendered, real = 0, ChatModel.render

    def render(self: ChatModel, *args: Any, **options: Any) -> Any:
        nonlocal n_rendered
        n_rendered += 1
        return real(self, *args, **options)

    with TestServer(n_parallel=1, n_queue=1, preload=MODEL) as own:
        with asked(own, 2, "/api/generate", LONG | {"raw": True}):
            until(lambda: sum(own.get("/health").json()[key] for key in ("running", "waiting")) == 2)
            monkeypatch.setattr(ChatModel, "render", render)
            refused = own.post("/v1/chat/completions", CHAT)
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "queue_full"
            assert own.get(f"/props?model={MODEL}").status_code == 200, "who watches is no part of the queue"
        assert n_rendered == 0
        until(lambda: own.post("/v1/chat/completions", CHAT).status_code == 200)


def test_a_slow_reader_keeps_the_model_from_nobody(store_root: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another request waits for a longer context. At last it loses the model, read or not."""
    monkeypatch.setattr(loaded, "_HOLD_S", 0.3)
    longer = LONG | {"prompt": "What is len? " * 80, "stream": False,
                     "options": {"num_ctx": 512, "num_predict": 2}}  # fmt: skip
    with TestServer(engine=FAST | {"n_ctx": 256}, preload=MODEL, n_parallel=2, unread_s=1.0) as own:
        pool = own.server._shared.pool
        slow = own.lines("/api/generate", LONG | {"logprobs": True, "top_logprobs": 20})
        next(slow)
        told: list[Any] = []
        waiting = threading.Thread(target=lambda: told.append(own.post("/api/generate", longer)))
        waiting.start()
        until(lambda: any(model.is_held for model in pool.models.values()))
        for _ in range(3):
            assert own.post("/v1/chat/completions", CHAT).status_code == 200
        assert not told
        object.__setattr__(pool.config, "place_s", 0.2)
        waiting.join()
        assert told[0].status_code == 200, told[0].text
        assert own.get("/api/ps").json()["models"][0]["context_length"] == 512
        slow.close()


def test_requests_for_vectors_take_turns(server: TestServer) -> None:
    many = {"model": MODEL, "input": ["the quick fox"] * 800}
    ended: list[str] = []

    def embed() -> None:
        assert server.post("/api/embed", many).status_code == 200
        ended.append("many")

    n_turns, real = 0, Embedder.embed

    def counted(self: Embedder, *args: Any, **options: Any) -> Any:
        nonlocal n_turns
        n_turns += 1
        return real(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Embedder, "embed", counted)
        thread = threading.Thread(target=embed)
        thread.start()
        until(lambda: n_turns > 1)
        assert server.post("/api/embed", {"model": MODEL, "input": "a"}).status_code == 200
        ended.append("one")
        thread.join()
    assert ended == ["one", "many"]


def test_vectors_of_a_request_are_bounded(server: TestServer) -> None:
    refused = server.post("/v1/embeddings", {"model": MODEL, "input": ["a"] * 300_000})
    assert refused.status_code == 400
    assert f"expected at most {EMBEDDING_VALUES} values" in refused.json()["error"]["message"]


def test_what_every_event_repeats_is_bounded(server: TestServer) -> None:
    body = {"model": MODEL, "input": "What is len?", "max_output_tokens": 2}
    most = {f"{i:064}": "x" * 512 for i in range(16)}
    answer = server.post("/v1/responses", body | {"metadata": most})
    assert answer.status_code == 200 and answer.json()["metadata"] == most
    for wrong in (most | {"a": "b"}, {"x" * 65: ""}, {"a": "x" * 513}, {"a": 1}, "x"):
        refused = server.post("/v1/responses", body | {"metadata": wrong})
        assert refused.status_code == 400 and "metadata" in refused.json()["error"]["message"]
    assert server.post("/v1/responses", body | {"user": "x" * 513}).status_code == 400
    for name, value in (("reasoning", {"x": "y" * (1 << 20)}), ("parallel_tool_calls", [0] * (1 << 19))):
        refused = server.post("/v1/responses", body | {name: value})
        assert refused.status_code == 400 and name in refused.json()["error"]["message"]


def test_licenses_of_a_model_are_bounded(server: TestServer) -> None:
    refused = server.post("/api/create", {"model": "licensed", "from": MODEL, "license": ["a"] * 65})
    assert refused.status_code == 400 and "license: expected array of length <= 64" in refused.json()["error"]
