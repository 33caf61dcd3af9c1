# SPDX-License-Identifier: MIT
"""One request cannot take the server from the others: `/health` is asked while it is served."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from eaglecpp import AsyncEngine, limits
from eaglecpp.chat.message import Message
from eaglecpp.chat.model import ChatModel
from eaglecpp.chat.template import TemplateError
from eaglecpp.engine.places import TurnLock
from eaglecpp.errors import GrammarError, PlaceLostError
from eaglecpp.server.answer import Ask, make_prompt
from eaglecpp.server.config import ServerConfig
from eaglecpp.server.http import LiveResponse
from eaglecpp.server.loaded import LoadedModel, find_source, plan_source
from eaglecpp.server.run import bind
from helpers.http_server import FAST, MODEL, TARGET, TestServer

BOUND_S = 2.0  # of an answer to /health; some tests run beside others on two cores
BURNS = "{% for a in range(300) %}{% for b in range(300) %}{% set x = a * b %}{% endfor %}{% endfor %}"
QUESTION = {"role": "user", "content": "What is len?"}


@pytest.fixture(scope="module")
def stalled(store_root: Any) -> Iterator[TestServer]:
    with TestServer(preload=MODEL, n_parallel=2) as running:
        yield running


def chat(**rest: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [QUESTION], "stream": False, "max_tokens": 4} | rest


def slowest_health(server: TestServer, path: str, body: Any) -> tuple[float, Any]:
    """The longest wait for /health while a request is served, and its answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(server.post(path, data)))
    thread.start()
    slowest = 0.0
    while thread.is_alive():
        started = time.perf_counter()
        assert server.get("/health").status_code == 200
        slowest = max(slowest, time.perf_counter() - started)
        thread.join(0.01)
    return slowest, answers[0]


@pytest.mark.parametrize(
    "text",
    ["<|im_end|>" * 100_000, " " * 4_000_000, "'s" * 5_000_000, "word " * 2_500_000],
    ids=["special tokens", "spaces", "'s", "words"],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/api/chat"])
def test_a_prompt_that_cannot_fit_is_refused_at_once(stalled: TestServer, path: str, text: str) -> None:
    body = chat(messages=[{"role": "user", "content": text}], prompt=text)
    started = time.perf_counter()
    slowest, answer = slowest_health(stalled, path, body)
    assert answer.status_code == 400 and "the context has 512" in answer.text
    assert slowest < BOUND_S and time.perf_counter() - started < 15


@pytest.mark.parametrize("path", ["/api/generate", "/v1/messages/count_tokens"])
def test_templates_are_rendered_beside_the_loop(
    stalled: TestServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they are rendered: a loop of asyncio in the thread would say so."""
    original, on_the_loop = ChatModel.render, []

    def render(self: ChatModel, *args: Any, **options: Any) -> Any:
        with suppress(RuntimeError):
            on_the_loop.append(asyncio.get_running_loop())
        return original(self, *args, **options)

    monkeypatch.setattr(ChatModel, "render", render)
    body = chat(context=[1, 2, 3], prompt="a", template=BURNS)
    slowest, answer = slowest_health(stalled, path, body)
    assert answer.status_code == 200 and not on_the_loop
    assert slowest < BOUND_S


def test_all_renderings_of_a_request_share_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making room renders a conversation many times."""
    config = ServerConfig(engine=FAST)
    source = find_source(MODEL, config, {MODEL: TARGET})
    model = LoadedModel.load(source, plan_source(source, config, 0), config, TurnLock())
    template = "{% for a in range(300) %}{% for b in range(300) %}{% set x = a * b %}{% endfor %}{% endfor %}"
    template += "{% for message in messages %}{{ message.content }}{% endfor %}"
    question, answer = Message("user", "word " * 40), Message("assistant", "word " * 40)
    try:
        started = time.thread_time()
        make_prompt(model, Ask(MODEL, [question], template=template))
        once_s = time.thread_time() - started
        monkeypatch.setattr("eaglecpp.chat.jinja_bounds.MAX_SECONDS", 2 * once_s)
        started = time.thread_time()
        with pytest.raises(TemplateError, match="it takes longer than"):
            make_prompt(model, Ask(MODEL, [question, answer] * 100 + [question], template=template))
        assert time.thread_time() - started < 4 * once_s
    finally:
        asyncio.run(model.engine.close())


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("stop", ["x"] * 300_000, f"stop: 300000 texts, at most {limits.STOP_STRINGS}"),
        ("stop", ["x" * 20_000], f"stop: 20000 characters in all, at most {limits.STOP_CHARS}"),
        ("logit_bias", {str(i): 1 for i in range(20_000)}, f"20000 entries, at most {limits.LOGIT_BIASES}"),
        ("options", {"dry_multiplier": 1, "dry_sequence_breakers": ["x"] * 2000},
         f"dry_sequence_breakers: 2000 texts, at most {limits.DRY_BREAKERS}"),
        ("options", {"dry_multiplier": 1, "dry_sequence_breakers": ["x" * 1000]},
         f"dry_sequence_breakers: 1000 characters in all, at most {limits.DRY_CHARS}"),
    ],
)  # fmt: skip
def test_what_is_too_much_is_refused_with_the_limit(
    stalled: TestServer, field: str, value: Any, told: str
) -> None:
    slowest, answer = slowest_health(stalled, "/v1/chat/completions", chat(**{field: value}))
    assert answer.status_code == 400 and told in answer.json()["error"]["message"]
    assert slowest < BOUND_S


def test_a_body_of_too_many_values_is_not_read(stalled: TestServer) -> None:
    body = b'{"model": "demo", "x": [' + b"{}," * 2_000_000 + b"0]}"
    slowest, answer = slowest_health(stalled, "/v1/chat/completions", body)
    assert answer.status_code == 413 and f"at most {limits.JSON_VALUES}" in answer.text
    assert slowest < BOUND_S


def test_many_stop_strings_do_not_slow_an_answer_down(stalled: TestServer) -> None:
    stops = [f"{i:04d}{'z' * 50}" for i in range(limits.STOP_STRINGS)]
    answer = stalled.post("/v1/chat/completions", chat(stop=stops, temperature=0))
    assert answer.status_code == 200
    plain = stalled.post("/v1/chat/completions", chat(temperature=0)).json()
    assert answer.json()["choices"][0]["message"] == plain["choices"][0]["message"]


def test_the_answer_of_a_client_that_reads_nothing_ends() -> None:
    """And its place is given back, though the connection is still there."""
    closed, sent = threading.Event(), 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            yield b"x" * 1000
            sent += 1000

    async def answer(request: Request) -> LiveResponse:
        stack = AsyncExitStack()
        stack.callback(closed.set)
        return LiveResponse(parts(), stack, "text/event-stream")

    class State:
        config = ServerConfig(unread_s=0.5)

    app = Starlette(routes=[Route("/", answer)])
    app.state.server = State
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    client = socket.socket()
    try:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.getsockname())
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert closed.wait(20), f"{sent} bytes were sent to a client that reads nothing"
        assert sent < 2_000_000
    finally:
        client.close()
        server.should_exit = True
        thread.join()
        listener.close()


def test_a_generation_that_nobody_takes_ends() -> None:
    async def run() -> tuple[int, str]:
        options: dict[str, Any] = {"max_tokens": 150, "ignore_eos": True, "strategy": "off"}
        engine = await AsyncEngine.open(TARGET, n_parallel=1, n_unread=20, **FAST)
        async with engine, engine.stream("What", **options) as stuck:
            await stuck.started()
            deadline = time.monotonic() + 30
            while engine.n_running and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            reason = stuck.completion().finish_reason
            read = await engine.generate("What", **options)  # whoever reads gets it all
            assert len(read.tokens) == 150
            return len([chunk async for chunk in stuck]), reason

    n_chunks, reason = asyncio.run(run())
    assert 20 <= n_chunks < 100 and reason == "cancelled"


def test_a_long_answer_gives_its_place_back_when_others_wait() -> None:
    async def run() -> tuple[str, int, int]:
        options: dict[str, Any] = {"ignore_eos": True, "strategy": "off"}
        engine = await AsyncEngine.open(TARGET, n_parallel=1, place_s=0.05, **FAST)
        async with engine:
            alone = await engine.generate("What", max_tokens=100, **options)
            async with engine.stream("What", max_tokens=400, temperature=0.9, **options) as long:
                await long.started()
                while not long.completion().tokens or engine.n_waiting:
                    await asyncio.sleep(0.01)
                others = [engine.generate("What", max_tokens=100, **options) for _ in range(2)]
                done = await asyncio.gather(*others, return_exceptions=True)
                with pytest.raises(PlaceLostError, match="others wait for its place"):
                    async for _ in long:
                        pass
            last = done[-1]
            assert not isinstance(last, BaseException)
            return str(alone.finish_reason), len(alone.tokens), len(last.tokens)

    reason, n_alone, n_last = asyncio.run(run())
    assert (reason, n_alone, n_last) == ("length", 100, 100)  # whom nobody waits for goes on to the end


def test_what_takes_time_before_a_generation_is_done_beside_the_engine() -> None:
    """DRY looks through the whole vocabulary for each of its breakers."""

    async def run() -> None:
        options: dict[str, Any] = {"dry_multiplier": 1.0, "seed": 3, "max_tokens": 20, "temperature": 0.7}
        engine = await AsyncEngine.open(TARGET, n_parallel=1, **FAST)
        async with engine:
            expected = await engine.generate("What", **options)
            request = await asyncio.to_thread(engine.request, "What", **options)
            async with engine.stream(request) as stream:
                tokens = [token async for chunk in stream for token in chunk.tokens]
            assert tokens == expected.tokens
            async with engine.stream(request) as stream:
                with pytest.raises(ValueError, match="a sampler is for one generation"):
                    await anext(aiter(stream))
            with pytest.raises(GrammarError):
                await asyncio.to_thread(engine.request, "What", grammar="not a grammar")

    asyncio.run(run())


def test_whose_place_others_wait_for_is_told_so(store_root: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step = AsyncEngine._step

    def slow_step(self: AsyncEngine, tasks: Any) -> None:
        """However fast the machine, the long answer is still under way when the others come."""
        time.sleep(0.005)
        step(self, tasks)

    monkeypatch.setattr(AsyncEngine, "_step", slow_step)
    body = chat(max_tokens=450, stream=True, options={"ignore_eos": True}, draft=False)
    with TestServer(preload=MODEL, n_parallel=1, place_s=0.2) as server:
        events = server.events("/v1/chat/completions", body)
        assert "choices" in next(events)
        others = [threading.Thread(target=server.post, args=("/v1/chat/completions", chat())) for _ in "ab"]
        for other in others:
            other.start()
        last = [event for event in events if event != "[DONE]"][-1]
        for other in others:
            other.join()
    assert last["error"]["code"] == "timeout" and "others wait for its place" in last["error"]["message"]
