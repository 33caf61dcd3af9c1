# SPDX-License-Identifier: MIT
"""A local server that behaves like the Hugging Face Hub and like an Ollama registry, and can cause faults.

    with HubServer() as hub:
        hub.add("user/repo", {"model-Q4_K_M.gguf": data})
        os.environ["MODEL_ENDPOINT"] = hub.url

Large files are redirected to another host name ("localhost" instead of "127.0.0.1"), as the Hub redirects to
its storage. So tests detect a client that sends its token to the other host. `Faults` lists the possible
faults, and `log` has the requests.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

LARGE = 1000
COMMIT = "c" * 40
CONFIG = b'{"model_format":"gguf","model_family":"llama"}'
Layers = Mapping[str, bytes] | Sequence[tuple[str, bytes]]
"""Contents, by kind of layer."""
Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Faults:
    """Faults of the server.

    cut_after: one connection is cut for each entry, after so many bytes of content
    busy: number of first requests that are answered with 429
    ignore_ranges: content is sent whole, with status 200
    corrupt:       digests whose content is sent with one byte changed
    bytes_per_s: speed of content, 0 = as fast as possible
    """

    cut_after: list[int] = field(default_factory=list)
    busy: int = 0
    ignore_ranges: bool = False
    corrupt: set[str] = field(default_factory=set)
    bytes_per_s: int = 0


@dataclass(frozen=True)
class Request:
    """A request's path, and the headers that tests check."""

    path: str
    range: str
    authorization: str
    host: str


class HubServer:
    """Serves from memory on a free port, with one thread per connection."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.tokens: dict[str, str] = {}
        self.gated: set[str] = set()
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.answer: Answer | None = None  # if set, this answer is given to every request for content
        self.faults = Faults()
        self.log: list[Request] = []
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def host(self) -> str:
        """The host to use in names of the registry: `<host>/library/model`."""
        return f"127.0.0.1:{self.port}"

    def add(self, repo: str, files: Mapping[str, bytes], *, token: str = "", gated: bool = False) -> None:
        """Adds a repository. If `token` is given, the repository is private."""
        self.repos[repo] = dict(files)
        if token:
            self.tokens[repo] = token
        if gated:
            self.gated.add(repo)
        for data in files.values():
            self.blobs[digest_of(data)] = data

    def publish(self, name: str, layers: Layers, config: bytes = CONFIG) -> None:
        """Adds a model to the registry as `namespace/model:tag`."""
        contents = [config, *(data for _, data in pairs_of(layers))]
        self.add_manifest(name, manifest_of(layers, config), {digest_of(data): data for data in contents})

    def add_manifest(self, name: str, manifest: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        """Adds a model to the registry with any manifest."""
        self.manifests[name] = json.dumps(manifest, separators=(",", ":")).encode()
        self.blobs.update(blobs)

    def content_requests(self) -> list[Request]:
        """Returns the requests for content, without listings and redirects."""
        return [request for request in self.log if request.path.startswith("/cdn/")]


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def pairs_of(layers: Layers) -> list[tuple[str, bytes]]:
    return list(layers.items()) if isinstance(layers, Mapping) else list(layers)


def manifest_of(layers: Layers, config: bytes) -> dict[str, Any]:
    """Returns a manifest as Ollama's registry sends it."""
    return {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": layer_entry("application/vnd.docker.container.image.v1+json", config),
        "layers": [layer_entry(kind, data) for kind, data in pairs_of(layers)],
    }


def layer_entry(kind: str, data: bytes) -> dict[str, Any]:
    """Returns a manifest's entry for this content."""
    media_type = kind if "/" in kind else f"application/vnd.ollama.image.{kind}"
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.hub.answer is not None:
            self.close_connection = True
            self.hub.answer(self)
            return
        path = self.path.partition("?")[0]
        headers = self.headers
        with self.hub.lock:
            self.hub.log.append(
                Request(path, headers.get("Range", ""), headers.get("Authorization", ""), headers["Host"])
            )
            busy, self.hub.faults.busy = self.hub.faults.busy > 0, max(0, self.hub.faults.busy - 1)
        if busy:
            self._send(429, b"slow down", {"Retry-After": "0"})
            return
        if path in self.hub.redirects:
            self._send(307, b"", {"Location": self.hub.redirects[path]})
            return
        for pattern, answer in (
            (r"/api/models/([^/]+/[^/]+)(?:/revision/.+)?", self._listing),
            (r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self._resolve),
            (r"/cdn/(sha256:[0-9a-f]{64})", self._content),
            (r"/v2/(.+)/manifests/(.+)", self._manifest),
            (r"/v2/.+/blobs/(sha256:[0-9a-f]{64})", self._blob),
        ):
            match = re.fullmatch(pattern, path)
            if match is not None:
                answer(*match.groups())
                return
        self._send(404, b"not found")

    do_HEAD = do_GET

    def _listing(self, repo: str) -> None:
        if not self._allowed(repo):
            return
        siblings = []
        for name, data in self.hub.repos[repo].items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": _git_hash(data)}
            if len(data) > LARGE:
                sha = digest_of(data).removeprefix("sha256:")
                entry["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        found = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings}
        found |= {"private": False, "tags": []}
        self._send(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _resolve(self, repo: str, name: str) -> None:
        if not self._allowed(repo):
            return
        data = self.hub.repos[repo].get(name)
        if data is None:
            self._send(404, b"Entry not found", {"X-Error-Code": "EntryNotFound"})
        elif len(data) > LARGE:
            self._redirect(digest_of(data), 302)
        else:
            self._send(200, data, {"ETag": f'"{_git_hash(data)}"', "X-Repo-Commit": COMMIT})

    def _manifest(self, model: str, tag: str) -> None:
        data = self.hub.manifests.get(f"{model}:{tag}")
        if data is None:
            self._send(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')
        elif model.startswith("secret/"):
            self._send(401, b"", {"WWW-Authenticate": 'Bearer realm="x"'})
        else:
            self._send(200, data)

    def _blob(self, digest: str) -> None:
        if digest in self.hub.blobs:
            self._redirect(digest, 307)
        else:
            self._send(404, b"")

    def _content(self, digest: str) -> None:
        data = self.hub.blobs[digest]
        faults = self.hub.faults
        if digest in faults.corrupt:
            data = data[:-1] + bytes([data[-1] ^ 1])
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match and not faults.ignore_ranges else 0
        if start >= len(data) > 0 and start:
            self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        body = data[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        with self.hub.lock:
            limit = faults.cut_after.pop(0) if faults.cut_after else len(body)
        self._pour(body[:limit])
        if limit < len(body):
            self.close_connection = True
            self.connection.close()

    def _pour(self, body: bytes) -> None:
        speed = self.hub.faults.bytes_per_s
        step = max(1, speed // 50) if speed else len(body) or 1
        try:
            for at in range(0, len(body), step):
                self.wfile.write(body[at : at + step])
                if speed:
                    time.sleep(0.02)
        except OSError:  # the test has killed the client
            self.close_connection = True

    def _allowed(self, repo: str) -> bool:
        token = self.hub.tokens.get(repo)
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            self._send(401, b"Invalid username or password.", {"X-Error-Code": "RepoNotFound"})
            return False
        if repo in self.hub.gated:
            self._send(403, b"Access to this repo is restricted", {"X-Error-Code": "GatedRepo"})
            return False
        if repo not in self.hub.repos:
            self._send(404, b"Repository not found", {"X-Error-Code": "RepoNotFound"})
            return False
        return True

    def _redirect(self, digest: str, status: int) -> None:
        location = f"http://localhost:{self.hub.port}/cdn/{digest}?signature=secret"
        self._send(status, b"", {"Location": location, "X-Repo-Commit": COMMIT})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
