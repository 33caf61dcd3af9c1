# SPDX-License-Identifier: MIT
"""HTTP for all APIs: JSON bodies of any content type, streamed answers, clients that disconnect.
`eaglecpp.server.bodies` defines the fields of the bodies.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from eaglecpp.files import is_deeper
from eaglecpp.limits import JSON_VALUES
from eaglecpp.server.errors import ApiError, as_api_error, error_body
from eaglecpp.server.models import server_of

T = TypeVar("T")


_log = logging.getLogger("eaglecpp.server")
_STEP = 1 << 20  # number of bytes of a body that must arrive within `ServerConfig.body_s`
_PING_S = 15.0  # Seconds without data before a ping. Some proxies close an idle stream after a minute.
_LARGE = 64 << 10  # bodies with more bytes are parsed in a thread
# Maximum nesting of a body. Parsers are recursive and must not reach Python's recursion limit.
_MAX_DEPTH = 100
_HALF = re.compile("[\ud800-\udfff]")  # one half of a surrogate pair
# Unicode line separators, at which some clients split a stream
_ENDS = re.compile(b"\xc2\x85|\xe2\x80[\xa8\xa9]")
_IS_ODD = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]|\0|^\xef\xbb\xbf")
"""Matches halves of surrogate pairs, UTF-16 or UTF-32, and a byte order mark."""


class ClientGoneError(Exception):
    """The client has disconnected, so the request is cancelled."""


class _UnreadError(Exception):
    """The client is connected but does not read the answer."""


async def read_json(request: Request) -> dict[str, Any]:
    """Reads the body as a JSON object. Any content type is accepted, because `curl -d` sends a wrong content
    type. Clients that cut texts inside a character send halves of surrogate pairs, which become U+FFFD, as in
    Ollama. Raises ApiError for a body that is too long, or that arrives too slowly.
    """
    server = server_of(request)
    limit = server.config.n_body
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise ApiError(415, f"Content-Encoding {coding[:80]!r} is not supported; send the body uncompressed")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
        raise ApiError(413, f"the body has {declared} bytes; this server accepts at most {limit}")
    data, due, body_s = bytearray(), _STEP, server.config.body_s
    try:
        async with asyncio.timeout(body_s) as time_left:
            async for part in request.stream():
                data += part
                if len(data) > limit:
                    raise ApiError(413, f"the body has more than the {limit} bytes that this server accepts")
                server.held.hold(request.scope, len(data))
                if len(data) >= due:
                    due = len(data) + _STEP
                    time_left.reschedule(asyncio.get_running_loop().time() + body_s)
    except TimeoutError:
        text = f"the body is too slow: {len(data)} bytes so far, and less than a megabyte in {body_s:g} s"
        raise ApiError(408, text) from None
    request.state.n_body = len(data)
    if not data.strip():
        raise ApiError(400, "missing request body")
    return await in_thread(request, _parsed, bytes(data))


async def in_thread(request: Request, work: Callable[..., T], *args: Any) -> T:
    """Runs `work(*args)`, which processes the request's body. Runs it at once if the body is small, else in a
    thread.
    """
    if request.state.n_body <= _LARGE:
        return work(*args)
    return await server_of(request).work.bodies.run(work, *args)


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        check_values(data)
        if _IS_ODD.search(data):  # `dump` replaces each half of a surrogate pair by U+FFFD
            data = dump(json.loads(data))
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"expected the body as a JSON object, found {type(value).__name__}")
    if data.count(b"[") + data.count(b"{") > _MAX_DEPTH and is_deeper(value, _MAX_DEPTH):
        raise ApiError(400, f"the body is nested more than {_MAX_DEPTH} levels deep")
    return value


def check_values(data: bytes) -> None:
    """Raises ApiError for JSON with too many values to parse without delaying other requests."""
    n_values = sum(map(data.count, (b",", b"[", b"{")))
    if n_values > JSON_VALUES:
        raise ApiError(413, f"the body has up to {n_values} values; the maximum is {JSON_VALUES}")


def dump(value: Any) -> bytes:
    """Encodes a value as JSON on one line, in UTF-8. Infinite numbers become null. Halves of surrogate pairs
    become U+FFFD. Unicode's line separators are escaped, because many clients split streams at them.
    """
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = msgspec.json.encode(json.loads(_HALF.sub("\ufffd", json.dumps(value, ensure_ascii=False))))
    return _ENDS.sub(lambda end: f"\\u{ord(end[0].decode()):04x}".encode(), data)


def error_response(error: BaseException, path: str) -> Response:
    """Returns the error response to a request that failed before anything was sent."""
    known = as_api_error(error, path)
    headers = {"Retry-After": "1"} if known.status == 503 else {}
    return Response(dump(error_body(known, path)), known.status, headers, "application/json")


def sse(value: Any, event: str = "") -> bytes:
    """Encodes one server-sent event."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + dump(value) + b"\n\n"


async def while_there(receive: Receive, work: Awaitable[T]) -> T:
    """Returns the result of `work`. If the client disconnects, cancels `work` and raises ClientGoneError.
    receive: the request's ASGI channel, from which the body has been read already.
    """

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        await end_all(task, gone)


def json_response(value: Any) -> Response:
    """Returns one JSON value as a response."""
    return Response(dump(value), media_type="application/json")


async def live(
    request: Request,
    parts: AsyncGenerator[bytes, None],
    is_begun: Callable[[int], bool],
    whole: Callable[[], Any] | None,
    media_type: str,
) -> Response:
    """Sends each of the `parts` as it arrives. If `whole` is given, waits for the last part instead, and
    sends the result of `whole()` as JSON. An error that occurs before `is_begun(number of parts so far)` is
    true sets the HTTP status.
    """
    first = list[bytes]()
    try:
        while not is_begun(len(first)):
            first.append(await while_there(request.receive, anext(parts)))
        if whole is None:
            return _LiveResponse(b"".join(first), parts, media_type)
        while await while_there(request.receive, anext(parts, None)) is not None:
            pass
        return json_response(whole())
    except BaseException:
        await parts.aclose()
        raise


class _LiveResponse(StreamingResponse):
    """A response that sends its headers at once, then `first`, then the `parts`. The response stops early if
    the client disconnects or reads nothing for `ServerConfig.unread_s`. The response always closes `parts`.
    An error is sent in the stream, because the HTTP status has already been sent.
    """

    def __init__(self, first: bytes, parts: AsyncGenerator[bytes, None], media_type: str) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(parts, headers=headers, media_type=media_type)
        self.first, self.parts = first, parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.parts):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with suppress(ClientGoneError):
                await while_there(receive, self._pump(scope, send))

    async def _pump(self, scope: Scope, send: Send) -> None:
        unread_s = scope["app"].state.server.config.unread_s or None

        async def say(data: bytes, more: bool = True) -> None:
            try:
                async with asyncio.timeout(unread_s):
                    await send({"type": "http.response.body", "body": data, "more_body": more})
            except TimeoutError:
                raise _UnreadError from None
            except OSError:  # the client has disconnected during a write
                raise ClientGoneError from None

        path, is_lines = scope["path"], self.media_type == "application/x-ndjson"
        ping = sse({"type": "ping"}, "ping") if path == "/v1/messages" else b": ping\n\n"

        async def keep_alive() -> None:
            while not is_lines:
                n_before = n_parts
                await asyncio.sleep(_PING_S)
                if n_parts == n_before:
                    await say(ping)

        n_parts, pings = 0, asyncio.ensure_future(keep_alive())
        try:
            await say(self.first)
            async for part in self.parts:
                n_parts += bool(part)
                await say(part)
        except ClientGoneError:
            raise
        except _UnreadError:
            _log.warning("%s: the client read nothing for %g s; its answer was cancelled", path, unread_s)
            return
        except Exception as error:
            known = as_api_error(error, path)
            _log.warning("%s: error in a stream: %s", path, known.message)
            body = error_body(known, path)
            await say(
                dump(body) + b"\n" if is_lines else sse(body, "error" if path == "/v1/messages" else "")
            )
        finally:
            await end_all(pings)
        await say(b"", more=False)


async def end_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancels tasks, and waits until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
