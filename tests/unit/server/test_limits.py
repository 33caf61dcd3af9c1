# SPDX-License-Identifier: MIT
"""Tests the server with many clients, clients that disconnect, and several models. Also tests limits per
client: connections, unfinished requests, bytes of bodies, lines of the log, and time for slow input. During
each test of a limit, the server must serve an ordinary client.
"""

from __future__ import annotations

import http.client
import json
import logging
import select
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import requests

from eaglecpp.server.errors import as_api_error
from eaglecpp.server.run import Seldom, raise_file_limit
from eaglecpp.store.errors import StoreError
from helpers.http_server import FAST, MODEL, TARGET, TestServer, until

pytestmark = pytest.mark.alone  # these tests measure time

SHORT_S = 1.5
N_CONNECTIONS = 12
N_HELD = 3 << 20


@pytest.fixture(scope="module")
def strict(store_root: Path) -> Iterator[TestServer]:
    """Starts a server with limits so low that a test reaches them at once."""
    with TestServer(
        preload=MODEL, n_connections=N_CONNECTIONS, head_s=SHORT_S, body_s=SHORT_S, n_body=8 << 20
    ) as running:
        yield running


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def is_served(server: TestServer) -> bool:
    body = {"model": MODEL, "prompt": "def", "stream": False, "options": {"num_predict": 2}}
    return server.post("/api/generate", body).status_code == 200


def answer_of(connection: socket.socket) -> bytes:
    """Returns all bytes that the server sends until it closes the connection."""
    data = b""
    try:
        while part := connection.recv(1 << 16):
            data += part
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize(
    "data", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A:"]
)  # fmt: skip
def test_an_incomplete_head_times_out(strict: TestServer, data: bytes) -> None:
    with strict.connect(data) as connection:
        answer_of(connection)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nX-A:", head("/api/show", "Content-Length: 100") + b'{"mod']
)  # fmt: skip
def test_a_client_with_too_many_connections_loses_the_oldest(store_root: Path, data: bytes) -> None:
    limits = {"n_connections": N_CONNECTIONS, "head_s": 600.0, "body_s": 600.0}
    with TestServer(preload=MODEL, **limits) as own, ExitStack() as stack:
        opened = [stack.enter_context(own.connect(data)) for _ in range(10 * N_CONNECTIONS)]
        assert is_served(own)
        assert len(own.server.server_state.connections) <= N_CONNECTIONS + 1
        assert answer_of(opened[0]) == b""
        opened[-2].settimeout(0.2)
        with pytest.raises(TimeoutError):
            opened[-2].recv(1)


@pytest.mark.parametrize(
    ("path", "line"), [("/api/chat", "Content-Length: 1000"), ("/api/show", "Transfer-Encoding: chunked")]
)
def test_a_missing_body_times_out(strict: TestServer, path: str, line: str) -> None:
    with strict.connect(head(path, line) + b"5\r\n{abcd\r\n") as connection:
        answer = answer_of(connection)
        assert answer.startswith(b"HTTP/1.1 408 ") and b"too slow" in answer


def test_a_body_has_time_for_each_megabyte(store_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that a body has time for each megabyte: each megabyte has a time limit, but the whole body may
    take longer.
    """
    monkeypatch.setattr("eaglecpp.server.http._STEP", 1000)
    with TestServer(body_s=4.0) as own, own.connect(head("/api/show", "Content-Length: 4000")) as connection:
        for _ in range(4):
            time.sleep(1.5)
            connection.sendall(b" " * 1000)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_the_rest_of_a_refused_body_is_read_for_a_limited_time(strict: TestServer) -> None:
    with strict.connect(head("/nowhere", "Content-Length: 1000000000") + b"x" * 1000) as connection:
        assert answer_of(connection).startswith(b"HTTP/1.1 404 ")


def test_large_bodies_share_a_limit_that_small_ones_do_not_count_against(store_root: Path) -> None:
    """Sends three large bodies, of which two fit into the limit. The body whose bytes arrive last is refused.
    Small bodies do not count.
    """
    with TestServer(preload=MODEL, n_body=2 << 20, n_held=N_HELD) as own:
        with ExitStack() as stack:
            data = head("/api/show", "Content-Length: 2000000") + b"x" * 1_400_000
            clients = [stack.enter_context(own.connect(data)) for _ in range(3)]
            refused, _, _ = select.select(clients, [], [], 30)
            assert refused, "one of the three connections must be refused"
            answer = http.client.HTTPResponse(refused[0])
            answer.begin()
            assert answer.status == 503 and b"large requests" in answer.read()
            assert is_served(own)
        large = {"model": "nobody", "x": "x" * 1_000_000}
        # The test waits until the memory of the large bodies is released.
        until(lambda: own.post("/api/show", large).status_code != 503)


def test_bodies_in_very_small_chunks_are_refused(server: TestServer) -> None:
    """Tests bodies in very small chunks. They are refused, because reading a very small chunk takes as long
    as reading a large chunk.
    """
    url, few = f"{server.url}/api/show", b'{"model": "nobody"}' + b" " * 5000
    assert requests.post(url, data=iter([b"%c" % b for b in few]), timeout=60).status_code == 404
    with server.connect(head("/api/show", "Transfer-Encoding: chunked")) as connection:
        connection.sendall(b"1\r\nx\r\n" * 10_500)
        answer = answer_of(connection)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"send larger ones" in answer
    assert requests.post(url, data=(b"x" * 2000 for _ in range(900)), timeout=60).status_code == 400


def test_as_many_files_as_the_user_may_open() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert raise_file_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_repeated_messages_are_logged_rarely(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("asyncio")
    seldom = Seldom()
    log.addFilter(seldom)
    try:
        for i in range(1000):
            log.error("accept: too many open files, %d", i)
        log.error("something else")
        assert len(caplog.records) < 30 and "something else" in caplog.text
    finally:
        log.removeFilter(seldom)


SLOW = "1" * 60_000 + "x"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"model": MODEL, "prompt": "x", "keep_alive": SLOW}),
        ("/api/generate", {"model": MODEL, "prompt": "x", "strategy": "chain:" + SLOW}),
        ("/api/generate", {"model": MODEL, "prompt": "x", "options": {"temperature": "1" * 60_000}}),
        ("/api/generate", {"model": MODEL, "prompt": "x", "format": {"pattern": "a{" + "1" * 60_000 + "}"}}),
        ("/api/generate", {"model": MODEL, "prompt": "x", "format": {"$ref": "#/" + SLOW}}),
        ("/api/generate", {"model": MODEL, "prompt": "x", "format": SLOW}),
        ("/api/chat", {"model": MODEL, "messages": [{"role": "user", "content": "x", "images": [SLOW]}]}),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/" + "x." * 30_000}}]}]}),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": SLOW, "content": "x"}]}),
        ("/api/show", {"model": "a@" * 30_000}),
        ("/api/show", {"model": "-" * 60_000 + ".gguf-00001-of-"}),
        ("/api/pull", {"model": "registry.ollama.ai/" + "x/" * 30_000}),
        ("/tokenize", {"model": MODEL, "content": "x" * 1_200_000}),
        ("/api/embed", {"model": MODEL, "input": "\u00e9" * 1_200_000, "truncate": False}),
        ("/completion", {"model": MODEL, "prompt": "x", "logit_bias": {"9" * 60_000: 1}}),
        ("/completion", {"model": MODEL, "prompt": "x", "logit_bias": [[1, 1]] * 20_000}),
        ("/completion", {"model": MODEL, "prompt": ["a"] * 400_000}),
        ("/v1/completions", {"model": MODEL, "prompt": ["a"] * 400_000, "n": 2}),
    ],
    ids=lambda value: "".join(value) if isinstance(value, str) else "-".join(value),
)  # fmt: skip
def test_a_long_value_is_refused_at_once_with_a_short_message(
    server: TestServer, path: str, body: dict[str, Any]
) -> None:
    """Tests that a long value is refused at once, whatever its content: no regular expression is slow on the
    value, and the error does not repeat the value.
    """
    started = time.process_time()  # CPU time of the test's process, which also runs the server
    answer = server.post(path, body | {"stream": False})
    assert 400 <= answer.status_code < 500, answer.text
    assert time.process_time() - started < 3.0
    assert len(answer.content) < 700


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("/home/me/models/a.gguf: damaged", "a.gguf: damaged"),
        ("a: expected '/srv/x/blobs/sha256-12', found /tmp/y/z", "a: expected 'sha256-12', found z"),
        (r"C:\Users\me\a.gguf: damaged", "a.gguf: damaged"),
        ("see https://huggingface.co/a/b/c, or hf.co/a/b", "see https://huggingface.co/a/b/c, or hf.co/a/b"),
        ("and/or", "and/or"),
    ],
)
def test_errors_name_files_not_folders(text: str, reply: str) -> None:
    assert as_api_error(StoreError(text)).message == reply


# Many clients and models


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
