# SPDX-License-Identifier: MIT
"""Access control (host names, origins of pages, API keys) and the access log, in one ASGI middleware that
runs before any route.

The Host header must be an address or a name of this machine. Otherwise a malicious page could reach the
server through the page's own domain name, if this name resolves to this machine. The allowed origins are the
same as Ollama's. A page of another site can send requests without an Origin header, for images and links;
browsers mark these requests with Sec-Fetch-Site.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import time
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eaglecpp.server.errors import ApiError, cut
from eaglecpp.server.http import error_response
from eaglecpp.server.models import Server
from eaglecpp.server.shared import in_words

_log = logging.getLogger("eaglecpp.server.access")
# The page polls these paths. Their successful requests are logged at DEBUG.
_POLLED = ("/static/", "/api/ps", "/api/tags")
_SCHEMES = ("app://", "file://", "tauri://", "vscode-webview://", "vscode-file://")
# a preflight is valid for this number of seconds
_CORS: Any = {"allow_private_network": True, "max_age": 12 * 3600}
_OPEN = ("/", "/health", "/v1/health", "/metrics")  # paths that need no API key
# values of Sec-Fetch-Site for a typed address and for a request of our own page
_OWN_PAGES = ("none", "same-origin")


class Gate:
    """ASGI middleware that checks, counts and logs requests. server: the state shared by requests"""

    def __init__(self, app: Starlette, server: Server) -> None:
        self.app, self.server, self.config = app, server, server.config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, started, status, id = Headers(scope=scope), time.perf_counter(), 500, uuid.uuid4().hex[:16]
        origin = headers.get("origin", "")

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = id
            await send(message)

        try:
            refusal = self._refusal(scope, headers, origin)
            app: ASGIApp = self.app if refusal is None else error_response(refusal, scope["path"])
            if origin and self._allows(origin, headers):
                app = CORSMiddleware(app, [origin], ["*"], ["*"], **_CORS)
            await app(scope, receive, answer)
        finally:
            self.server.held.release(scope)
            path = self._route(scope)
            self.server.metrics.add("requests_total", path=path, status=status)
            # the path is percent-encoded, so it has no line breaks
            target = cut(scope["raw_path"].decode("ascii", "replace"))
            ms = 1000 * (time.perf_counter() - started)
            words = [f"{scope['method']} {target} {status} {ms:.1f} ms {id}", *in_words(scope)]
            level = logging.DEBUG if path.startswith(_POLLED) and status < 400 else logging.INFO
            _log.log(level, "%s", " ".join(words))

    def _route(self, scope: Scope) -> str:
        """Returns the pattern of the matching route as a label for metrics. The path itself is not a label,
        because a path may contain a model name.
        """
        routes = (route for route in self.app.routes if isinstance(route, Route))
        return next((route.path for route in routes if route.matches(scope)[0] is not Match.NONE), "other")

    def _refusal(self, scope: Scope, headers: Headers, origin: str) -> ApiError | None:
        name = headers.get("host", "")
        host = _host(name)
        if name and not self._is_called(host):
            return ApiError(403, f"unknown host name {host or name!r}; to allow it: --allow-host")
        if origin and not self._allows(origin, headers):
            return ApiError(403, f"pages of {origin} may not use this server; to allow them: --allow-origin")
        if not origin and self._is_elsewhere(scope, headers, host):
            return ApiError(403, "other sites' pages may not use this server; to allow them: --allow-origin")
        is_open = scope["path"] in _OPEN or scope["path"].startswith("/static/")
        if self.config.keys and scope["method"] != "OPTIONS" and not is_open:
            key = _known_key(headers, self.config.keys)
            if key is None:
                text = "this server requires an API key; send the header Authorization: Bearer KEY"
                return ApiError(401, text, code="invalid_api_key")
            scope["api_key"] = key
        return None

    def _is_called(self, host: str) -> bool:
        names = map(str.lower, (self.config.host, *self.config.hosts))
        return _address(host) is not None or _is_local(host) or host in names

    def _allows(self, origin: str, headers: Headers) -> bool:
        if "*" in self.config.origins or origin in self.config.origins or origin.startswith(_SCHEMES):
            return True
        scheme, _, netloc = origin.partition("://")
        return scheme in ("http", "https") and (_is_local(_host(netloc)) or netloc == headers.get("host"))

    def _is_elsewhere(self, scope: Scope, headers: Headers, host: str) -> bool:
        """Returns whether another site's page sent the request without an Origin header. Links to our own
        page are allowed.
        """
        site = headers.get("sec-fetch-site", _OWN_PAGES[0])
        if site in _OWN_PAGES or "*" in self.config.origins or (site == "same-site" and _is_local(host)):
            return False
        return scope["path"] != "/" or headers.get("sec-fetch-mode") != "navigate"


def _known_key(headers: Headers, keys: Sequence[str]) -> str | None:
    """Returns the valid API key in a request's headers, or None."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    sent = [headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else ""]
    same = [k for k in keys for key in sent if hmac.compare_digest(key.encode("latin-1"), k.encode())]
    # all keys are compared before the first match is returned, so the time is constant
    return next(iter(same), None)


def _host(text: str) -> str:
    """Returns a host name or address in lower case, without its port. Returns any other text unchanged."""
    name, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit():
        text = name
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    return text.lower().removesuffix(".")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    """Returns whether a host name or address always means the client's own machine, such as localhost."""
    if (address := _address(host)) is not None:
        return address.is_loopback or address.is_unspecified
    return host == "localhost" or host.endswith(".localhost")
