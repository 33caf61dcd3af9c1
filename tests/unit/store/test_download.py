# SPDX-License-Identifier: MIT
"""Tests downloads from a server that sends too much, compresses its answers, or redirects to an unencrypted
address.
"""

from __future__ import annotations

import gzip
import hashlib
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from eaglecpp.references import ModelName
from eaglecpp.store import DownloadError, OfflineError, Status, StoreError, Stores
from eaglecpp.store.errors import silent
from eaglecpp.store.layout import partial_path
from eaglecpp.store.manifest import MAX_JSON
from eaglecpp.store.remote.download import MAX_SMALL, Remote, fetch, get
from eaglecpp.store.remote.pull import pull
from eaglecpp.store.remote.reach import HttpSession
from helpers.clock import set_clock
from helpers.hub_server import Answer, HubServer
from helpers.stores import OllamaModel, Tiny

pytestmark = pytest.mark.alone  # these tests measure time


def send(body: bytes, **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return answer


def endless(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    try:
        while True:
            request.wfile.write(b" " * (1 << 20))
    except OSError:  # the client has closed the connection, which the test expects
        pass


def test_an_answer_beyond_its_limit_is_refused(hub: HubServer, stores: Stores, root: Path) -> None:
    hub.answer = endless
    with pytest.raises(DownloadError, match=f"expected at most {MAX_SMALL} bytes, but the server sent more"):
        pull(ModelName.parse(f"http://{hub.host}/library/m:1"), insecure=True)
    with HttpSession() as session, pytest.raises(DownloadError, match="expected at most 10 bytes"):
        fetch(session, root, remote_of(hub.host, 10), silent)


def test_a_compressed_answer_is_not_unpacked(hub: HubServer, root: Path) -> None:
    hub.answer = send(gzip.compress(b" " * (64 << 20)), Content_Encoding="gzip")
    with HttpSession() as session, pytest.raises(DownloadError, match="sent gzip, which was not requested"):
        fetch(session, root, remote_of(hub.host), silent)


CONTENT = b"weights" * 1000
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def remote_of(host: str, size: int = len(CONTENT)) -> Remote:
    return Remote("file", size, DIGEST, "owner", f"http://{host}/x")


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_shorter_than_listed_ends_the_download(
    announced: bool, hub: HubServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests a file that is shorter than listed. If the server states the file's length, the download ends at
    once. Otherwise the download ends after five tries, which are all reported.
    """
    set_clock(monkeypatch, "eaglecpp.store.remote.download", sleep=lambda seconds: None)
    asked: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.headers.get("Range", ""))
        if asked[-1]:
            request.send_error(416)
        else:
            send(CONTENT, **({"Content_Length": str(len(CONTENT))} if announced else {}))(request)

    hub.answer = answer
    steps: list[Status] = []
    listed = len(CONTENT) + 1000
    partial_path(root, DIGEST).parent.mkdir(parents=True)
    partial_path(root, DIGEST).write_bytes(b"of an earlier try")
    why = "as the server listed, found 7000" if announced else "gave up after 5 tries"
    with HttpSession() as session, pytest.raises(DownloadError, match=why):
        fetch(session, root, remote_of(hub.host, listed), steps.append)
    assert len(asked) == (2 if announced else 5)
    said = [step.status.rpartition("; ")[2] for step in steps if "; try " in step.status]
    assert said == [f"try {n} of 5" for n in range(2, len(asked) + 1)]


@pytest.mark.parametrize(("asked", "waits"), [("5", 5), ("86400", 60), ("soon", 0.5)])
def test_a_server_cannot_make_it_wait_for_hours(
    asked: str, waits: float, hub: HubServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    set_clock(monkeypatch, "eaglecpp.store.remote.download", sleep=waited.append)

    def busy(request: BaseHTTPRequestHandler) -> None:
        hub.answer = send(CONTENT)
        request.send_response(503)
        request.send_header("Retry-After", asked)
        request.end_headers()

    hub.answer = busy
    with HttpSession() as session:
        assert fetch(session, root, remote_of(hub.host), silent).read_bytes() == CONTENT
    assert waited == [waits]


@pytest.mark.parametrize(
    ("begin", "more"),
    [("HTTP/1.1 200 OK\r\n\r\n", "x"), ("HTTP/1.1 200 OK\r\nX: ", "x"), ("", "HTTP/1.1 103 Wait\r\n\r\n")],
    ids=["the body", "the head", "heads before the head"],
)
def test_a_trickling_answer_is_given_up(
    begin: str, more: str, hub: HubServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests answers that trickle in slowly. The download of a manifest has a time limit. The download of a
    file may take hours, so only the time until its content begins is limited.
    """
    monkeypatch.setattr("eaglecpp.store.remote.download._SMALL_S", 0.5)
    monkeypatch.setattr("eaglecpp.store.remote.reach._SILENT_S", 0.5)
    set_clock(monkeypatch, "eaglecpp.store.remote.download", sleep=lambda seconds: None)

    def trickle(request: BaseHTTPRequestHandler) -> None:
        with suppress(OSError):
            request.wfile.write(begin.encode())
            for _ in range(600):
                request.wfile.write(more.encode())
                time.sleep(0.05)

    hub.answer = trickle
    before = time.monotonic()
    with pytest.raises(OfflineError, match="cannot reach"):
        pull(ModelName.parse(f"http://{hub.host}/library/m:1"), insecure=True)
    if more != "x" or "X" in begin:
        with HttpSession() as session, pytest.raises(OfflineError, match="gave up after 5 tries"):
            fetch(session, root, remote_of(hub.host), silent)
    assert time.monotonic() - before < 20


@pytest.mark.parametrize(
    ("target", "insecure", "refused"),
    [
        ("http://a.example/y", False, "redirects from https to unencrypted http://a.example"),
        ("http://a.example/y", True, ""),
        ("ftp://b.example/y", False, "redirects from https to unencrypted ftp://b.example"),
        ("//b.example/y", False, ""),
        ("/y", False, ""),
    ],
)
def test_a_redirect_stays_encrypted(
    target: str, insecure: bool, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(transport: Any, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/x":
            return httpx.Response(302, headers={"Location": target})
        return httpx.Response(200, stream=httpx.ByteStream(b"there"))

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
    with HttpSession(verify=not insecure) as session:
        if not refused:
            assert get(session, "https://a.example/x", "m", "") == b"there"
            return
        with pytest.raises(DownloadError, match=refused):
            get(session, "https://a.example/x", "m", "")


def test_stored_manifests_and_configs_have_a_limit(ollama: OllamaModel, tiny: Tiny, stores: Stores) -> None:
    file = ollama("library/m/1", {"model": tiny.target.read_bytes()})
    file.write_bytes(file.read_bytes() + b" " * MAX_JSON)
    with pytest.raises(StoreError, match=f"expected at most {MAX_JSON} bytes"):
        Stores.open().get(ModelName.parse("m:1"))
