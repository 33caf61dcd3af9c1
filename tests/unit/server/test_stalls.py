# SPDX-License-Identifier: MIT
"""Tests that no request blocks the server for other clients: `/health` must answer during each request."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from eaglecpp import Engine, limits
from eaglecpp.chat.jinja import JinjaTemplate
from eaglecpp.chat.message import Message
from eaglecpp.engine.request import GenerationRequest
from eaglecpp.errors import TemplateError
from helpers.http_server import FAST, MODEL, TARGET, TestServer, until

pytestmark = pytest.mark.alone  # these tests measure time

BOUND_S = 8.0  # Maximum seconds for an answer to /health on a busy machine. Earlier versions took minutes.
BURNS = "{% for a in range(300) %}{% for b in range(300) %}{% set x = a * b %}{% endfor %}{% endfor %}"
QUESTION = {"role": "user", "content": "What is len?"}


def chat(**rest: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [QUESTION], "stream": False, "max_tokens": 4} | rest


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
    slowest, answer = slowest_health(server, path, chat(prompt="a", template=template, **more))
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
    body = chat(
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
    text = server.post(path, chat(stream=True, draft=False)).text
    assert ping in text if ping else "ping" not in text


def test_a_preempted_request_says_that_others_wait(store_root: Any, slow_rounds: None) -> None:
    body = chat(max_tokens=450, stream=True, options={"ignore_eos": True}, draft=False)
    with TestServer(preload=MODEL, n_parallel=1, slot_time_s=0.2) as own, ThreadPoolExecutor() as pool:
        events = own.events("/v1/chat/completions", body)
        assert "choices" in next(events)
        for _ in range(2):
            pool.submit(own.post, "/v1/chat/completions", chat())
        last = [event for event in events if event != "[DONE]"][-1]
    assert last["error"]["code"] == "timeout" and "requests were queued" in last["error"]["message"]
