# SPDX-License-Identifier: MIT
"""Tests that neither a single request nor many simultaneous slow requests block the server. Meanwhile a
stream must continue, `/health` must answer, and a new chat must begin and end.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eaglecpp import Engine, limits
from eaglecpp.chat.codec import ChatCodec
from eaglecpp.chat.jinja import JinjaTemplate
from eaglecpp.chat.message import Message
from eaglecpp.engine.embedding import Embedder
from eaglecpp.engine.request import GenerationRequest
from eaglecpp.engine.scheduler import Scheduler
from eaglecpp.errors import TemplateError
from eaglecpp.server import answer, models
from eaglecpp.server.answer import ServedRequest
from eaglecpp.server.config import Preset
from eaglecpp.store import Status
from helpers.http_server import FAST, MODEL, TARGET, TestServer, until

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


# Slow requests and clients

BOUND_S = 8.0  # Maximum seconds for an answer to /health on a busy machine. Earlier versions took minutes.
BURNS = "{% for a in range(300) %}{% for b in range(300) %}{% set x = a * b %}{% endfor %}{% endfor %}"


def chat_body(**rest: Any) -> dict[str, Any]:
    return CHAT | rest


def slowest_health(server: TestServer, path: str, body: Any) -> tuple[float, Any]:
    """Returns the longest wait for /health while a request is served, and the request's answer."""
    slowest = 0.0
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, path, body)
        while not answer.done():
            started = time.perf_counter()
            assert server.get("/health").status_code == 200
            slowest = max(slowest, time.perf_counter() - started)
            time.sleep(0.01)
    return slowest, answer.result()


@pytest.mark.parametrize(
    ("path", "more", "status"),
    [
        ("/api/generate", {}, 200),
        ("/api/generate", {"think": True}, 400),
        ("/v1/messages/count_tokens", {}, 200),
    ],
)
def test_templates_are_rendered_outside_the_loop(
    server: TestServer, path: str, more: dict[str, Any], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that templates do not block the event loop: the template of a request is compiled, rendered and
    probed in a separate thread.
    """
    original, on_the_loop = JinjaTemplate.render, []

    def render(self: JinjaTemplate, variables: Mapping[str, Any]) -> str:
        with suppress(RuntimeError):
            on_the_loop.append(asyncio.get_running_loop())
        return original(self, variables)

    monkeypatch.setattr(JinjaTemplate, "render", render)
    template = BURNS + "{% for message in messages %}{{ message.content }}{% endfor %}"
    slowest, answer = slowest_health(server, path, chat_body(prompt="a", template=template, **more))
    assert answer.status_code == status and not on_the_loop, answer.text
    assert slowest < 0.5


def test_all_renderings_of_a_request_share_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that all renderings of a request share one time limit. If messages are left out, a conversation
    is rendered many times, and a template is also probed. In this test, the clock counts renderings.
    """
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    question, answer = Message("user", "word " * 40), Message("assistant", "word " * 40)
    original, rendered = JinjaTemplate.render, []

    def render(self: JinjaTemplate, variables: Mapping[str, Any]) -> str:
        rendered.append(variables)
        return original(self, variables)

    monkeypatch.setattr(JinjaTemplate, "render", render)
    clock = SimpleNamespace(thread_time=lambda: len(rendered), perf_counter=time.perf_counter)
    monkeypatch.setattr("eaglecpp.chat.bounds.time", clock)
    monkeypatch.setattr("eaglecpp.chat.bounds.MAX_SECONDS", 1000)
    with Engine.open(TARGET, **FAST) as engine:
        shared = engine.shared
        asked = GenerationRequest(messages=[question], template=template, truncate=True)
        shared.prompt(asked)
        n_once = len(rendered)
        monkeypatch.setattr("eaglecpp.chat.bounds.MAX_SECONDS", n_once + 2)
        with pytest.raises(TemplateError, match="the template runs longer than"):
            shared.prompt(replace(asked, messages=[question, answer] * 100 + [question]))
        assert len(rendered) <= 2 * n_once + 4


def test_a_body_of_too_many_values_is_not_read(server: TestServer) -> None:
    body = b'{"model": "demo", "x": [' + b"{}," * 2_000_000 + b"0]}"
    slowest, answer = slowest_health(server, "/v1/chat/completions", body)
    assert answer.status_code == 413 and f"the maximum is {limits.JSON_VALUES}" in answer.text
    assert slowest < BOUND_S


def ask_without_reading(server: TestServer, client: socket.socket, n_tokens: int = 450) -> None:
    """Requests an answer that is larger than the buffers of a connection, and does not read the answer."""
    body = chat_body(
        stream=True, max_tokens=n_tokens, options={"ignore_eos": True}, logprobs=True, top_logprobs=20
    )
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(server.listener.getsockname())
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)


def test_an_answer_ends_if_no_client_reads(store_root: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The slot of an answer that no client reads is freed, although the connection is still open."""
    with TestServer(preload=MODEL, unread_s=0.5) as own, socket.socket() as client:
        (model,) = own.server._shared.models.values()
        ask_without_reading(own, client)
        until(lambda: "the client read nothing for 0.5 s" in caplog.text)
        until(lambda: model.n_users == 0)


@pytest.mark.parametrize(("n_tokens", "config"), [(450, {"n_unread": 5}), (6000, {})], ids=["5", "default"])
def test_an_answer_that_the_server_ends_is_an_error(
    store_root: Any, caplog: pytest.LogCaptureFixture, n_tokens: int, config: dict[str, Any]
) -> None:
    engine = FAST | {"n_ctx": 8192}
    with TestServer(preload=MODEL, engine=engine, **config) as own, socket.socket() as client:
        ask_without_reading(own, client, n_tokens)
        until(lambda: "tokens unread" in caplog.text)
        client.settimeout(20)
        text = b""
        while not text.endswith(b"0\r\n\r\n") and (part := client.recv(65536)):
            text += part
        assert b"before it was complete" in text and b'"finish_reason":"' not in text.replace(b" ", b"")


@pytest.mark.parametrize(
    ("path", "ping"),
    [
        ("/v1/chat/completions", "\n\n: ping\n\n"),
        ("/v1/messages", '\n\nevent: ping\ndata: {"type":"ping"}\n\n'),
        ("/api/chat", ""),
    ],
)
def test_a_stream_says_that_it_lives(
    path: str, ping: str, server: TestServer, slow_rounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream must send signs of life: Claude Code leaves after 300 s of silence, but a CPU needs longer to
    read its prompt of 20,000 tokens.
    """
    monkeypatch.setattr("eaglecpp.server.http._PING_S", 0.01)
    text = server.post(path, chat_body(stream=True, draft=False)).text
    assert ping in text if ping else "ping" not in text


def test_a_preempted_request_says_that_others_wait(store_root: Any, slow_rounds: None) -> None:
    body = chat_body(max_tokens=450, stream=True, options={"ignore_eos": True}, draft=False)
    with TestServer(preload=MODEL, n_parallel=1, slot_time_s=0.2) as own, ThreadPoolExecutor() as pool:
        events = own.events("/v1/chat/completions", body)
        assert "choices" in next(events)
        for _ in range(2):
            pool.submit(own.post, "/v1/chat/completions", chat_body())
        last = [event for event in events if event != "[DONE]"][-1]
    assert last["error"]["code"] == "timeout" and "requests were queued" in last["error"]["message"]
