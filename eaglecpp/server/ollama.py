# SPDX-License-Identifier: MIT
"""Ollama's `/api/chat` and `/api/generate`, which stream one JSON object per line."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.chat.message import Message
from eaglecpp.chat.reader import message_of
from eaglecpp.engine.infill import Infill
from eaglecpp.results import Chunk, TokenLogprob
from eaglecpp.server.answer import Answer, ServedRequest, in_use, logprob_list, respond
from eaglecpp.server.bodies import Body, NTop, offered, read, read_message
from eaglecpp.server.catalog import stamp
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import dump, in_thread, json_response
from eaglecpp.server.models import server_of

ENDINGS = {"stop": "stop", "length": "length", "tool_calls": "stop"}
_N_KEEP = 4
"""Tokens kept from the beginning of a truncated prompt, as in Ollama."""


class _Body(Body, kw_only=True):
    """Fields of both endpoints. show_drafts: report which text was drafted, for the chat page"""

    stream: bool = True
    think: bool | Annotated[str, Meta(pattern="^(low|medium|high|max)$")] | None = None
    format: Any = None
    logprobs: bool = False
    top_logprobs: NTop = 0
    truncate: bool = True
    show_drafts: bool = False

    def generation(self, tools: Sequence[Any] = (), **fields: Any) -> ServedRequest:
        schema = {"type": "object"} if self.format == "json" else self.format
        if schema and not isinstance(schema, dict):
            found = dump(self.format).decode()[:80]
            raise ApiError(400, f'invalid format: {found}; expected "json" or a JSON schema')
        form = {"json_schema": schema} if schema else {}
        own = {"think": self.think, "truncate": self.truncate, **offered(tools, None, form)}
        own |= {"must_think": bool(self.think), "show_drafts": self.show_drafts}
        return self.request(n_top=self.top_logprobs if self.logprobs else None, **own | fields)


class _Chat(_Body, kw_only=True):
    messages: list[Any] = []
    tools: list[Any] = []

    def wanted(self) -> ServedRequest:
        messages = [read_message(entry, f"messages[{i}]") for i, entry in enumerate(self.messages)]
        return self.generation(self.tools, messages=messages)

    def part(self, answer: Message) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.content}
        if answer.thinking:
            message["thinking"] = answer.thinking
        if answer.tool_calls:
            message["tool_calls"] = [
                {"id": c.id, "function": {"index": i, "name": c.name, "arguments": dict(c.arguments)}}
                for i, c in enumerate(answer.tool_calls)
            ]
        return {"message": message}


class _Generate(_Body, kw_only=True):
    prompt: str = ""
    system: str = ""
    template: str = ""
    raw: bool = False
    context: list[int] = []
    suffix: str = ""
    images: list[Any] = []

    def wanted(self) -> ServedRequest:
        if self.images and (self.raw or self.suffix):
            raise ApiError(400, "images need a chat template: leave out raw and suffix")
        if self.context:
            raise ApiError(400, "context is not supported; send the conversation to /api/chat as messages")
        if self.raw and (self.system or self.template or self.suffix):
            raise ApiError(400, "raw mode does not support template, system, or suffix")
        what: dict[str, Any] = {"template": self.template or None}
        if self.raw:
            return self.generation(prompt=self.prompt, n_keep=_N_KEEP if self.truncate else -1, **what)
        if self.suffix:
            return self.generation(gap=Infill(self.prompt, self.suffix), **what)
        turns: list[Any] = [{"role": "system", "content": self.system}] if self.system else []
        turns.append({"role": "user", "content": self.prompt, "images": self.images})
        return self.generation(messages=[read_message(turn, "images") for turn in turns], **what)

    def part(self, answer: Message) -> dict[str, Any]:
        return {"response": answer.content} | ({"thinking": answer.thinking} if answer.thinking else {})


async def chat(request: Request) -> Response:
    """`POST /api/chat`."""
    body = await read(request, _Chat)
    return await _respond(request, body, is_empty=not body.messages)


async def generate(request: Request) -> Response:
    """`POST /api/generate`."""
    body = await read(request, _Generate)
    return await _respond(request, body, is_empty=not (body.prompt or body.suffix or body.images))


async def _respond(request: Request, body: _Chat | _Generate, is_empty: bool) -> Response:
    if is_empty:
        return await _load_or_unload(request, body)
    wanted = await in_thread(request, body.wanted)

    def out(answer: Answer, message: Message, logprobs: list[TokenLogprob], **rest: Any) -> dict[str, Any]:
        if wanted.n_top is not None:
            rest["logprobs"] = logprob_list(answer, logprobs)
        return {**_head(answer.name), **body.part(message), **rest}

    def whole(answer: Answer, index: int) -> dict[str, Any]:
        return out(answer, answer.reader.message, answer.logprobs, **_last(answer))

    async def lines(answer: Answer, index: int) -> AsyncIterator[bytes]:
        async for round in answer:
            if round.parts or round.logprobs or wanted.show_drafts:
                drafts = {"drafts": _drafts(answer, round)} if wanted.show_drafts else {}
                message = message_of(round.parts)
                yield dump(out(answer, message, round.logprobs, done=False, **drafts)) + b"\n"
        yield dump({**_head(answer.name), **body.part(message_of(())), **_last(answer)}) + b"\n"

    return await respond(request, [wanted], body.stream, whole, lines, media_type="application/x-ndjson")


async def _load_or_unload(request: Request, body: _Chat | _Generate) -> Response:
    """Handles a request without input: loads its model, or unloads it if keep_alive is 0."""
    wanted, reason, name = body.generation(), "load", body.model
    if wanted.keep_alive_s == 0:
        reason = "unload"
        await server_of(request).unload(name)
    else:
        async with in_use(request, wanted) as model:
            name = model.answers_as(name)
    return json_response({**_head(name), **body.part(message_of(())), "done": True, "done_reason": reason})


def _head(name: str) -> dict[str, Any]:
    return {"model": name, "created_at": stamp(datetime.now(UTC))}


def _drafts(answer: Answer, round: Chunk) -> dict[str, Any]:
    """Returns a round's text in drafted and other pieces, and the counters so far, for the chat page."""
    counters = {name: answer.stream.live.get(name, 0) for name in ("predicted_n", "predicted_ms")}
    pieces = [[piece.text, piece.is_accepted, piece.is_thinking] for piece in round.pieces]
    return {"pieces": pieces, **counters}


def _last(answer: Answer) -> dict[str, Any]:
    """Returns the last object of an answer: why the answer ended, Ollama's times in nanoseconds, and
    eaglecpp's timings.
    """
    timings = answer.timings
    return {
        "done": True,
        "done_reason": ENDINGS[answer.reason],
        "total_duration": int(1e9 * (time.perf_counter() - answer.started)),
        "load_duration": max(1, int(1e6 * answer.load_ms)),
        "prompt_eval_count": len(answer.prompt.tokens),
        "prompt_eval_duration": int(1e6 * timings["prompt_ms"]),
        "eval_count": timings["predicted_n"],
        "eval_duration": int(1e6 * timings["predicted_ms"]),
        "timings": timings,
    }
