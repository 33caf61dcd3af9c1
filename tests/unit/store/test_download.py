# SPDX-License-Identifier: MIT
"""A server that sends too much, packs what it sends, or leads away from encryption."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from eaglecpp.references.names import ModelName
from eaglecpp.store import DownloadError, StoreError, Stores
from eaglecpp.store.errors import silent
from eaglecpp.store.manifest import MAX_JSON, Config, Manifest
from eaglecpp.store.remote.download import MAX_SMALL, Remote, Token, fetch, get, new_session
from eaglecpp.store.remote.layers import fetch_layer
from eaglecpp.store.remote.pull import pull
from eaglecpp.store.transaction import Transaction, remove_model
from helpers.store_check import orphans, store_problems
from helpers.stores import OllamaModel, Tiny

Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def server() -> Iterator[tuple[str, list[Answer]]]:
    """An address, and what answers there (the first entry of the list)."""
    answers: list[Answer] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            answers[0](self)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, args=(0.05,))
        thread.start()
        yield f"127.0.0.1:{http.server_address[1]}", answers
        http.shutdown()
        thread.join()


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
    except OSError:  # nobody reads any more: that is the point
        pass


def test_a_manifest_without_end_is_cut_off(server: tuple[str, list[Answer]], stores: Stores) -> None:
    host, answers = server
    answers.append(endless)
    with pytest.raises(DownloadError, match=f"expected at most {MAX_SMALL} bytes, but the server sent more"):
        pull(ModelName.parse(f"http://{host}/library/m:1"), insecure=True)


def test_a_packed_answer_is_not_unpacked(server: tuple[str, list[Answer]], root: Path) -> None:
    host, answers = server
    answers.append(send(gzip.compress(b" " * (64 << 20)), Content_Encoding="gzip"))
    with new_session() as session:
        with pytest.raises(DownloadError, match="sent gzip, which was not requested"):
            get(session, f"http://{host}/x", "m", Token(None), "")
        remote = Remote(f"http://{host}/x", "sha256:" + "0" * 64, 10, "x", "m")
        with pytest.raises(DownloadError, match="sent gzip, which was not requested"):
            fetch(session, root, remote, silent)


def test_a_blob_is_not_longer_than_its_manifest_says(server: tuple[str, list[Answer]], root: Path) -> None:
    host, answers = server
    answers.append(endless)
    remote = Remote(f"http://{host}/x", "sha256:" + "0" * 64, 10, "x", "m")
    with new_session() as session, pytest.raises(DownloadError, match="expected at most 10 bytes"):
        fetch(session, root, remote, silent)


def test_what_two_processes_download_at_once_is_fetched_once_and_stays_for_both(
    server: tuple[str, list[Answer]], stores: Stores, root: Path
) -> None:
    """Whichever of them is done first, and whatever is removed then."""
    data, asked = b"weights" * 1000, []

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        send(data)(request)

    host, answers = server
    answers.append(answer)
    remote = Remote(f"http://{host}/x", f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), "x", "m")
    with new_session() as session, Transaction(stores) as first, Transaction(stores) as second:
        mine, _ = fetch_layer(first, session, "model", remote)
        other, path = fetch_layer(second, session, "model", remote)
        first.commit(ModelName.parse("a"), [mine], {})
        assert path.read_bytes() == data
        remove_model(stores.own, ModelName.parse("a"))
        assert path.read_bytes() == data
        second.commit(ModelName.parse("b"), [other], {})
        with Transaction(stores) as third:
            late, path = fetch_layer(third, session, "model", remote)
            remove_model(stores.own, ModelName.parse("b"))
            assert path.read_bytes() == data
            third.commit(ModelName.parse("c"), [late], {})
    assert asked == ["/x"]
    assert store_problems(root) == []
    assert orphans(root) == []
    assert list(root.glob("blobs/*-partial")) == []


@pytest.mark.parametrize(
    ("start", "target", "insecure", "refused"),
    [
        ("https://a.example/x", "http://a.example/y", False, True),
        ("https://a.example/x", "http://a.example/y", True, False),
        ("https://a.example/x", "//b.example/y", False, False),
        ("https://a.example/x", "/y", False, False),
        ("HTTPS://a.example/x", "ftp://b.example/y", False, True),
        ("http://a.example/x", "http://b.example/y", False, False),
        ("http://a.example/x", "https://b.example/y", False, False),
    ],
)
def test_a_redirect_stays_encrypted(start: str, target: str, insecure: bool, refused: bool) -> None:
    response = requests.Response()
    response.status_code, response.url = 302, start
    response.headers["Location"] = target
    with new_session(verify=not insecure) as session:
        if not refused:
            assert session.get_redirect_target(response) == target
            return
        with pytest.raises(requests.RequestException, match=r"redirects from https to \w+://"):
            session.get_redirect_target(response)


def test_stored_manifests_and_configs_have_a_limit_too(
    ollama: OllamaModel, tiny: Tiny, stores: Stores
) -> None:
    file = ollama("library/m/1", {"model": tiny.target.read_bytes()})
    file.write_bytes(file.read_bytes() + b" " * MAX_JSON)
    with pytest.raises(StoreError, match=f"at most {MAX_JSON} are read"):
        Stores.open().get(ModelName.parse("m:1"))
    for read in (Manifest.from_bytes, Config.from_bytes):
        with pytest.raises(StoreError, match=f"at most {MAX_JSON} are read"):
            read(json.dumps({"layers": ["x" * MAX_JSON]}).encode(), "m")
