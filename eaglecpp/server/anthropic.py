# SPDX-License-Identifier: MIT
"""Anthropic's `/v1/messages`, as Ollama serves it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.chat.images import decoded_image, image_mark
from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.errors import InvalidValueError
from eaglecpp.server.answer import Answer, Ask, make_prompt
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import field, json_response, read_json, sse
from eaglecpp.server.openai import answered, common_ask, offer_tools

if TYPE_CHECKING:
    from eaglecpp.server.models import Server

__all__ = ["count_tokens", "messages"]

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "cancelled": "end_turn"}


async def messages(request: Request) -> Response:
    """`POST /v1/messages`."""
    body = await read_json(request)
    ask = _ask(body)
    id = f"msg_{uuid.uuid4().hex[:24]}"

    def whole(answer: Answer) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        if answer.thinking:
            blocks.append({"type": "thinking", "thinking": answer.thinking, "signature": ""})
        if answer.content or not answer.calls:
            blocks.append({"type": "text", "text": answer.content})
        blocks += [_block(call) | {"input": dict(call.arguments)} for call in answer.calls]
        out = _message(id, ask.model, blocks, _REASONS[answer.reason])
        return out | {"usage": _usage(answer), "timings": answer.timings}

    return await answered(request, body, ask, whole, lambda answer: _events(answer, id))


async def count_tokens(request: Request) -> Response:
    """`POST /v1/messages/count_tokens`."""
    server: Server = request.app.state.server
    body = await read_json(request)
    ask = _ask({"max_tokens": 1, **body})
    async with server.pool.use(ask.model) as lease:
        prompt = await asyncio.to_thread(make_prompt, lease.model, replace(ask, truncate=False))
    return json_response({"input_tokens": len(prompt.tokens)})


def _ask(body: Mapping[str, Any]) -> Ask:
    ask = common_ask({**body, "stop": body.get("stop_sequences"), "n": 1})
    if field(body, "max_tokens", int) is None:
        raise ApiError(400, "max_tokens is required")
    entries = body.get("messages")
    if not isinstance(entries, list) or not entries:
        raise ApiError(400, "messages must be a list of at least one message")
    system = _text(body.get("system"), "system")
    turns = [Message("system", system)] if system else []
    for index, entry in enumerate(entries):
        turns += _turns(entry, f"messages[{index}]")
    ask.messages = turns
    tools = [_tool(tool, i) for i, tool in enumerate(field(body, "tools", list, []))]
    choice = field(body, "tool_choice", dict, {})
    kind = choice.get("type")
    wanted = "required" if kind == "any" else choice if kind == "tool" else None
    offer_tools(ask, tools, "none" if kind == "none" else wanted)
    thinking = field(body, "thinking", dict, {})
    if thinking.get("type") in ("enabled", "disabled", "adaptive"):
        ask.think = thinking["type"] != "disabled"
    return ask


def _tool(tool: Any, index: int) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise ApiError(400, f"tools[{index}]: expected a name and an input_schema")
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object"}}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _turns(entry: Any, where: str) -> list[Message]:
    """One message of theirs; results of tools become messages of their own."""
    role = entry.get("role") if isinstance(entry, dict) else None
    if role not in ("user", "assistant", "system"):
        raise ApiError(400, f"{where}: role must be user or assistant, found {role!r}")
    content = entry.get("content")
    if isinstance(content, str):
        return [Message(role, content)]
    if not isinstance(content, list):
        raise ApiError(400, f"{where}: content must be text or a list of blocks")
    texts, thoughts, calls, results, images = [], [], [], [], []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            texts.append(str(block.get("text", "")))
        elif kind == "image":
            images.append(_image(block.get("source"), where))
            texts.append(image_mark(images[-1]))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        elif kind == "tool_use":
            arguments = block.get("input")
            calls.append(
                ToolCall(
                    str(block.get("name", "")),
                    arguments if isinstance(arguments, dict) else {},
                    str(block.get("id", "")),
                )
            )
        elif kind == "tool_result":
            text = _text(block.get("content"), f"{where}.tool_result")
            results.append(Message("tool", text, tool_call_id=str(block.get("tool_use_id", ""))))
        elif kind != "redacted_thinking":
            raise ApiError(
                400, f"{where}: content of type {kind!r} is not supported, only text and image are"
            )
    turn = Message(role, "".join(texts), "".join(thoughts), tuple(calls), images=tuple(images))
    return [*results, turn] if turn.content or turn.tool_calls or not results else results


def _image(source: Any, where: str) -> bytes:
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise ApiError(400, f"{where}: an image needs a source of type base64: nothing is fetched")
    try:
        return decoded_image(source.get("data"))
    except InvalidValueError as error:
        raise ApiError(400, f"{where}: {error}") from None


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{where}: expected text or a list of text blocks")
    parts = []
    for block in content:
        if not isinstance(block, dict) or block.get("type") != "text":
            raise ApiError(400, f"{where}: only text blocks are supported")
        parts.append(str(block.get("text", "")))
    return "".join(parts)


def _message(id: str, model: str, blocks: list[dict[str, Any]], reason: str | None) -> dict[str, Any]:
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": reason,
        "stop_sequence": None,
    }


def _block(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}


def _usage(answer: Answer) -> dict[str, Any]:
    timings = answer.timings
    return {
        "input_tokens": len(answer.prompt.tokens) - timings["reused_n"],
        "cache_read_input_tokens": timings["reused_n"],
        "cache_creation_input_tokens": 0,
        "output_tokens": timings["predicted_n"],
    }


async def _events(answer: Answer, id: str) -> AsyncIterator[bytes]:
    def one(kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, **fields}, kind)

    start = _message(id, answer.ask.model, [], None)
    start["usage"] = {"input_tokens": len(answer.prompt.tokens), "output_tokens": 0}
    yield one("message_start", message=start)
    index, open_kind = -1, ""
    empty = {
        "thinking": {"type": "thinking", "thinking": "", "signature": ""},
        "text": {"type": "text", "text": ""},
    }
    async for delta in answer:
        for kind, text in (("thinking", delta.thinking), ("text", delta.content)):
            if not text:
                continue
            if open_kind != kind:
                if open_kind:
                    yield one("content_block_stop", index=index)
                index, open_kind = index + 1, kind
                yield one("content_block_start", index=index, content_block=empty[kind])
            part = {"type": f"{kind}_delta", kind: text}
            yield one("content_block_delta", index=index, delta=part)
        for call in delta.calls:
            if open_kind:
                yield one("content_block_stop", index=index)
            index, open_kind = index + 1, ""
            yield one("content_block_start", index=index, content_block=_block(call))
            part = {"type": "input_json_delta", "partial_json": _json(call)}
            yield one("content_block_delta", index=index, delta=part)
            yield one("content_block_stop", index=index)
    if open_kind:
        yield one("content_block_stop", index=index)
    end = {"stop_reason": _REASONS[answer.reason], "stop_sequence": None}
    yield one("message_delta", delta=end, usage=_usage(answer), timings=answer.timings)
    yield one("message_stop")


def _json(call: ToolCall) -> str:
    import json

    return json.dumps(dict(call.arguments), ensure_ascii=False)
