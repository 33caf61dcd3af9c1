# SPDX-License-Identifier: MIT
"""Downloads one blob, even across interruptions: ranged requests into a partial file that outlives us.

The partial file is named by the digest of the whole, so it can only ever be continued with the same content.
When it is complete its SHA-256 is checked; a wrong one is thrown away. Servers are expected to fail: cut
connections are continued, 429 and 5xx are retried as the server says, and if a server ignores ranges the
download starts again from the first byte.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.util import Retry

from eaglecpp.files import sync
from eaglecpp.store.content import check_space, file_digest
from eaglecpp.store.errors import DigestError, DownloadError, OfflineError, Report, Status
from eaglecpp.store.layout import blob_path, partial_path
from eaglecpp.store.locks import lock_blob

__all__ = [
    "MAX_SMALL",
    "Remote",
    "Token",
    "fetch",
    "get",
    "need_space",
    "new_session",
    "offline_mode",
    "require_online",
]

_log = logging.getLogger("eaglecpp.store")
_CHUNK = 64 << 10  # what a broken connection loses at most: urllib3 drops a chunk it could not fill
_TIMEOUT_S = (15, 60)  # to connect, between two packets
_LONGEST_WAIT_S = 60  # before a retry, whatever the server asks for
MAX_SMALL = 16 << 20
"""Bytes of a manifest, a config, a template: more than any honest one has."""
_MAX_FAILURES = 5
"""How often in a row a connection may break without a new byte."""
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # statuses that a later request may not get


class Token(AuthBase):
    """A bearer token. As an auth object, so that no `.netrc` entry takes its place; requests drops it when a
    redirect leads to another host.
    """

    def __init__(self, token: str | None) -> None:
        self.token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self.token:
            request.headers["Authorization"] = f"Bearer {self.token}"
        return request


@dataclass(frozen=True)
class Remote:
    """Content on a server.

    digest: "sha256:" and hex; size: bytes; file: its name, for people
    owner:  what it belongs to, for messages
    help:   what to try when access is refused
    """

    url: str
    digest: str
    size: int
    file: str
    owner: str
    auth: Token = field(default_factory=lambda: Token(None))
    help: str = ""


class _Retry(Retry):
    """Waits as long as the server asks for, but not for hours."""

    def get_retry_after(self, response: Any) -> float | None:
        wait = super().get_retry_after(response)
        return None if wait is None else min(wait, _LONGEST_WAIT_S)


class _Session(requests.Session):
    """Follows no redirect that leaves encryption, unless the user gave it up himself (`verify` is off)."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        target = super().get_redirect_target(resp)
        if target is not None and self.verify and resp.url.lower().startswith("https:"):
            url = urljoin(resp.url, target)
            if not url.lower().startswith("https:"):
                raise _DowngradeError(
                    f"{_host(resp.url)} redirects from https to {url.partition(':')[0]}://{_host(url)}, "
                    "which is not encrypted; refused"
                )
        return target


class _DowngradeError(requests.RequestException):
    """A redirect that leaves encryption."""


def new_session(*, verify: bool = True) -> requests.Session:
    """A session that retries what is worth retrying. verify: check TLS certificates, and stay encrypted."""
    retry = _Retry(
        total=5, connect=2, backoff_factor=0.5, status_forcelist=_BUSY,
        allowed_methods={"GET", "HEAD"}, respect_retry_after_header=True, raise_on_status=False,
    )  # fmt: skip
    session = _Session()
    session.verify = verify
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    return session


def need_space(root: Path, remotes: Sequence[Remote]) -> None:
    """Raises StoreError when the disk has no room for what is still missing of these."""
    missing = 0
    for remote in {remote.digest: remote for remote in remotes}.values():
        if not blob_path(root, remote.digest).exists():
            missing += max(0, remote.size - _size(partial_path(root, remote.digest)))
    if missing:
        (root / "blobs").mkdir(parents=True, exist_ok=True)
        check_space(root / "blobs", missing, "the download")


def offline_mode() -> bool:
    """Whether the user forbids the network, by the variables of huggingface_hub or llama.cpp."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "LLAMA_ARG_OFFLINE", "LLAMA_OFFLINE")
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in names)


def require_online(what: str) -> None:
    """Raises OfflineError in offline mode."""
    if offline_mode():
        raise OfflineError(f"{what}: not on this machine, and offline mode is on (HF_HUB_OFFLINE)")


def get(
    session: requests.Session,
    url: str,
    owner: str,
    auth: Token,
    help: str,
    *,
    said: Mapping[int, str] | None = None,
    **headers: str,
) -> bytes:
    """A small answer, whole. said: what a status means, in place of what it usually does. Raises
    DownloadError, also for an answer of more than `MAX_SMALL` bytes.
    """
    require_online(owner)
    headers |= {"Accept-Encoding": "identity"}
    with (
        _errors(url, owner),
        session.get(url, auth=auth, headers=headers, timeout=_TIMEOUT_S, stream=True) as response,
    ):
        _check_status(response, owner, url, help, said or {})
        return b"".join(_pieces(response, MAX_SMALL, owner))


def _pieces(response: requests.Response, limit: int, owner: str) -> Iterator[bytes]:
    """What the server sends, as it is sent, at most `limit` bytes. Raises DownloadError."""
    coding = response.headers.get("Content-Encoding", "identity").lower()
    if coding not in ("", "identity"):  # it was told not to; what it packs may unpack to anything
        raise DownloadError(f"{owner}: the server sent {coding[:40]}, which was not requested")
    n_bytes = 0
    for piece in response.iter_content(_CHUNK):
        n_bytes += len(piece)
        if n_bytes > limit:
            raise DownloadError(f"{owner}: expected at most {limit} bytes, but the server sent more")
        yield piece


def fetch(
    session: requests.Session,
    root: Path,
    remote: Remote,
    report: Report,
    keep: Callable[[Path], Path] = lambda path: path,
) -> Path:
    """The content of `remote`, complete and with the right digest: its partial file, or the blob that another
    process made of it meanwhile; what `keep` makes of that, while nobody else touches the partial file.

    Raises DownloadError, and DigestError for a server that sends something else.
    """
    require_online(f"{remote.owner}: {remote.file}")
    path, blob = partial_path(root, remote.digest), blob_path(root, remote.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_blob(root, remote.digest, report):
        while _size(blob) != remote.size:
            resumed = _size(path) > 0
            try:
                _receive(session, path, remote, report)
                if _is_right(path, remote, report):
                    return keep(path)
                path.unlink()
            except FileNotFoundError:
                if _size(blob) == remote.size:  # the process that held the lock before us has just stored it
                    break
                raise
            if not resumed:
                raise DigestError(
                    f"{remote.owner}: {remote.file}: the server sent something other than "
                    f"{remote.digest}; nothing was stored. Try again later, or ask the repository's owner"
                )
            _log.warning("%s: the resumed download is damaged; starting again", remote.file)
        return keep(blob)


def _is_right(path: Path, remote: Remote, report: Report) -> bool:
    step = Status("verifying sha256 digest", remote.digest, file=remote.file)
    if file_digest(path, report, step) != remote.digest:
        return False
    sync(path)
    return True


def _receive(session: requests.Session, path: Path, remote: Remote, report: Report) -> None:
    """Brings the partial file to its full size."""
    failures = 0
    while (before := _size(path)) != remote.size:
        if before > remote.size:
            path.unlink()
            continue
        try:
            _stream(session, path, remote, report)
        except (
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
        ) as error:
            failures = failures + 1 if _size(path) <= before else 1
            if failures > _MAX_FAILURES:
                raise OfflineError(
                    f"{remote.owner}: {remote.file}: the connection broke {failures} times: {_plain(error)}. "
                    "What was downloaded is kept; run the command again to continue"
                ) from error
            _log.info("%s: %s; continuing at byte %d", remote.file, _plain(error), _size(path))
            time.sleep(min(8.0, 0.25 * 2**failures))
    report(_progress(remote, remote.size))


def _stream(session: requests.Session, path: Path, remote: Remote, report: Report) -> None:
    """One request: appends what the server sends, until its end or until it breaks off."""
    start = _size(path)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with session.get(
        remote.url, auth=remote.auth, headers=headers, timeout=_TIMEOUT_S, stream=True
    ) as response:
        if start and response.status_code == 416:  # the server has less than we do: what we have is not it
            path.unlink()
            raise requests.ConnectionError("the server refuses to continue at this byte")
        _check_status(response, remote.owner, remote.url, remote.help, {})
        if start and not _continues(response, start):
            start = 0
        with path.open("r+b" if start else "wb") as stream:
            stream.seek(start)
            for chunk in _pieces(response, remote.size - start, f"{remote.owner}: {remote.file}"):
                start += len(chunk)
                stream.write(chunk)
                report(_progress(remote, start))
    if start < remote.size:
        raise requests.ConnectionError(f"the server closed the connection after {start} bytes")


def _continues(response: requests.Response, start: int) -> bool:
    """Whether the answer is the rest that was asked for, not everything from the first byte."""
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return response.status_code == 206 and match is not None and int(match[1]) == start


def _check_status(
    response: requests.Response, owner: str, url: str, help: str, said: Mapping[int, str]
) -> None:
    status = response.status_code
    if status < 400:
        return
    place = url.partition("?")[0]  # the rest of a signed address is a secret
    reason = {
        401: f"access refused (401). {help}",
        403: f"access refused (403). {help}",
        404: f"not found (404): {place}. {help}",
        429: "the server is asking us to wait (429); try again in a few minutes",
        **said,
    }.get(status, f"the server returned {status} {response.reason} for {place}")
    raise DownloadError(f"{owner}: {reason.strip()}")


@contextmanager
def _errors(url: str, owner: str) -> Iterator[None]:
    try:
        yield
    except requests.exceptions.SSLError as error:
        raise DownloadError(f"{owner}: {_plain(error)}") from error
    except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
        raise OfflineError(f"{owner}: cannot reach {_host(url)}: {_plain(error)}") from error
    except requests.RequestException as error:
        raise DownloadError(f"{owner}: {_plain(error)}") from error


def _progress(remote: Remote, completed: int) -> Status:
    return Status(f"pulling {remote.digest[7:19]}", remote.digest, remote.size, completed, remote.file)


def _host(url: str) -> str:
    return url.split("/")[2] if "://" in url else url


def _plain(error: Exception) -> str:
    """The cause in one line, without the objects that urllib3 prints."""
    text = str(error.args[0]) if error.args else str(error)
    match = re.search(r"\[Errno -?\d+\] ([^')\"]+)|: ([A-Z][a-z][^()<>]+)['\")]*$", text)
    return (match[1] or match[2]).strip() if match else " ".join(text.split())[:200]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
