# SPDX-License-Identifier: MIT
"""`HttpSession`: the HTTP client for downloads, with limits on the servers and addresses that it may contact.

A user may name any server. A request to `serve` may only name known registries and registries that the
operator allows. Otherwise a client could make this machine send requests to other machines in its network. No
public server may redirect into this network, whoever started the download. Addresses are checked when a
connection is opened, and only the checked addresses are used, so a second DNS answer has no effect. (Behind a
proxy, the proxy resolves names; literal addresses are still checked.)
"""

from __future__ import annotations

import ipaddress
import math
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx

from eaglecpp.errors import UnsupportedError
from eaglecpp.references import HUB_HOSTS, REGISTRY_HOST
from eaglecpp.store.errors import DownloadError, HostRefusedError

_KNOWN = (REGISTRY_HOST, *HUB_HOSTS)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_CONNECT_S, _SILENT_S = 15.0, 60.0  # maximum seconds for connecting, and maximum seconds between two packets
_MAX_REDIRECTS = 5
_allowed: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)


@contextmanager
def named_by_a_request(registries: Iterable[str]) -> Iterator[None]:
    """Restricts downloads in the `with` block to servers that a request may name. registries: HOST or
    HOST:PORT of servers that the operator allows in addition to the known registries, even in the operator's
    own network.
    """
    allowed = {host.lower() for host in registries}
    if (endpoint := urlsplit(hub_endpoint()).netloc.lower()) not in _KNOWN:
        allowed.add(endpoint)  # the operator has chosen this Hub, so the Hub is allowed
    token = _allowed.set(frozenset(allowed))
    try:
        yield
    finally:
        _allowed.reset(token)


def require_allowed(host: str) -> None:
    """Raises HostRefusedError for a server (HOST or HOST:PORT) that a request may not name."""
    allowed = _allowed.get()
    if allowed is not None and host.lower() not in (*_KNOWN, *allowed):
        raise HostRefusedError(
            f"this server may not download from {host}; allow it with --allow-registry {host}"
        )


def hub_endpoint() -> str:
    """Returns the Hub's address, from llama.cpp's variable or huggingface_hub's (HF_ENDPOINT)."""
    from huggingface_hub import constants

    return (os.environ.get("MODEL_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def is_public(address: str) -> bool:
    """Returns whether an IP address is public: not loopback, private, link-local or the like."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip.sixtofour or ip
    if ip in _NAT64:
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or getattr(ip, "is_site_local", False))


class HttpSession(httpcore.SyncBackend, AbstractContextManager["HttpSession", None]):
    """Sends one request at a time and follows its redirects. A redirect may not switch to http. It may not
    enter a network of this machine, unless the user named a server in such a network. verify: check TLS
    certificates and require encryption.
    """

    def __init__(self, *, verify: bool = True) -> None:
        self._verify = verify
        self._may_enter = False  # True if this session may connect to a network of this machine
        self._is_inside = False  # True if the last connection went to a network of this machine
        self._sender = ""  # host that sent the last redirect
        self.end = math.inf  # deadline of the whole answer
        # Connections are not reused, so the address is checked for each request.
        self._client = httpx.Client(verify=verify, limits=httpx.Limits(max_keepalive_connections=0))
        pool: Any = self._client._transport._pool  # type: ignore[attr-defined]
        if not isinstance(pool._network_backend, httpcore.NetworkBackend):
            raise UnsupportedError(f"httpx {httpx.__version__}: addresses cannot be checked; install httpx<1")
        pool._network_backend = self

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
        """Yields the response, whose body is not read yet.

        token: sent only to this server, and not to another server after a redirect. silent_s: timeout between
        two packets; end: monotonic deadline of the whole answer. Raises HostRefusedError, DownloadError for a
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
            # ip_address raises ValueError for a host name, which is checked when the connection opens.
            with suppress(ValueError):
                self._only_allowed(request.url.host, [str(ipaddress.ip_address(request.url.host))])
            self._is_inside = False
            self.end = min(end, time.monotonic() + _SILENT_S)  # this deadline also ends endless headers
            response = self._client.send(request, stream=True)
            try:
                if response.next_request is None:
                    self.end = end
                    yield response
                    return
            finally:
                response.close()  # the redirect's body is not read, because it may be endless
            followed, request = request.url, response.next_request
            if self._verify and followed.scheme == "https" and request.url.scheme != "https":
                where = f"{request.url.scheme}://{request.url.host}"
                raise DownloadError(f"{followed.host} redirects from https to unencrypted {where}; refused")
            self._may_enter, self._sender = self._is_inside, followed.host
        raise DownloadError(f"{netloc}: more than {_MAX_REDIRECTS} redirects")

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any
    ) -> httpcore.NetworkStream:
        """Connects to a host, but only to addresses that pass the check."""
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
                stream: Any = _Timed(super().connect_tcp(address, port, timeout, *args, **options), self)
                return stream  # type: ignore[no-any-return]
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    def _only_allowed(self, host: str, addresses: list[str]) -> list[str]:
        chosen = addresses if self._may_enter else [a for a in addresses if is_public(a)]
        if not chosen:
            where = f"{host}, which is in a network of this machine ({addresses[0]})"
            if self._sender:
                raise HostRefusedError(f"{self._sender} redirects to {where}; refused")
            raise HostRefusedError(f"this server may not download from {where}; use --allow-registry {host}")
        return chosen


class _Timed:
    """A connection whose reads fail after the deadline of the whole answer."""

    def __init__(self, stream: httpcore.NetworkStream, session: HttpSession) -> None:
        self._stream, self._session = stream, session

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left = self._session.end - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the answer was not complete within its time limit")
        return self._stream.read(max_bytes, min(left, timeout or left))

    def start_tls(self, *args: Any, **options: Any) -> _Timed:
        return _Timed(self._stream.start_tls(*args, **options), self._session)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
