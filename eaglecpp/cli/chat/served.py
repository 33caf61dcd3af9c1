# SPDX-License-Identifier: MIT
"""One answer from the server that runs on this machine, which has the model in memory already.

It is asked through Ollama's `/api/chat` with our own fields and shown as `answer` shows one. A server that
refuses before the first token is no error: `run` opens the model itself then.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from eaglecpp.chat.reader import Piece
from eaglecpp.cli.chat.answer import ShownAnswer
from eaglecpp.cli.chat.screen import Screen
from eaglecpp.cli.terminal import silent_keys
from eaglecpp.errors import EagleError
from eaglecpp.results import Completion, Timings

if TYPE_CHECKING:
    from eaglecpp.server.announced import Address

__all__ = ["ServerRefusedError", "served_answer"]

_CONNECT_S = 2.0


class ServerRefusedError(EagleError):
    """The server did not begin an answer; the text says why."""


def served_answer(
    server: Address, body: Mapping[str, Any], screen: Screen, api_key: str | None = None
) -> tuple[ShownAnswer, float]:
    """The answer to a request of `/api/chat`, shown as it streams, and how long loading the model took, in
    milliseconds. After Ctrl+C it has what came until then, without figures.

    Raises ServerRefusedError before the first token, EagleError for a server that ends in the middle.
    """
    started = time.perf_counter()
    content: list[str] = []
    thinking: list[str] = []
    last: dict[str, Any] = {}
    stopped = False
    connection = http.client.HTTPConnection(server.host, server.port, timeout=_CONNECT_S)
    try:
        with silent_keys():
            for part in _parts(connection, {**body, "stream": True, "show_drafts": True}, api_key):
                pieces = _pieces(part)
                content += [piece.text for piece in pieces if not piece.is_thinking]
                thinking += [piece.text for piece in pieces if piece.is_thinking]
                screen.show(pieces)
                last = part
    except KeyboardInterrupt:
        stopped = True
    finally:
        connection.close()  # which ends an answer in progress
        if content or thinking or last:
            screen.end()
    if not stopped and not last.get("done"):
        raise EagleError(f"{server}: the server ended in the middle of the answer")
    told = last.get("timings", {})
    known = {name: told[name] for name in Timings.__dataclass_fields__ if name in told}
    completion = Completion(
        text="".join(thinking + content),
        tokens=[],
        accepted=[],
        finish_reason="cancelled" if stopped else last.get("done_reason", "stop"),
        seed=0,
        prompt_tokens=[],
        timings=Timings(**known),
    )
    total_ms = 1000 * (time.perf_counter() - started)
    shown = ShownAnswer(completion, "".join(content), "".join(thinking), stopped, total_ms)
    return shown, last.get("load_duration", 0) / 1e6


def _parts(
    connection: http.client.HTTPConnection, body: Mapping[str, Any], api_key: str | None
) -> Iterator[dict[str, Any]]:
    """The lines of the answer. Raises ServerRefusedError, and EagleError once it has begun."""
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    try:
        connection.connect()
        connection.sock.settimeout(None)  # loading and a long prompt take as long as they take
        connection.request("POST", "/api/chat", json.dumps(body).encode(), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ServerRefusedError(_reason(response.read(65536)) or f"status {response.status}")
    except (OSError, http.client.HTTPException) as error:
        raise ServerRefusedError(str(error) or type(error).__name__) from None
    try:
        for line in response:
            part = json.loads(line)
            if "error" in part:
                raise EagleError(str(part["error"]))
            yield part
    except (OSError, http.client.HTTPException, ValueError):
        return  # without a last line


def _pieces(part: Mapping[str, Any]) -> list[Piece]:
    told = (part.get("drafts") or {}).get("pieces", ())
    return [Piece(text, bool(is_thinking), bool(is_accepted)) for text, is_accepted, is_thinking in told]


def _reason(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
