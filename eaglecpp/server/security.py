# SPDX-License-Identifier: MIT
"""Who may use the server: host names, origins of pages, API keys. One ASGI middleware, before any route.

On a loopback address the Host header has to name this machine; otherwise a malicious page could reach the
server through a domain of its own that points to 127.0.0.1. Origins are Ollama's.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eaglecpp.server.config import ServerConfig
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import error_response

__all__ = ["Gate"]

_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "host.docker.internal")
_SCHEMES = ("app://", "file://", "tauri://", "vscode-webview://", "vscode-file://")
_METHODS = "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
_STAINLESS = ("lang", "package-version", "os", "arch", "retry-count", "runtime", "runtime-version", "async",
              "helper-method", "poll-helper", "custom-poll-interval", "timeout")  # fmt: skip
_HEADERS = ", ".join(
    ["Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With", "OpenAI-Beta", "X-Api-Key",
     "Anthropic-Version", "Anthropic-Beta", *(f"x-stainless-{name}" for name in _STAINLESS)]
)  # fmt: skip
_OPEN = ("/", "/health", "/v1/health", "/metrics")  # what a probe may read without a key


class Gate:
    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app = app
        self.config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        origin = headers.get("origin", "")

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and origin and self._allows(origin, headers):
                MutableHeaders(scope=message).update(
                    {"Access-Control-Allow-Origin": "*" if "*" in self.config.origins else origin,
                     "Vary": "Origin"}
                )  # fmt: skip
            await send(message)

        refusal = self._refusal(scope, headers, origin)
        if refusal is not None:
            await error_response(refusal, path)(scope, receive, answer)
        elif scope["method"] == "OPTIONS":
            allowed = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Allow-Headers": _HEADERS,
                       "Access-Control-Max-Age": "43200"}  # fmt: skip
            await Response(status_code=204, headers=allowed)(scope, receive, answer)
        else:
            await self.app(scope, receive, answer)

    def _refusal(self, scope: Scope, headers: Headers, origin: str) -> ApiError | None:
        host = _host(headers.get("host", ""))
        if self.config.is_loopback and host and not self._is_called(host):
            return ApiError(403, f"this server is not called {host!r} (--allow-host)")
        if origin and not self._allows(origin, headers):
            return ApiError(403, f"pages of {origin} may not use this server (--allow-origin)")
        needs_key = self.config.keys and scope["method"] != "OPTIONS" and not _is_open(scope["path"])
        if needs_key and not _knows(headers, self.config.keys):
            text = "this server requires an API key: Authorization: Bearer KEY"
            return ApiError(401, text, code="invalid_api_key")
        return None

    def _is_called(self, host: str) -> bool:
        return host in (*_LOCAL, *self.config.hosts) or host.endswith((".localhost", ".local", ".internal"))

    def _allows(self, origin: str, headers: Headers) -> bool:
        if "*" in self.config.origins or origin in self.config.origins or origin.startswith(_SCHEMES):
            return True
        match = re.fullmatch(r"https?://(.+)", origin)
        if match is None:
            return False
        return _host(match[1]) in _LOCAL or match[1] == headers.get("host")


def _is_open(path: str) -> bool:
    return path in _OPEN or path.startswith("/static/")


def _knows(headers: Headers, keys: Sequence[str]) -> bool:
    given = headers.get("authorization", "").removeprefix("Bearer ").strip() or headers.get("x-api-key", "")
    same = [hmac.compare_digest(given.encode(), key.encode()) for key in keys]  # all, in the same time
    return any(same)


def _host(text: str) -> str:
    """The name of a host without its port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text
