# SPDX-License-Identifier: MIT
"""One answer from the server that runs on this machine, which has the model in memory already.

It is asked through Ollama's `/api/chat` with our own fields and shown as `answer` shows one. A server that
refuses before the first token is no error: `run` opens the model itself then.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from eaglecpp.chat.reader import Piece
from eaglecpp.cli.chat.answer import PlainSpeed, Settings, ShownAnswer
from eaglecpp.cli.chat.screen import Screen
from eaglecpp.cli.terminal import note, patience, silent_keys, stats_line, verbose_lines
from eaglecpp.errors import EagleError
from eaglecpp.options import SamplingOptions, Strategy, describe
from eaglecpp.results import Completion, Timings
from eaglecpp.server.announced import Address, find_server

if TYPE_CHECKING:
    from eaglecpp.opening.find import Found

__all__ = ["Asked", "ServerRefusedError", "answered_by_server"]

_CONNECT_S = 2.0
_LOAD_PATIENCE_S = 1.0


class ServerRefusedError(EagleError):
    """The server did not begin an answer; the text says why."""


@dataclass(frozen=True)
class Asked:
    """What a single answer is made from. options: those on the command line, by field name."""

    text: str
    images: Sequence[bytes]
    settings: Settings
    system: str | None
    strategy: Strategy | None
    options: Mapping[str, Any]
    keep_alive_s: float | None

    def body(self, model: str) -> dict[str, Any]:
        """The request."""
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        form = self.settings.format
        coded = [base64.b64encode(image).decode() for image in self.images]
        images = {"images": coded} if coded else {}
        return {
            "model": model,
            "messages": [*head, {"role": "user", "content": self.text} | images],
            "options": self.options,
            "think": self.settings.think,
            "format": json.loads(form) if form.startswith("{") else form,
            "strategy": None if self.strategy is None else str(self.strategy),
            "keep_alive": self.keep_alive_s,
            "truncate": False,
            "stream": True,
            "show_drafts": True,
        }


def answered_by_server(source: Found, asked: Asked, screen: Screen) -> bool:
    """Shows the answer of the server on this machine; False where the model has to be opened here: there is
    no server, it refuses, or the command line says how to open the model. Ends the command after Ctrl+C.
    """
    if source.is_file or not asked.options.keys() <= {one.name for one in describe(SamplingOptions)}:
        return False
    server = find_server()
    if server is None:
        return False
    settings = asked.settings
    if settings.verbose:
        note(f"server:     {server} (--no-server opens the model in this process)")
    try:
        made, load_ms = _answer(server, asked.body(source.name), screen)
    except ServerRefusedError as error:
        note(f"note: {source.name} is opened in this process, because {server} refuses: {error}")
        return False
    if made.stopped:
        raise click.exceptions.Exit(130)
    if settings.think and not made.thinking:
        note(f"warning: {source.name} answered without thinking; its template may not support it")
    stats, speedup = made.timings, PlainSpeed().learn(made.timings)
    lines = ["", *verbose_lines(stats, made.total_ms, load_ms, speedup)] if settings.verbose else []
    note("\n".join([*lines, stats_line(stats, has_draft="rounds" in stats.plan, speedup=speedup)]))
    return True


def _answer(server: Address, body: Mapping[str, Any], screen: Screen) -> tuple[ShownAnswer, float]:
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
            with patience(_LOAD_PATIENCE_S, f"waiting for {server} ..."):
                response = _begun(connection, body)
            for part in _parts(response):
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


def _begun(connection: http.client.HTTPConnection, body: Mapping[str, Any]) -> http.client.HTTPResponse:
    """The answer's beginning, once the model is loaded. Raises ServerRefusedError."""
    headers = {"Content-Type": "application/json"}
    if api_key := os.environ.get("EAGLECPP_API_KEY"):
        headers["Authorization"] = f"Bearer {api_key}"
    try:
        connection.connect()
        connection.sock.settimeout(None)  # loading and a long prompt take as long as they take
        connection.request("POST", "/api/chat", json.dumps(body).encode(), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ServerRefusedError(_reason(response.read(65536)) or f"status {response.status}")
        return response
    except (OSError, http.client.HTTPException) as error:
        raise ServerRefusedError(str(error) or type(error).__name__) from None


def _parts(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The lines of the answer. Raises EagleError for one that says so; ends where the server does."""
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
