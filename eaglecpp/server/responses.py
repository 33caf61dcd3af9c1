# SPDX-License-Identifier: MIT
"""OpenAI's `/v1/responses`, without stored state: a request contains its whole conversation."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.server.answer import Answer, Ask
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import field, read_json, sse
from eaglecpp.server.openai import (
    answered,
    common_ask,
    offer_tools,
    read_effort,
    read_format,
    read_message,
    read_tools,
)

__all__ = ["responses"]


async def responses(request: Request) -> Response:
    """`POST /v1/responses`."""
    body = await read_json(request)
    if body.get("previous_response_id"):
        raise ApiError(
            400,
            "previous_response_id: this server does not store responses; send the whole conversation as "
            "input",
            param="previous_response_id",
        )
    ask = common_ask(body)
    ask.messages = _messages(body)
    tools = read_tools([t for t in field(body, "tools", list, []) if _is_function(t)])
    offer_tools(ask, tools, body.get("tool_choice"))
    text = field(body, "text", dict, {})
    ask.format = read_format(text.get("format"))
    ask.think = read_effort(body)
    made = _Made(body, ask)
    return await answered(request, body, ask, made.whole, lambda answer: _events(answer, made))


def _is_function(tool: Any) -> bool:
    """Tools that OpenAI runs itself are left out, as in Ollama."""
    return not isinstance(tool, dict) or tool.get("type", "function") == "function"


def _messages(body: Mapping[str, Any]) -> list[Message]:
    given = body.get("input")
    head = [Message("system", body["instructions"])] if isinstance(body.get("instructions"), str) else []
    if isinstance(given, str):
        return [*head, Message("user", given)]
    if not isinstance(given, list) or not given:
        raise ApiError(400, "input must be a text or a list of items", param="input")
    return [*head, *(_item(item, f"input[{i}]") for i, item in enumerate(given) if not _is_reasoning(item))]


def _is_reasoning(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


def _item(item: Any, where: str) -> Message:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        return read_message(item, where)
    if kind == "function_call":
        try:
            arguments = json.loads(item.get("arguments") or "{}")
            call = ToolCall(str(item["name"]), dict(arguments), str(item.get("call_id") or ""))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ApiError(400, f"{where}: expected a name and arguments as JSON", param="input") from None
        return Message("assistant", tool_calls=(call,))
    if kind == "function_call_output":
        output = item.get("output")
        text = output if isinstance(output, str) else json.dumps(output)
        return Message("tool", text, tool_call_id=str(item.get("call_id") or ""))
    raise ApiError(400, f"{where}: items of type {kind!r} are not supported", param="input")


class _Made:
    """The response object in its states."""

    def __init__(self, body: Mapping[str, Any], ask: Ask) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self.message_id = f"msg_{uuid.uuid4().hex}"
        self.reasoning_id = f"rs_{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.ask = ask
        self.body = body

    def object(self, status: str, output: list[Any], **rest: Any) -> dict[str, Any]:
        body = self.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "metadata": body.get("metadata") or {},
            "model": self.ask.model,
            "output": output,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
            "store": False,
            "temperature": body.get("temperature"),
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p"),
            "truncation": "disabled",
            "usage": None,
            "user": body.get("user"),
            **rest,
        }

    def reasoning(self, text: str) -> dict[str, Any]:
        summary = [{"type": "summary_text", "text": text}]
        return {"id": self.reasoning_id, "type": "reasoning", "summary": summary}

    def message(self, text: str, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self.text(text)]
        return {
            "id": self.message_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    @staticmethod
    def text(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    @staticmethod
    def call(call: ToolCall) -> dict[str, Any]:
        return {
            "id": f"fc_{call.id}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": json.dumps(dict(call.arguments), ensure_ascii=False),
        }

    def whole(self, answer: Answer) -> dict[str, Any]:
        is_cut = answer.reason == "length"
        status = "incomplete" if is_cut else "completed"
        output: list[dict[str, Any]] = [self.reasoning(answer.thinking)] if answer.thinking else []
        if answer.content or not answer.calls:
            output.append(self.message(answer.content, status))
        output += [self.call(call) for call in answer.calls]
        timings = answer.timings
        n_in, n_out = len(answer.prompt.tokens), timings["predicted_n"]
        return self.object(
            status,
            output,
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            usage={
                "input_tokens": n_in,
                "input_tokens_details": {"cached_tokens": timings["reused_n"]},
                "output_tokens": n_out,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": n_in + n_out,
            },
            timings=timings,
        )


async def _events(answer: Answer, made: _Made) -> AsyncIterator[bytes]:
    number = 0

    def one(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return sse({"type": kind, "sequence_number": number - 1, **fields}, kind)

    yield one("response.created", response=made.object("in_progress", []))
    yield one("response.in_progress", response=made.object("in_progress", []))
    index, thinks, says = 0, False, False
    async for delta in answer:
        if delta.thinking:
            if not thinks:
                thinks = True
                item = {"id": made.reasoning_id, "type": "reasoning", "summary": []}
                yield one("response.output_item.added", output_index=index, item=item)
            yield one(
                "response.reasoning_summary_text.delta",
                item_id=made.reasoning_id,
                output_index=index,
                summary_index=0,
                delta=delta.thinking,
            )
        if thinks and (delta.content or delta.calls) and not says and index == 0:
            done = made.reasoning(answer.thinking)
            yield one("response.output_item.done", output_index=index, item=done)
            index += 1
        if delta.content:
            if not says:
                says = True
                item = made.message("", "in_progress")
                yield one("response.output_item.added", output_index=index, item=item)
                yield one("response.content_part.added", item_id=made.message_id, output_index=index,
                          content_index=0, part=made.text(""))  # fmt: skip
            yield one("response.output_text.delta", item_id=made.message_id, output_index=index,
                      content_index=0, delta=delta.content, logprobs=[])  # fmt: skip
    whole = made.whole(answer)
    for at, item in enumerate(whole["output"]):
        if item["type"] == "message":
            if not says:
                added = made.message("", "in_progress")
                yield one("response.output_item.added", output_index=at, item=added)
                yield one("response.content_part.added", item_id=made.message_id, output_index=at,
                          content_index=0, part=made.text(""))  # fmt: skip
            yield one("response.output_text.done", item_id=made.message_id, output_index=at,
                      content_index=0, text=answer.content, logprobs=[])  # fmt: skip
            yield one("response.content_part.done", item_id=made.message_id, output_index=at,
                      content_index=0, part=made.text(answer.content))  # fmt: skip
            yield one("response.output_item.done", output_index=at, item=item)
        elif item["type"] == "function_call":
            begun = {**item, "status": "in_progress", "arguments": ""}
            yield one("response.output_item.added", output_index=at, item=begun)
            yield one("response.function_call_arguments.delta", item_id=item["id"], output_index=at,
                      delta=item["arguments"])  # fmt: skip
            yield one("response.function_call_arguments.done", item_id=item["id"], output_index=at,
                      name=item["name"], arguments=item["arguments"])  # fmt: skip
            yield one("response.output_item.done", output_index=at, item=item)
        elif not answer.content and not answer.calls:
            yield one("response.output_item.done", output_index=at, item=item)
    last = "response.incomplete" if whole["status"] == "incomplete" else "response.completed"
    yield one(last, response=whole)
