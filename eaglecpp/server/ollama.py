# SPDX-License-Identifier: MIT
"""Ollama's `/api/chat` and `/api/generate`: requests to `Ask`, answers to Ollama's objects, one per line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.chat.message import Message
from eaglecpp.engine.infill import Infill
from eaglecpp.errors import InvalidArgumentError
from eaglecpp.server.answer import Answer, Ask, Delta, logprob_list, make_prompt, open_answer
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import dump, extensions, field, json_response, keep_alive, read_json, respond

if TYPE_CHECKING:
    from eaglecpp.server.models import Server

__all__ = ["chat", "generate"]

_LEVELS = ("low", "medium", "high", "max")


async def chat(request: Request) -> Response:
    """`POST /api/chat`."""
    server: Server = request.app.state.server
    body = await read_json(request)
    ask = _common(body)
    entries = field(body, "messages", list, [])
    if not entries:
        return await _load_or_unload(server, ask, {"message": {"role": "assistant", "content": ""}})
    ask.messages = [_message(entry, index) for index, entry in enumerate(entries)]
    ask.tools = _tools(body)

    def part(answer: Answer, delta: Delta | None) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": delta.content if delta else ""}
        if delta and delta.thinking:
            message["thinking"] = delta.thinking
        if delta and delta.calls:
            message["tool_calls"] = _calls(delta)
        return {"message": message}

    def whole(answer: Answer) -> dict[str, Any]:
        return part(answer, Delta(answer.content, answer.thinking, answer.calls))

    return await _respond(request, server, ask, body, part, whole)


async def generate(request: Request) -> Response:
    """`POST /api/generate`."""
    server: Server = request.app.state.server
    body = await read_json(request)
    ask = _common(body)
    text, system = field(body, "prompt", str, ""), field(body, "system", str, "")
    ask.template = field(body, "template", str) or None
    is_raw, context = field(body, "raw", bool, False), field(body, "context", list, [])
    suffix = field(body, "suffix", str, "")
    images = field(body, "images", list, [])
    if images and (is_raw or suffix):
        raise ApiError(400, "images need a chat template: leave out raw and suffix")
    if not text and not context and not suffix and not images:
        return await _load_or_unload(server, ask, {"response": ""})
    if is_raw:
        if system or ask.template or context or suffix:
            raise ApiError(400, "raw mode does not support template, system, suffix, or context")
        ask.text = text
    elif suffix:
        ask.infill = Infill(text, suffix)
    else:
        head = [Message("system", system)] if system else []
        ask.messages = [*head, _message({"role": "user", "content": text, "images": images}, 0)]
    if context:
        ask.tokens = await _continued(server, ask, context)

    def part(answer: Answer, delta: Delta | None) -> dict[str, Any]:
        out: dict[str, Any] = {"response": delta.content if delta else ""}
        if delta and delta.thinking:
            out["thinking"] = delta.thinking
        if delta is None and not is_raw and not answer.prompt.rendered.images:  # whose ids others cannot use
            out["context"] = [*answer.prompt.tokens, *answer.completion.tokens]
        return out

    def whole(answer: Answer) -> dict[str, Any]:
        return part(answer, None) | part(answer, Delta(answer.content, answer.thinking))

    return await _respond(request, server, ask, body, part, whole)


def now_text() -> str:
    """Now, as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _common(body: Mapping[str, Any]) -> Ask:
    """The fields that both endpoints have."""
    think = body.get("think")
    if think is not None and not isinstance(think, bool) and think not in _LEVELS:
        raise ApiError(400, f"think must be true, false or one of {', '.join(_LEVELS)}; found {think!r}")
    format = body.get("format")
    wants_logprobs = field(body, "logprobs", bool, False)
    n_top = field(body, "top_logprobs", int, 0)
    if not 0 <= n_top <= 20:
        raise ApiError(400, f"top_logprobs must be between 0 and 20, found {n_top}")
    draft, strategy = extensions(body)
    return Ask(
        model=field(body, "model", str, ""),
        options=field(body, "options", dict, {}),
        format=format or None,
        think=think,
        n_probs=n_top if wants_logprobs else None,
        truncate=field(body, "truncate", bool, True),
        keep_alive_s=keep_alive(body.get("keep_alive")),
        draft=draft,
        strategy=strategy,
        exact=field(body, "exact", str),
        show_drafts=field(body, "show_drafts", bool, False),
    )


def _message(entry: Any, index: int) -> Message:
    if not isinstance(entry, dict):
        raise ApiError(400, f"messages[{index}] must be an object")
    try:
        return Message.from_dict(entry)
    except InvalidArgumentError as error:
        raise ApiError(400, f"messages[{index}]: {error}") from None


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = field(body, "tools", list, [])
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ApiError(400, f"tools[{index}]: expected an object with function.name")
    return tools


def _calls(delta: Delta) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "function": {"index": i, "name": call.name, "arguments": dict(call.arguments)}}
        for i, call in enumerate(delta.calls)
    ]


async def _continued(server: Server, ask: Ask, context: list[Any]) -> list[int]:
    """The tokens of an old `context` with the new prompt behind them."""
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in context):
        raise ApiError(400, "context must be a list of token ids, as returned by an earlier answer")
    async with server.pool.use(ask.model, keep_alive_s=ask.keep_alive_s) as lease:
        prompt = await asyncio.to_thread(make_prompt, lease.model, replace(ask, truncate=False))
        return [*context, *prompt.tokens]


async def _load_or_unload(server: Server, ask: Ask, empty: Mapping[str, Any]) -> Response:
    """An empty request loads a model; with a keep_alive of 0 it unloads it."""
    reason = "load"
    if ask.keep_alive_s == 0:
        reason = "unload"
        await server.pool.unload(ask.model)
    else:
        n_ctx = ask.options.get("num_ctx")
        async with server.pool.use(
            ask.model, n_ctx=n_ctx if isinstance(n_ctx, int) else 0, keep_alive_s=ask.keep_alive_s
        ) as lease:
            ask.model = lease.model.answers_as(ask.model)
    return json_response(
        {"model": ask.model, "created_at": now_text(), **empty, "done": True, "done_reason": reason}
    )


async def _respond(
    request: Request, server: Server, ask: Ask, body: Mapping[str, Any], part: Any, whole: Any
) -> Response:
    def all_of(answer: Answer) -> dict[str, Any]:
        out = {"model": ask.model, "created_at": now_text(), **whole(answer), **_last(answer)}
        if ask.n_probs is not None:
            out["logprobs"] = logprob_list(answer, answer.logprobs)
        return out

    opened = open_answer(server.pool, ask, server.config.request_s)
    is_streamed = field(body, "stream", bool, True)
    return await respond(
        request, opened, is_streamed, all_of, lambda answer: _lines(answer, part), "application/x-ndjson"
    )


async def _lines(answer: Answer, part: Any) -> AsyncIterator[bytes]:
    name = answer.ask.model
    async for delta in answer:
        shown = answer.ask.show_drafts
        if delta.is_empty and not delta.logprobs and not shown:
            continue
        out = {"model": name, "created_at": now_text(), **part(answer, delta), "done": False}
        if answer.ask.n_probs is not None:
            out["logprobs"] = logprob_list(answer, delta.logprobs)
        if shown:
            out["drafts"] = _drafts(delta)
        yield dump(out) + b"\n"
    yield dump({"model": name, "created_at": now_text(), **part(answer, None), **_last(answer)}) + b"\n"


def _drafts(delta: Delta) -> dict[str, Any]:
    """What the page shows of a round."""
    live = delta.live
    plan = live.get("plan", {})
    return {
        "pieces": [[one.text, one.is_accepted, one.is_thinking] for one in delta.pieces],
        "rounds": live.get("rounds", 0),
        "draft_n": live.get("draft_n", 0),
        "draft_n_accepted": live.get("draft_n_accepted", 0),
        "predicted_n": live.get("predicted_n", 0),
        "predicted_ms": live.get("predicted_ms", 0.0),
        "speedup": plan.get("speedup"),
    }


def _last(answer: Answer) -> dict[str, Any]:
    """The end of an answer: why, and Ollama's figures in nanoseconds, with ours beside them."""
    timings = answer.timings
    reason = "stop" if answer.reason == "tool_calls" else answer.reason
    return {
        "done": True,
        "done_reason": reason,
        "total_duration": int(1e9 * (time.perf_counter() - answer.started)),
        "load_duration": max(1, int(1e6 * answer.load_ms)),
        "prompt_eval_count": len(answer.prompt.tokens),
        "prompt_eval_duration": int(1e6 * timings["prompt_ms"]),
        "eval_count": timings["predicted_n"],
        "eval_duration": int(1e6 * timings["predicted_ms"]),
        "timings": timings,
    }
