# SPDX-License-Identifier: MIT
"""HTTP for all APIs: JSON bodies whatever their content type, streamed answers, clients that disconnect.

`field` reads a body where it is used. What an answer may be asked for is declared in `eaglecpp.options`;
models of each API's bodies (pydantic, msgspec) would declare it once more for each.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from eaglecpp.limits import JSON_VALUES
from eaglecpp.server.errors import ApiError, as_api_error, error_body

__all__ = [
    "ClientGoneError",
    "LiveResponse",
    "dump",
    "error_response",
    "extensions",
    "field",
    "json_response",
    "keep_alive",
    "read_body",
    "read_json",
    "respond",
    "sse",
    "while_there",
]

if TYPE_CHECKING:
    from eaglecpp.server.answer import Answer

T = TypeVar("T")
_log = logging.getLogger("eaglecpp.server")
_NAMES = {str: "a string", bool: "true or false", int: "a whole number", float: "a number", list: "a list",
          dict: "an object"}  # fmt: skip
_MAX_DEPTH = 100  # of a body; what is read from it recurses, and must not reach Python's limit
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAY_HOLD_SURROGATES = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]|\0")  # NUL: UTF-16 or UTF-32


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


class _UnreadError(Exception):
    """The client takes nothing of what is sent."""


async def read_body(request: Request, limit: int) -> bytes:
    """The body. Raises ApiError for one that is too long."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise ApiError(413, f"the body has {declared} bytes, this server accepts at most {limit}")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise ApiError(413, f"the body is longer than the {limit} bytes that this server accepts")
        parts.append(part)
    return b"".join(parts)


async def read_json(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Its content type does not matter: curl -d sends none that says JSON. Halves
    of characters, which a client sends that cuts a text within one, are U+FFFD, as Ollama reads them.
    """
    data = await read_body(request, request.app.state.server.config.n_body)
    if not data.strip():
        raise ApiError(400, "missing request body")
    try:
        _check_values(data)
        value = json.loads(data, parse_constant=_no_number, parse_float=_finite_float)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the body must be a JSON object, found {type(value).__name__}")
    if data.count(b"[") + data.count(b"{") > _MAX_DEPTH:
        _check_depth(value)
    return dict(_whole_text(value)) if _MAY_HOLD_SURROGATES.search(data) else value


def _check_values(data: bytes) -> None:
    """Raises ApiError for JSON of so many values that reading it would hold everybody up."""
    n_values = sum(map(data.count, (b",", b"[", b"{")))
    if n_values > JSON_VALUES:
        raise ApiError(413, f"the body has up to {n_values} values, at most {JSON_VALUES} are allowed")


def field(body: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """A field of a request; null is the same as missing. Raises ApiError for another type."""
    value = body.get(name)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        if kind is float and is_number:
            return float(value)
        if kind is int and is_number and value == value // 1:
            return int(value)
    except OverflowError:  # of a whole number beyond all floats
        raise ApiError(400, f"{name}: the number is too large", param=name) from None
    if kind in (int, float) or not isinstance(value, kind):
        raise ApiError(400, f"{name} must be {_NAMES[kind]}, found {json.dumps(value)[:80]}", param=name)
    return value


def keep_alive(value: Any) -> float | None:
    """Seconds; < 0 = for ever; None where nothing was said. Raises ApiError."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value) if value - value == 0 else -1.0
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    text = str(value).strip()
    sign, digits = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if re.fullmatch(r"\d+(\.\d*)?", digits):
        return sign * float(digits)
    found = _DURATION.findall(digits)
    if not found or "".join(number + unit for number, unit in found) != digits:
        raise ApiError(400, f"keep_alive {value!r}: expected seconds, or a duration such as 10m")
    return sign * sum(float(number) * _UNITS[unit] for number, unit in found)


def extensions(body: Mapping[str, Any]) -> tuple[bool, str | None]:
    """Our fields `draft` (false, or a depth as llama.cpp's `speculative.n_max`) and `strategy`."""
    strategy = field(body, "strategy", str)
    draft = body.get("draft")
    if draft is None and "speculative.n_max" in body:
        n_max = field(body, "speculative.n_max", int, 0)
        return n_max > 0, strategy or (f"chain:{n_max}" if n_max > 0 else None)
    if draft is not None and not isinstance(draft, bool):
        raise ApiError(400, f"draft must be true or false, found {json.dumps(draft)[:80]}", param="draft")
    return draft is not False, strategy


def dump(value: Any) -> bytes:
    """One JSON value on one line, in UTF-8 whatever its texts hold. What JSON has no word for (an infinite
    log-probability) becomes null, half a character U+FFFD.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))
    return _SURROGATE.sub("\ufffd", text).encode()


def error_response(error: BaseException, path: str) -> Response:
    """The answer to a request that failed before anything was sent."""
    told = as_api_error(error, path)
    headers = {"Retry-After": "1"} if told.status == 503 else {}
    return Response(dump(error_body(told, path)), told.status, headers, "application/json")


def sse(value: Any, event: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + dump(value) + b"\n\n"


async def while_there(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves first: ClientGoneError. The body must
    have been read.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        await _end(task, gone)


async def respond(
    request: Request,
    opened: AbstractAsyncContextManager[Answer],
    is_streamed: bool,
    whole: Callable[[Answer], Any],
    parts: Callable[[Answer], AsyncIterator[bytes]],
    media_type: str = "text/event-stream",
) -> Response:
    """An answer as the client wants it: `parts` as they come, or `whole` at its end."""
    async with AsyncExitStack() as stack:
        answer = await while_there(request, stack.enter_async_context(opened))
        if is_streamed:
            return LiveResponse(parts(answer), stack.pop_all(), media_type)
        await while_there(request, answer.whole())
        return json_response(whole(answer))
    raise AssertionError


def json_response(value: Any) -> Response:
    """One JSON value."""
    return Response(dump(value), media_type="application/json")


class LiveResponse(Response):
    """Sends its headers at once and then what `parts` gives, until that ends, the client leaves, or it takes
    nothing for `ServerConfig.unread_s`. `stack` is closed in any case. An error in `parts` is sent in the
    stream: the status has gone already.
    """

    def __init__(self, parts: AsyncIterator[bytes], stack: AsyncExitStack, media_type: str) -> None:
        self.parts = parts
        self.stack = stack
        self.background = None
        self.status_code = 200
        self.media_type = media_type
        self.body = b""
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.stack:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            pump = asyncio.ensure_future(self._pump(scope, send))
            gone = asyncio.ensure_future(_left(receive))
            try:
                await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
                if pump.done():
                    pump.result()
            finally:
                await _end(pump, gone)

    async def _pump(self, scope: Scope, send: Send) -> None:
        unread_s = scope["app"].state.server.config.unread_s or None

        async def say(data: bytes, more: bool = True) -> None:
            try:
                async with asyncio.timeout(unread_s):
                    await send({"type": "http.response.body", "body": data, "more_body": more})
            except TimeoutError:
                raise _UnreadError from None
            except OSError:  # the client left while we wrote
                raise ClientGoneError from None

        path = scope["path"]
        try:
            async for part in self.parts:
                await say(part)
        except ClientGoneError:
            return
        except _UnreadError:
            _log.warning("%s: the client read nothing for %g s; its answer has ended", path, unread_s)
            return
        except Exception as error:
            told = as_api_error(error, path)
            _log.warning("%s: error in a stream: %s", path, told.message)
            body = error_body(told, path)
            is_lines = self.media_type == "application/x-ndjson"
            await say(
                dump(body) + b"\n" if is_lines else sse(body, "error" if path == "/v1/messages" else "")
            )
        await say(b"", more=False)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


def _finite_float(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner = (node.values() if isinstance(node, dict) else node for node in level)
        level = [entry for entries in inner for entry in entries if isinstance(entry, dict | list)]
        if not level:
            return
    raise ApiError(400, f"the body is nested more than {_MAX_DEPTH} levels deep")


def _whole_text(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_whole_text(name): _whole_text(entry) for name, entry in value.items()}
    return [_whole_text(entry) for entry in value] if isinstance(value, list) else value
