# SPDX-License-Identifier: MIT
"""Downloads one blob. A download can be resumed by another process, because ranged requests extend a partial
file.

The digest of the whole blob names the partial file, so the file can only be continued with the same content.
When the file is complete, its SHA-256 is checked, and it becomes the blob. A file with a wrong digest is
deleted. Servers are expected to fail: broken connections are continued, 429 and 5xx are retried after the
delay that the server asks for, and a server that ignores ranges restarts the download from the first byte. A
download is bounded: it makes at most five reported tries, reads no more bytes than listed, and has a deadline
for small answers.

`huggingface_hub` is not used for downloads. After a kill it starts over, and leaves its partial files behind
(huggingface/huggingface_hub#4196). It stores corrupted bytes under the digest of the correct bytes. Its HTTP
library differs between major versions, and every such library would need our address checks.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

import httpx

from eaglecpp.files import make_folder, sync
from eaglecpp.store.content import check_space, file_digest, is_sound, lock_store
from eaglecpp.store.errors import DigestError, DownloadError, OfflineError, Report, Status, silent
from eaglecpp.store.layout import blob_path, partial_path
from eaglecpp.store.manifest import IMAGE, Layer
from eaglecpp.store.remote.reach import HttpSession
from eaglecpp.store.transaction import Transaction

_T = TypeVar("_T")
_LONGEST_WAIT_S = 60  # maximum seconds before the next try, even if the server requests a longer delay
MAX_SMALL = 16 << 20
"""Maximum size of a manifest, config or template in bytes. Valid ones are far smaller."""
_SMALL_S = 45.0
"""Seconds for the download of a manifest, config or template, including all tries."""
_MAX_TRIES = 5
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses after which a download is tried again


@dataclass(frozen=True)
class Remote:
    """A file on a server.

    path:   path in a repository, or kind of layer in a registry's model
    size:   bytes
    digest: "sha256:" and hex; "" for a small file on the Hub, which may have git's hash in `git` instead
    owner:  repository or model, for messages
    help:   advice for the user if access is refused
    cached: a local copy that may be used instead, after its digest is checked
    """

    path: str
    size: int
    digest: str = ""
    owner: str = ""
    url: str = ""
    token: str = ""
    help: str = ""
    git: str = ""
    cached: Path | None = None

    @property
    def name(self) -> str:
        """The file name: the last part of the path."""
        return PurePosixPath(self.path).name

    @property
    def folder(self) -> PurePosixPath:
        """The path without the name."""
        return PurePosixPath(self.path).parent

    @property
    def label(self) -> str:
        """Owner and name of the file, for messages."""
        return f"{self.owner}: {self.name}"

    def layer(self, kind: str, name: str = "") -> Layer:
        """Returns the file as a layer of a model. name: file name of a part of a split GGUF. Raises
        StoreError.
        """
        return Layer(IMAGE + kind, self.digest, self.size, name=name)

    def progress(self, completed: int) -> Status:
        """Returns the status to report after `completed` bytes."""
        return Status(f"pulling {self.digest[7:19]}", self.digest, self.size, completed, self.name)


class _TryAgain(Exception):
    """The request failed, but a retry may succeed. wait_s: delay that the server asks for"""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def require_online(what: str) -> None:
    """Raises OfflineError if a variable of huggingface_hub or llama.cpp forbids network access."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "LLAMA_ARG_OFFLINE", "LLAMA_OFFLINE")
    for name in names:
        if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE"):
            raise OfflineError(f"{what}: cannot be downloaded, because offline mode is on; unset {name}")


def get(session: HttpSession, url: str, owner: str, help: str, token: str = "", **headers: str) -> bytes:
    """Downloads a small answer. Raises DownloadError, also if it exceeds `MAX_SMALL` bytes or `_SMALL_S`
    seconds.
    """
    require_online(owner)
    end = time.monotonic() + _SMALL_S

    def ask() -> bytes:
        with session.get(url, headers, token, silent_s=_SMALL_S / 3, end=end) as response:
            _check_status(response, owner, url, help)
            return b"".join(_pieces(response, MAX_SMALL, owner))

    return _tried(ask, owner, f"cannot reach {httpx.URL(url).netloc.decode()}", silent, end)


def _tried(once: Callable[[], _T], owner: str, failed: str, report: Report, end: float = math.inf) -> _T:
    """Calls `once` and returns its result. Retries if a connection breaks or a server is busy, and reports
    each retry. failed: message of the error after the last try. end: monotonic deadline, after which no retry
    starts. With a deadline, a refused connection is retried only once, so that an offline user need not wait.

    Raises OfflineError; DownloadError for failures that a retry would not change.
    """
    for n_tries in range(1, _MAX_TRIES + 1):
        try:
            return once()
        except (httpx.HTTPError, httpx.InvalidURL, _TryAgain) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            if not isinstance(error, httpx.TransportError | _TryAgain):
                raise DownloadError(f"{owner}: {reason}") from error
            wait_s = max(min(8.0, 0.25 * 2**n_tries), getattr(error, "wait_s", 0.0))
            is_away = isinstance(error, httpx.ConnectError) and n_tries > 1 and end < math.inf
            if is_away or n_tries == _MAX_TRIES or time.monotonic() + wait_s > end:
                raise OfflineError(f"{owner}: {failed}: {reason}") from error
            report(Status(f"{owner}: {reason}; try {n_tries + 1} of {_MAX_TRIES}"))
            time.sleep(wait_s)
    raise AssertionError


def _pieces(response: httpx.Response, limit: int, owner: str) -> Iterator[bytes]:
    """Yields the body of a response in pieces as they arrive, up to `limit` bytes. Raises DownloadError, and
    httpx's errors.
    """
    coding = response.headers.get("Content-Encoding", "identity").lower()
    if coding not in ("", "identity"):  # compressed data could unpack to any size
        raise DownloadError(f"{owner}: the server sent {coding[:40]}, which was not requested")
    n_bytes = 0
    for piece in response.iter_raw():
        n_bytes += len(piece)
        if n_bytes > limit:
            raise DownloadError(f"{owner}: expected at most {limit} bytes, but the server sent more")
        yield piece


def fetch(session: HttpSession, root: Path, remote: Remote, report: Report) -> Path:
    """Returns the blob with the content of `remote`, downloaded if needed and verified.

    Raises DownloadError; DigestError if the server sends a different content.
    """
    path, blob = partial_path(root, remote.digest), blob_path(root, remote.digest)
    make_folder(path.parent)
    failed = f"gave up after {_MAX_TRIES} tries; run the command again to continue the download"
    with lock_store(root, remote.digest, report):
        # another process may have stored the blob meanwhile
        if not is_sound(blob, remote.digest, remote.size):
            require_online(remote.label)
            _tried(partial(_receive, session, path, remote, report), remote.label, failed, report)
            path.replace(blob)
            sync(blob.parent)
    return blob


def fetch_layer(transaction: Transaction, session: HttpSession, layer: Layer, remote: Remote) -> Path:
    """Adds the content of a layer to the transaction, and returns a file with this content. The content comes
    from our store, Ollama's store, a local cache or the server, in this order. Raises DownloadError,
    DigestError, StoreError.
    """
    file = transaction.stores.own.blob(remote.digest)
    if file is not None and not is_sound(file, remote.digest, remote.size):
        file = None
    if file is None and remote.cached is not None:
        if transaction.add_file(layer.media_type, remote.cached).digest == remote.digest:
            return remote.cached
        transaction.report(Status(f"{remote.cached}: its content does not match its digest; downloading it"))
    file = file or fetch(session, transaction.root, remote, transaction.report)
    transaction.add_shared(remote.digest, file)
    return file


def _receive(session: HttpSession, path: Path, remote: Remote, report: Report) -> None:
    """Makes one attempt to complete the partial file, then verifies the file."""
    start = path.stat().st_size if path.exists() else 0
    check_space(path.parent, remote.size - start, "the download")
    if start < remote.size:
        _stream(session, path, remote, start, report)
    path.touch(0o644)  # creates the file even if no byte has arrived
    report(remote.progress(remote.size))
    step = Status("verifying sha256 digest", remote.digest, file=remote.name)
    if file_digest(path, report, step) == remote.digest:
        sync(path)
        return
    path.unlink()
    if start > 0:
        raise _TryAgain("the partial file is damaged; starting again")
    found = f"the server sent something other than {remote.digest}; nothing was stored"
    raise DigestError(f"{remote.label}: {found}. Try again later, or ask the repository's owner")


def _stream(session: HttpSession, path: Path, remote: Remote, start: int, report: Report) -> None:
    """Sends one request and appends the response's body to the partial file, until the body ends or the
    connection breaks.
    """
    with session.get(remote.url, {"Range": f"bytes={start}-"} if start else {}, remote.token) as response:
        # The partial file is longer than the whole file, so the partial file is wrong.
        if start and response.status_code == 416:
            path.unlink()
            raise _TryAgain(f"the server cannot continue at byte {start}; starting again")
        _check_status(response, remote.owner, remote.url, remote.help)
        is_rest = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        # Without these two signs, the body starts at the first byte of the file.
        if not (response.status_code == 206 and is_rest):
            start = 0
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and (whole := start + int(length[:20])) != remote.size:
            found = f"expected {remote.size} bytes, as the server listed, found {whole}"
            raise DownloadError(f"{remote.label}: {found}. Try again later, or ask the repository's owner")
        path.touch(0o644)  # gives the file permissions that do not depend on the umask
        with path.open("ab") as stream:
            stream.truncate(start)
            for piece in _pieces(response, remote.size - start, remote.label):
                start += len(piece)
                stream.write(piece)
                report(remote.progress(start))
    if start < remote.size:
        raise _TryAgain(f"the server closed the connection after {start} bytes")


def _check_status(response: httpx.Response, owner: str, url: str, help: str) -> None:
    # The query of a signed address is a secret, so it is removed.
    status, address = response.status_code, url.partition("?")[0]
    if status < 400:
        return
    text = f"the server returned {status} {response.reason_phrase} for {address}"
    if status in (401, 403):
        text = f"access refused ({status}). {help}"
    elif status == 404:
        text = f"not found (404): {address}. {help}"
    if status in _BUSY:
        wait = response.headers.get("Retry-After", "")
        raise _TryAgain(text, min(int(wait[:9]), _LONGEST_WAIT_S) if wait.isdecimal() else 0.0)
    raise DownloadError(f"{owner}: {text.strip()}")
