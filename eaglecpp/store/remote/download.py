# SPDX-License-Identifier: MIT
"""Downloads one blob, even across interruptions: ranged requests into a partial file that outlives us.

The partial file is named by the digest of the whole, so it can only ever be continued with the same content.
When it is complete its SHA-256 is checked, and it becomes the blob; a wrong one is thrown away. Servers are
expected to fail: cut connections are continued, 429 and 5xx are retried as the server says, and if a server
ignores ranges the download starts again from the first byte. All that is bounded: five tries in all, each of
which is said, for a file as long as was listed; a small answer has a time in which it must be whole.

`huggingface_hub` could do none of it for us: killed, it begins again and leaves what came
(huggingface/huggingface_hub#4196); it stores a changed byte under the digest of the right one; and its HTTP
library, another one in every major version, would have to be kept from other networks, too.
"""

from __future__ import annotations

import math
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import httpx

from eaglecpp.files import sync
from eaglecpp.store.content import check_space, file_digest, is_sound, lock_blob
from eaglecpp.store.errors import DigestError, DownloadError, OfflineError, Report, Status, silent
from eaglecpp.store.layout import blob_path, partial_path
from eaglecpp.store.manifest import IMAGE, Layer
from eaglecpp.store.remote.reach import Session
from eaglecpp.store.transaction import Transaction

_T = TypeVar("_T")
_LONGEST_WAIT_S = 60  # before another try, whatever the server asks for
MAX_SMALL = 16 << 20
"""Bytes of a manifest, a config, a template: more than any honest one has."""
_SMALL_S = 45.0
"""In which such an answer must be whole, all tries together."""
_MAX_TRIES = 5
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # statuses that a later request may not get


@dataclass(frozen=True)
class Remote:
    """Content on a server.

    digest: "sha256:" and hex; size: bytes; file: its name, for people
    owner:  what it belongs to, for messages
    help:   what to try when access is refused
    cached: a local copy that may be used instead, once its digest is checked
    """

    url: str
    digest: str
    size: int
    file: str
    owner: str
    token: str = ""
    help: str = ""
    cached: Path | None = None

    @property
    def label(self) -> str:
        """What it is, for messages."""
        return f"{self.owner}: {self.file}"

    def progress(self, completed: int) -> Status:
        """That so many bytes of it are here."""
        return Status(f"pulling {self.digest[7:19]}", self.digest, self.size, completed, self.file)


class _TryAgain(Exception):
    """What a later request may not get. wait_s: what the server asks for; is_busy: it did answer"""

    def __init__(self, reason: str, wait_s: float = 0.0, *, is_busy: bool = False) -> None:
        super().__init__(reason)
        self.wait_s, self.is_busy = wait_s, is_busy


def require_online(what: str) -> None:
    """Raises OfflineError where a variable of huggingface_hub or llama.cpp forbids the network."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "LLAMA_ARG_OFFLINE", "LLAMA_OFFLINE")
    if any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in names):
        raise OfflineError(f"{what}: not on this machine, and offline mode is on (HF_HUB_OFFLINE)")


def get(session: Session, url: str, owner: str, help: str, token: str = "", **headers: str) -> bytes:
    """A small answer, whole. Raises DownloadError, also for one of more than `MAX_SMALL` bytes or `_SMALL_S`
    seconds.
    """
    require_online(owner)
    end = time.monotonic() + _SMALL_S

    def ask() -> bytes:
        with session.get(url, headers, token, silent_s=_SMALL_S / 3, end=end) as response:
            _check_status(response, owner, url, help)
            return b"".join(_pieces(response, MAX_SMALL, owner))

    failed = f"cannot reach {httpx.URL(url).netloc.decode()}"
    return _tried(ask, owner, failed, silent, end)


def _tried(once: Callable[[], _T], owner: str, failed: str, report: Report, end: float = math.inf) -> _T:
    """What `once` returns; it is tried again when a connection breaks or a server is busy, and `report` hears
    of it before. failed: what is said of the last try; end: the time (monotonic) after which none follows.

    Raises OfflineError, and DownloadError for what another try would not change.
    """
    for n_tries in range(1, _MAX_TRIES + 1):
        try:
            return once()
        except (httpx.HTTPError, httpx.InvalidURL, _TryAgain) as error:
            reason = _plain(error)
            if not isinstance(error, httpx.TransportError | _TryAgain) or _is_final(error):
                raise DownloadError(f"{owner}: {reason}") from error
            again = error if isinstance(error, _TryAgain) else _TryAgain(reason)
            wait_s = max(min(8.0, 0.25 * 2**n_tries), again.wait_s)
            if n_tries == _MAX_TRIES or time.monotonic() + wait_s > end:
                if again.is_busy:
                    raise DownloadError(f"{owner}: {reason}") from error
                raise OfflineError(f"{owner}: {failed}: {reason}") from error
            report(Status(f"{owner}: {reason}; try {n_tries + 1} of {_MAX_TRIES}"))
            time.sleep(wait_s)
    raise AssertionError


def _pieces(response: httpx.Response, limit: int, owner: str) -> Iterator[bytes]:
    """What the server sends, as it is sent, at most `limit` bytes. Raises DownloadError, httpx's errors."""
    coding = response.headers.get("Content-Encoding", "identity").lower()
    if coding not in ("", "identity"):  # it was asked not to; what it packs may unpack to anything
        raise DownloadError(f"{owner}: the server sent {coding[:40]}, which was not requested")
    n_bytes = 0
    for piece in response.iter_raw():
        n_bytes += len(piece)
        if n_bytes > limit:
            raise DownloadError(f"{owner}: expected at most {limit} bytes, but the server sent more")
        yield piece


def fetch(session: Session, root: Path, remote: Remote, report: Report) -> Path:
    """The blob with the content of `remote`, whose digest was checked.

    Raises DownloadError, and DigestError for a server that sends something else.
    """
    path, blob = partial_path(root, remote.digest), blob_path(root, remote.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    failed = f"given up after {_MAX_TRIES} tries (what came is kept: run the command again to continue)"
    with lock_blob(root, remote.digest, report):
        if not is_sound(blob, remote.digest, remote.size):  # else another process has stored it
            require_online(remote.label)
            _tried(partial(_receive, session, path, remote, report), remote.label, failed, report)
            path.replace(blob)
            sync(blob.parent)
    return blob


def fetch_layer(
    transaction: Transaction, session: Session, kind: str, remote: Remote, name: str = ""
) -> tuple[Layer, Path]:
    """A layer with the content of `remote` and a file that holds it, from where it is nearest: our store,
    Ollama's, a local cache, the server. Raises DownloadError, DigestError, StoreError.
    """
    layer = Layer(IMAGE + kind, remote.digest, remote.size, name=name)
    stored = transaction.sound_blob(remote.digest, remote.size)
    if stored is not None:
        transaction.add_shared(remote.digest, stored)
        return layer, stored
    if remote.cached is not None:
        copy = transaction.add_file(kind, remote.cached, name=name)
        if copy.digest == remote.digest:
            return copy, remote.cached
        transaction.report(Status(f"{remote.cached}: its content does not match its name; downloading it"))
    return layer, fetch(session, transaction.root, remote, transaction.report)


def _receive(session: Session, path: Path, remote: Remote, report: Report) -> None:
    """One try to bring the partial file to its full size, and its check."""
    start = path.stat().st_size if path.exists() else 0
    if start > remote.size:
        path.unlink()
        start = 0
    check_space(path.parent, remote.size - start, "the download")
    if start < remote.size:
        _stream(session, path, remote, start, report)
    path.touch()  # of no bytes, nothing came
    report(remote.progress(remote.size))
    step = Status("verifying sha256 digest", remote.digest, file=remote.file)
    if file_digest(path, report, step) == remote.digest:
        sync(path)
        return
    path.unlink()
    if start > 0:
        raise _TryAgain("what an earlier try had left is damaged; it starts again")
    found = f"the server sent something other than {remote.digest}; nothing was stored"
    raise DigestError(f"{remote.label}: {found}. Try again later, or ask the repository's owner")


def _stream(session: Session, path: Path, remote: Remote, start: int, report: Report) -> None:
    """One request: appends what the server sends, until its end or until it breaks off."""
    headers = {"Range": f"bytes={start}-"} if start else {}
    with session.get(remote.url, headers, remote.token) as response:
        if start and response.status_code == 416:  # the server has less than we do: what we have is not it
            path.unlink()
            raise _TryAgain(f"the server refuses to continue at byte {start}; it starts again")
        _check_status(response, remote.owner, remote.url, remote.help)
        is_rest = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if not (response.status_code == 206 and is_rest):  # it is everything from the first byte
            start = 0
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and (whole := start + int(length[:20])) != remote.size:
            found = f"expected {remote.size} bytes, as listed, the server has {whole}"
            raise DownloadError(f"{remote.label}: {found}. Try again later, or ask the repository's owner")
        with path.open("ab") as stream:
            stream.truncate(start)
            for piece in _pieces(response, remote.size - start, remote.label):
                start += len(piece)
                stream.write(piece)
                report(remote.progress(start))
    if start < remote.size:
        raise _TryAgain(f"the server closed the connection after {start} bytes")


def _check_status(response: httpx.Response, owner: str, url: str, help: str) -> None:
    status, address = response.status_code, url.partition("?")[0]  # the rest of a signed one is a secret
    if status < 400:
        return
    text = f"the server returned {status} {response.reason_phrase} for {address}"
    if status in (401, 403):
        text = f"access refused ({status}). {help}"
    elif status == 404:
        text = f"not found (404): {address}. {help}"
    if status in _BUSY:
        wait = response.headers.get("Retry-After", "")
        raise _TryAgain(text, min(int(wait[:9]), _LONGEST_WAIT_S) if wait.isdecimal() else 0.0, is_busy=True)
    raise DownloadError(f"{owner}: {text.strip()}")


def _is_final(error: BaseException | None) -> bool:
    """Whether another try would not change it: a certificate, a scheme that we do not speak."""
    if not isinstance(error, httpx.ConnectError):
        return isinstance(error, httpx.UnsupportedProtocol)
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None


def _plain(error: Exception) -> str:
    """The cause in one line."""
    if isinstance(error, httpx.ReadTimeout):
        return "it was silent for too long"
    text = re.sub(r"^\[Errno -?\d+\] ", "", " ".join(str(error).split()))
    return text[:200] or type(error).__name__
