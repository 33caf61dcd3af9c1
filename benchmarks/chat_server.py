# SPDX-License-Identifier: MIT
"""Asks an OpenAI-compatible server for chat completions, and measures their decoding time.

llama.cpp's server reports its decoding time (`timings`). For other servers, the script measures the time from
the first to the last token of the stream.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests

from eaglecpp.errors import EagleError

_CONNECT_SECONDS, _READ_SECONDS = 10, 600


@dataclass(frozen=True)
class Reply:
    """Answer of a server. ms: milliseconds of decoding after the first token; n_accepted: number of accepted
    drafts, 0 = no drafts or unknown.
    """

    text: str
    n_tokens: int
    ms: float
    n_accepted: int = 0


class ChatServer:
    """A server at `http://HOST:PORT[/v1]`. Raises EagleError for any unexpected answer."""

    def __init__(self, url: str, model: str = "") -> None:
        """model: name of the model to ask; "" = the first model in the server's list."""
        if urlsplit(url).scheme not in ("http", "https"):
            raise EagleError(f"--compare {url}: expected http://HOST:PORT of an OpenAI-compatible server")
        self.url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._session = requests.Session()
        self.model = model or self._first_model()

    def chat(
        self, messages: Sequence[Mapping[str, str]], *, max_tokens: int, temperature: float, seed: int
    ) -> Reply:
        """Returns one answer."""
        body = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        parts: list[str] = []
        at: list[float] = []
        usage: Mapping[str, Any] = {}
        timings: Mapping[str, Any] = {}
        for event in self._events(body):
            choices = event.get("choices") or [{}]
            text = (choices[0].get("delta") or {}).get("content") or ""
            if text:
                parts.append(text)
                at.append(time.monotonic())
            usage = event.get("usage") or usage
            timings = event.get("timings") or timings
        n_tokens = int(timings.get("predicted_n") or usage.get("completion_tokens") or len(parts))
        ms = float(timings.get("predicted_ms") or (1000 * (at[-1] - at[0]) if at else 0.0))
        return Reply("".join(parts), n_tokens, ms, int(timings.get("draft_n_accepted") or 0))

    def _events(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the objects of a stream of server-sent events."""
        address = f"{self.url}/chat/completions"
        try:
            with self._session.post(
                address, json=body, stream=True, timeout=(_CONNECT_SECONDS, _READ_SECONDS)
            ) as reply:
                if reply.status_code != 200:
                    raise EagleError(f"{address}: HTTP {reply.status_code}: {reply.text[:300]}")
                for line in reply.iter_lines():
                    data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                    if data == b"[DONE]":
                        return
                    if data:
                        event = json.loads(data)
                        if "error" in event:
                            raise EagleError(f"{address}: {event['error']}")
                        yield event
        except (requests.RequestException, ValueError) as error:
            raise EagleError(f"{address}: {error}") from error

    def _first_model(self) -> str:
        address = f"{self.url}/models"
        try:
            reply = self._session.get(address, timeout=_CONNECT_SECONDS)
            reply.raise_for_status()
            return str(reply.json()["data"][0]["id"])
        except (requests.RequestException, ValueError, LookupError, TypeError) as error:
            raise EagleError(
                f"--compare: {address} does not list a model ({error}); is an OpenAI-compatible server "
                "running there?"
            ) from error
