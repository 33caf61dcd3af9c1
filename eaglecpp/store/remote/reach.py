# SPDX-License-Identifier: MIT
"""`HttpSession`: the HTTP client of downloads, and which servers it may reach, at which addresses.

A user may name any server. A request to `serve` may name only registries that are known or that the owner
allows: otherwise it could have this machine ask others in its network. And no server on the Internet may
redirect into that network, whoever asked. Addresses are checked where a connection is made, and connected to
as they were checked, so that a second answer of a name server changes nothing. (Behind a proxy it is the
proxy that resolves names; addresses that are written out are checked there, too.)
"""

from __future__ import annotations

import ipaddress
import math
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Self
from urllib.parse import urlsplit

import httpcore
import httpx

from eaglecpp.errors import UnsupportedError
from eaglecpp.references import HUB_HOSTS, REGISTRY_HOST
from eaglecpp.store.errors import DownloadError, HostRefusedError

_KNOWN = (REGISTRY_HOST, *HUB_HOSTS)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_CONNECT_S, _SILENT_S = 15.0, 60.0  # to connect, between two packets
_MAX_REDIRECTS = 5
_allowed: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)


@contextmanager
def named_by_a_request(registries: Iterable[str]) -> Iterator[None]:
    """What is downloaded inside was named by a request. registries: HOST or HOST:PORT, which the owner allows
    besides the known ones, also in his own network.
    """
    allowed = {host.lower() for host in registries}
    if (endpoint := urlsplit(hub_endpoint()).netloc.lower()) not in _KNOWN:
        allowed.add(endpoint)  # the owner's choice, too
    token = _allowed.set(frozenset(allowed))
    try:
        yield
    finally:
        _allowed.reset(token)


def require_allowed(host: str) -> None:
    """Raises HostRefusedError for a server (HOST or HOST:PORT) that a request may not name."""
    allowed = _allowed.get()
    if allowed is not None and host.lower() not in (*_KNOWN, *allowed):
        raise HostRefusedError(f"this server does not download from {host} (--allow-registry {host})")


def hub_endpoint() -> str:
    """The address of the Hub: llama.cpp's variable, or huggingface_hub's (HF_ENDPOINT)."""
    from huggingface_hub import constants

    return (os.environ.get("MODEL_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def is_public(address: str) -> bool:
    """Whether an IP address is one of the Internet: not loopback, private, link-local or the like."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip.sixtofour or ip
    if ip in _NAT64:
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or getattr(ip, "is_site_local", False))


class HttpSession(httpcore.SyncBackend):
    """One request with its redirects at a time; none of them leaves encryption or enters a network of this
    machine unless the user named such a server. verify: check TLS certificates, and stay encrypted.
    """

    def __init__(self, *, verify: bool = True) -> None:
        self._verify = verify
        self._may_enter = False  # a network of this machine
        self._is_inside = False  # the server of the last connection is in such a network
        self._sender = ""  # who redirected us
        self.end = math.inf  # when the answer must be whole
        # Every request makes a connection, so that its address is checked for this request.
        self._client = httpx.Client(verify=verify, limits=httpx.Limits(max_keepalive_connections=0))
        pool: Any = self._client._transport._pool  # type: ignore[attr-defined]
        if not isinstance(pool._network_backend, httpcore.NetworkBackend):  # addresses would go unchecked
            raise UnsupportedError(f"httpx {httpx.__version__} connects in an unknown way; install httpx<1")
        pool._network_backend = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    @contextmanager
    def get(
        self,
        url: str,
        headers: Mapping[str, str],
        token: str = "",
        *,
        silent_s: float = _SILENT_S,
        end: float = math.inf,
    ) -> Iterator[httpx.Response]:
        """The answer, its content not read yet.

        token: for this server alone, not for those that it redirects to. silent_s: patience between two
        packets; end: when the answer must be whole (monotonic). Raises HostRefusedError, DownloadError for a
        bad redirect, and httpx's errors.
        """
        allowed, netloc = _allowed.get(), urlsplit(url).netloc.rpartition("@")[2].lower()
        require_allowed(netloc)
        self._sender, self._may_enter = "", allowed is None or netloc in allowed
        own = {"Authorization": f"Bearer {token}"} if token else {}
        headers = {**headers, "Accept-Encoding": "identity", **own}
        timeout = httpx.Timeout(silent_s, connect=_CONNECT_S)
        request = self._client.build_request("GET", url, headers=headers, timeout=timeout)
        for _ in range(_MAX_REDIRECTS + 1):
            with suppress(ValueError):  # a name is checked where it is connected to
                self._only_allowed(request.url.host, [str(ipaddress.ip_address(request.url.host))])
            self._is_inside = False
            self.end = min(end, time.monotonic() + _SILENT_S)  # a head could trickle for ever
            response = self._client.send(request, stream=True)
            try:
                if response.next_request is None:
                    self.end = end
                    yield response
                    return
            finally:
                response.close()  # what comes with a redirect is not read: it need not end
            followed, request = request.url, response.next_request
            if self._verify and followed.scheme == "https" and request.url.scheme != "https":
                where = f"{request.url.scheme}://{request.url.host}"
                raise DownloadError(
                    f"{followed.host} redirects from https to {where}, not encrypted; refused"
                )
            self._may_enter, self._sender = self._is_inside, followed.host
        raise DownloadError(f"{netloc}: more than {_MAX_REDIRECTS} redirects")

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any
    ) -> httpcore.NetworkStream:
        """Connects to the addresses that were checked, and to no others."""
        name = host.strip("[]")
        try:
            found = socket.getaddrinfo(name, port, 0, socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(error.strerror or str(error)) from error
        chosen = self._only_allowed(name, list(dict.fromkeys(str(entry[4][0]) for entry in found)))
        self._is_inside = not all(map(is_public, chosen))
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in chosen:
            try:
                stream: Any = _Stream(super().connect_tcp(address, port, timeout, *args, **options), self)
                return stream  # type: ignore[no-any-return]
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    def _only_allowed(self, host: str, addresses: list[str]) -> list[str]:
        chosen = addresses if self._may_enter else [one for one in addresses if is_public(one)]
        if not chosen:
            where = f"{host}, which is in a network of this machine ({addresses[0]})"
            if self._sender:
                raise HostRefusedError(f"{self._sender} redirects to {where}; refused")
            raise HostRefusedError(f"this server does not download from {where} (--allow-registry {host})")
        return chosen


class _Stream:
    """A connection whose reads end when the answer has to be whole."""

    def __init__(self, stream: httpcore.NetworkStream, session: HttpSession) -> None:
        self._stream, self._session = stream, session

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left = self._session.end - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the answer took too long")
        return self._stream.read(max_bytes, min(left, timeout or left))

    def start_tls(self, *args: Any, **options: Any) -> _Stream:
        return _Stream(self._stream.start_tls(*args, **options), self._session)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
