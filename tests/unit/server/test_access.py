# SPDX-License-Identifier: MIT
"""Tests access to the server: host names, web pages, keys, and which other servers a request may name."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from eaglecpp.cli import main
from eaglecpp.server.run import PortInUseError
from helpers.http_server import MODEL, TARGET, TestServer
from helpers.hub_server import HubServer


@pytest.fixture(scope="module")
def registry() -> Iterator[HubServer]:
    """Starts a registry with a model, and returns its address as an untrusted client would name it."""
    with HubServer() as hub:
        hub.publish("library/tiny:1b", {"model": TARGET.read_bytes()})
        yield hub


def test_pages_of_other_sites_are_refused(server: TestServer) -> None:
    evil = {"Origin": "https://evil.example"}
    assert server.get("/api/tags", headers=evil).status_code == 403
    assert "access-control-allow-origin" not in server.get("/api/tags", headers=evil).headers
    for origin in ("http://localhost:3000", "app://x", "tauri://localhost", "vscode-webview://x", server.url):
        assert (
            server.get("/api/tags", headers={"Origin": origin}).headers["access-control-allow-origin"]
            == origin
        )
    asked = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Private-Network": "true",
             "Access-Control-Request-Headers": "x-stainless-os,openai-beta"}  # fmt: skip
    reply = requests.options(f"{server.url}/v1/chat/completions", headers=asked, timeout=30)
    allowed = reply.headers["access-control-allow-headers"].lower()
    assert reply.status_code == 200 and "x-stainless-os" in allowed and "openai-beta" in allowed


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200), ("LocalHost", 200), ("localhost.", 200), ("a.localhost:80", 200),
        ("127.0.0.1:11434", 200), ("[::1]:11434", 200), ("10.1.2.3:11434", 200), ("[fe80::1]", 200),
        ("eagle.lan:11434", 200), ("EAGLE.lan", 200), ("own.example", 200),
        ("evil.example:11434", 403), ("[::1].evil.example", 403), ("127.0.0.1.evil.example", 403),
        ("x@localhost", 403), ("localhost:x", 403), ("box.local", 403), ("box.internal:11434", 403),
        ("host.docker.internal:11434", 403), ("localhost.evil.example", 403), (":11434", 403),
    ],
)  # fmt: skip
def test_foreign_host_names_of_this_machine_are_refused(named: TestServer, host: str, status: int) -> None:
    """Tests a page of evil.example whose host name points to this machine: it is not a page of this server,
    so its requests are refused. A request to an IP address cannot come from such a page.
    """
    headers = {"Host": host, "Origin": f"http://{host}"}
    assert named.get("/api/tags", headers={"Host": host}).status_code == status
    assert named.get("/api/tags", headers=headers).status_code == status


@pytest.fixture(scope="module")
def named(store_root: Path) -> Iterator[TestServer]:
    """Starts a server as on a network, which also checks host names. Only the address on which the server
    listens counts as this machine's address.
    """
    with TestServer(host="own.example", hosts=("eagle.lan",)) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "site", "mode", "status"),
    [
        ("/props?model=demo", "cross-site", "no-cors", 403), ("/props", "cross-site", "navigate", 403),
        ("/api/tags", "same-origin", "cors", 200), ("/api/tags", "none", "navigate", 200),
        ("/api/tags", "same-site", "no-cors", 200), ("/", "cross-site", "navigate", 200),
        ("/", "cross-site", "no-cors", 403), ("/metrics", "cross-site", "no-cors", 403),
    ],
)  # fmt: skip
def test_requests_without_origin_from_other_pages_are_refused(
    server: TestServer, path: str, site: str, mode: str, status: int
) -> None:
    """Tests requests from other pages that have no Origin header. Without this check, <img
    src="http://127.0.0.1:11434/props?model=large"> would load a model. A link to the server's page is
    allowed.
    """
    assert server.get(path, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "bearer secret"}, 200), ({"Authorization": "BEARER  secret"}, 200),
        ({"Authorization": "Bearer wrong", "X-Api-Key": "secret"}, 200),
        ({"Authorization": "Bearer secret", "X-Api-Key": "wrong"}, 200),
        ({"Authorization": "Basic secret"}, 401), ({"Authorization": "Bearer "}, 401),
        ({"X-Api-Key": ""}, 401),
        ({"Authorization": "Bearer schlüssel".encode()}, 200),
        ({"Authorization": "Bearer schlüssel".encode("latin-1")}, 401),
        ({"Authorization": "Bearer schl?ssel"}, 401), ({"Authorization": b"Bearer \xff"}, 401),
        ({"X-Api-Key": "\u9375".encode()}, 200), ({"X-Api-Key": "?"}, 401),
    ],
)  # fmt: skip
def test_a_key_is_read_as_clients_send_it(keyed: TestServer, headers: dict[str, str], status: int) -> None:
    assert keyed.get("/api/tags", headers=headers).status_code == status
    assert keyed.get("/v1/models").json()["error"]["code"] == "invalid_api_key"
    assert keyed.get("/health").status_code == 200


def test_no_count_reveals_the_prompt_of_another_key(keyed: TestServer) -> None:
    def ask(key: str, digit: int) -> tuple[Any, ...]:
        text = f"The number of the safe is 7351{digit}, and nobody else may know it. What is len?"
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2}
        headers = {"Authorization": f"Bearer {key}"}
        answer = keyed.post("/v1/chat/completions", body, headers=headers).json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached, *(answer["timings"][name] for name in ("cache_n", "reused_n", "prompt_n"))

    assert ask("secret", 7)[:2] == (0, 0)
    assert ask("secret", 7)[0] > 10, "a key's own prompt must count as cached"
    assert ask("other", 4)[:2] == (0, 0)
    right, wrong = ask("other", 7), ask("other", 5)
    assert right == wrong and right[0] > 10


def test_a_request_that_never_began_is_counted_for_no_key(store_root: Path, slow_rounds: None) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 400, "options": {"ignore_eos": True}}
    with TestServer(keys=("a", "b"), n_parallel=1, request_s=3.0, preload=MODEL) as own:
        with ThreadPoolExecutor() as pool:
            posts = [
                pool.submit(own.post, "/v1/completions", body, headers={"X-Api-Key": key}) for key in "ab"
            ]
        assert [post.result().status_code for post in posts] == [504, 504]


@pytest.fixture(scope="module")
def keyed(store_root: Path) -> Iterator[TestServer]:
    with TestServer(keys=("secret", "other", "schlüssel", "\u9375")) as running:
        yield running


def test_a_body_has_one_length(server: TestServer) -> None:
    """Tests that a body has exactly one length. If the server and a proxy read the length differently, one
    request can hide in another.
    """
    client = http.client.HTTPConnection(*server.listener.getsockname(), timeout=30)
    client.putrequest("POST", "/api/show")
    client.putheader("Content-Length", "4")
    client.putheader("Transfer-Encoding", "chunked")
    client.endheaders(b"0\r\n\r\nGET /api/tags HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = client.getresponse()
    assert answer.status == 400 and b"found both" in answer.read()
    assert client.sock is None, "the server must close the connection"


OPEN = [["--host", host] for host in ("0.0.0.0", "::", "192.168.1.7", "eagle.lan", "127.0.0.1.evil.example")]
KEYS = [[], ["--api-key", ""], ["--api-key", "x", "--no-key"]]
MEANT = [[*OPEN[0], "--no-key"], [*OPEN[1], "--api-key", "x"], ["--host", "::1"], ["--host", "127.9.9.9"], []]


@pytest.mark.parametrize(
    ("options", "is_meant"),
    [*((host + key, False) for host in OPEN for key in KEYS), *((one, True) for one in MEANT)],
)
def test_a_server_open_to_a_network_does_not_start_by_mistake(
    options: list[str], is_meant: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def bind(*args: object) -> None:
        raise PortInUseError("it would listen")

    monkeypatch.setattr("eaglecpp.server.run.bind", bind)
    assert main(["serve", *options]) == (1 if is_meant else 2)
    assert ("it would listen" if is_meant else "--api-key") in capsys.readouterr().err


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("place", ["{0.host}", "http://{0.host}", "localhost:{0.port}"])
def test_requests_do_not_make_this_server_contact_others(
    server: TestServer, registry: HubServer, place: str, stream: bool
) -> None:
    name = f"{place.format(registry)}/library/tiny:1b"
    answer = server.post("/api/pull", {"model": name, "stream": stream})
    assert answer.status_code == 403 and "--allow-registry" in answer.json()["error"], answer.text
    assert registry.log == []


def test_an_allowed_registry_is_contacted(store_root: Path, registry: HubServer) -> None:
    with TestServer(insecure=True, registries=(registry.host,)) as own:
        name = f"http://{registry.host}/library/tiny:1b"
        assert own.post("/api/pull", {"model": name, "insecure": True, "stream": False}).status_code == 200
        assert requests.delete(f"{own.url}/api/delete", json={"model": name}, timeout=30).status_code == 200
        registry.log.clear()
