# SPDX-License-Identifier: MIT
"""Answers from the server that runs on this machine, which has the model in memory already.

It is asked through Ollama's `/api/chat` with our own fields and shown as `answer` shows one. A server that
refuses before the first token is no error: `run` opens the model itself then.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eaglecpp.chat.images import image_mark, split_at_images
from eaglecpp.chat.message import Message
from eaglecpp.chat.reader import Piece
from eaglecpp.cli.chat.answer import Settings, ShownAnswer
from eaglecpp.cli.chat.screen import Screen
from eaglecpp.cli.terminal import patience, silent_keys
from eaglecpp.errors import EagleError
from eaglecpp.options import SamplingOptions, describe
from eaglecpp.results import Completion, Timings
from eaglecpp.server.announced import Address, find_server

if TYPE_CHECKING:
    from eaglecpp.chat.conversation import Conversation
    from eaglecpp.cli.chat.model import RunModel

__all__ = ["ModelServer", "ServerRefusedError"]

_CONNECT_S = 2.0
_LOAD_PATIENCE_S = 1.0
_SAMPLING = {one.name for one in describe(SamplingOptions)}


class ServerRefusedError(EagleError):
    """The server did not begin an answer; the text says why."""


@dataclass(frozen=True)
class ModelServer:
    """A server, and how long it is asked to keep the model; None = as long as it likes."""

    address: Address
    keep_alive_s: float | None = None

    @classmethod
    def find(cls, keep_alive_s: float | None = None) -> ModelServer | None:
        """The one on this machine."""
        address = find_server()
        return None if address is None else cls(address, keep_alive_s)

    @staticmethod
    def can_have(model: RunModel) -> bool:
        """Whether a server opens this model as this command would: a stored one, and nothing says how."""
        return not model.source.is_file and model.options_set().keys() <= _SAMPLING

    def answer(
        self,
        model: RunModel,
        conversation: Conversation,
        screen: Screen,
        settings: Settings,
        *,
        seed_step: int = 0,
    ) -> ShownAnswer:
        """Shows the answer to a conversation; arguments as of `answer`. After Ctrl+C it has what came until
        then, without figures.

        Raises ServerRefusedError before the first token, EagleError for a server that ends in the middle.
        """
        return _answer(self.address, self._body(model, conversation, settings, seed_step), screen)

    def _body(
        self, model: RunModel, conversation: Conversation, settings: Settings, seed_step: int
    ) -> dict[str, Any]:
        """The request. The server has the model's examples and system prompt itself."""
        options = model.options_set()
        if seed_step:
            options["seed"] = model.sampling(seed_step).seed
        is_own = conversation.system != model.conversation().system
        head = [{"role": "system", "content": conversation.system}] if is_own else []
        form = settings.format
        return {
            "model": model.source.name,
            "messages": [*head, *map(_message, conversation.messages)],
            "options": options,
            "think": settings.think,
            "format": json.loads(form) if form.startswith("{") else form,
            "strategy": None if model.asked is None else str(model.asked),
            "keep_alive": self.keep_alive_s,
            "truncate": False,
            "stream": True,
            "show_drafts": True,
        }


def _message(message: Message) -> dict[str, Any]:
    parts = split_at_images(message.content, {image_mark(data): data for data in message.images})
    told: dict[str, Any] = {"role": str(message.role), "content": "".join(parts[::2])}
    if message.thinking:
        told["thinking"] = message.thinking
    if message.images:
        told["images"] = [base64.b64encode(data).decode() for data in message.images]
    return told


def _answer(server: Address, body: Mapping[str, Any], screen: Screen) -> ShownAnswer:
    """The answer to a request of `/api/chat`, shown as it streams."""
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
    load_ms = last.get("load_duration", 0) / 1e6
    return ShownAnswer(completion, "".join(content), "".join(thinking), stopped, total_ms, load_ms)


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
