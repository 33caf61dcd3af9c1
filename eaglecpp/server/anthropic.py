# SPDX-License-Identifier: MIT
"""Anthropic's `/v1/messages`, as Ollama serves it."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.chat.message import Message, Role
from eaglecpp.results import Part
from eaglecpp.server import bodies
from eaglecpp.server.answer import Answer, ServedRequest, n_prompt_tokens, respond
from eaglecpp.server.errors import ApiError, FieldError
from eaglecpp.server.http import in_thread, json_response, sse

# Claude Code begins its system prompt with a value that changes in each request. A constant replaces this
# value, so that the prompt's prefix can be reused. llama.cpp does the same (tools/server/server-chat.cpp).
_BILLING = re.compile(r"\A(x-anthropic-billing-header:[^\n]{0,500}?\bcch=)[^;\s]{1,64}(?=;)")
ENDINGS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class _Body(bodies.CloudBody, kw_only=True):
    messages: Annotated[list[Any], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)]
    system: Any = None
    stop_sequences: list[str] = []
    thinking: dict[str, Any] = {}
    output_config: dict[str, Any] = {}

    def wanted(self) -> ServedRequest:
        """Returns the body as a `ServedRequest`. Raises ApiError."""
        system = bodies.read_message({"role": Role.SYSTEM, "content": self.system}, "system")
        system = replace(system, content=_BILLING.sub(r"\1fffff", system.content))
        turns = [system] if system.content else []
        for index, entry in enumerate(self.messages):
            turns += _turns(entry, f"messages[{index}]")
        tools = [_tool(tool, i) for i, tool in enumerate(self.tools)]
        choice = self.tool_choice or {}
        kind = choice.get("type") if isinstance(choice, dict) else choice
        wanted = {"any": "required", "none": "none", "tool": choice}.get(str(kind))
        form = bodies.read_format(self.output_config.get("format"), "output_config.format")
        return self.request(
            bodies.sampling_of(self, stop=self.stop_sequences)
            | bodies.read_budget(self.thinking.get("budget_tokens")),
            messages=turns,
            think=self.thinking["type"] != "disabled" if "type" in self.thinking else None,
            **bodies.offered(tools, wanted, form),
        )


class _Counted(_Body, kw_only=True):
    max_tokens: int = 1


async def messages(request: Request) -> Response:
    """`POST /v1/messages`."""
    body = await bodies.read(request, _Body)
    wanted = await in_thread(request, body.wanted)
    id = f"msg_{uuid.uuid4().hex[:24]}"

    def whole(answer: Answer, index: int) -> dict[str, Any]:
        blocks = [_begun(part) | _filled(part, id) for part in answer.blocks]
        out = _message(id, answer.name, blocks, **_end(answer))
        return out | {"usage": _usage(answer), "timings": answer.timings}

    return await respond(request, [wanted], body.stream, whole, lambda answer, index: _events(answer, id))


async def count_tokens(request: Request) -> Response:
    """`POST /v1/messages/count_tokens`."""
    body = await bodies.read(request, _Counted)
    n_tokens = await n_prompt_tokens(request, await in_thread(request, body.wanted))
    return json_response({"input_tokens": n_tokens})


def _tool(tool: Any, index: int) -> Any:
    """Converts a tool from Anthropic's form to OpenAI's."""
    if not isinstance(tool, dict):
        return tool
    if tool.get("type") not in (None, "custom"):
        why = f"tools of type {tool['type']!r} run only on Anthropic's servers; remove this tool"
        raise FieldError(f"tools[{index}]", f"{why}, or describe your own tool with an input_schema")
    text = tool.get("description")
    return {
        "name": tool.get("name"),
        "description": text if isinstance(text, str) else "",
        "parameters": tool.get("input_schema"),
        "strict": tool.get("strict"),
    }


def _turns(entry: Any, where: str) -> list[Message]:
    """Converts one message from Anthropic's form. Each tool result becomes a separate message."""
    role = entry.get("role") if isinstance(entry, dict) else None
    if role not in ("user", "assistant", "system"):
        raise ApiError(400, f"{where}: expected role user or assistant, found {role!r}")
    content = entry.get("content")
    if not isinstance(content, str | list):
        raise ApiError(400, f"{where}: expected content as text or a list of blocks")
    blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    turns: list[Message] = []
    for is_result, group in groupby(blocks, lambda block: _kind(block) == "tool_result"):
        some = list(group)
        turns += [_result(block, where) for block in some] if is_result else _said(role, some, where)
    return turns or [Message(role)]


def _result(block: Mapping[str, Any], where: str) -> Message:
    result = {"role": Role.TOOL, "content": block.get("content"), "tool_call_id": block.get("tool_use_id")}
    return bodies.read_message(result, f"{where}: tool_result")


def _said(role: str, blocks: list[Any], where: str) -> list[Message]:
    thoughts = [str(block.get("thinking") or "") for block in blocks if _kind(block) == "thinking"]
    others = ("tool_use", "thinking", "redacted_thinking")
    calls = [
        {"id": block.get("id"), "function": {"name": block.get("name"), "arguments": block.get("input")}}
        for block in blocks
        if _kind(block) == "tool_use"
    ]
    content = [block for block in blocks if _kind(block) not in others]
    said = {"role": role, "content": content, "thinking": "".join(thoughts), "tool_calls": calls}
    message = bodies.read_message(said, where)
    return [message] if message.content or calls or thoughts else []


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


def _message(id: str, model: str, blocks: list[dict[str, Any]], **end: Any) -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "model": model, "content": blocks, **end}


def _end(answer: Answer) -> dict[str, Any]:
    """Returns `stop_reason` and `stop_sequence` of an answer."""
    reason, text = ENDINGS[answer.reason], answer.completion.stopped_by
    if answer.reason != "stop" or text not in answer.request.options.get("stop", ()):
        return {"stop_reason": reason, "stop_sequence": None}
    return {"stop_reason": "stop_sequence", "stop_sequence": text}


def _begun(part: Part) -> dict[str, Any]:
    """Returns the empty content block with which a stream starts this part."""
    if part[0] == "call":
        return {"type": "tool_use", "id": part[1].id, "name": part[1].name, "input": {}}
    if part[0] == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _filled(part: Part, id: str) -> dict[str, Any]:
    """Returns the content block of a part whose content is complete. A thinking block gets a signature,
    because clients send only signed thinking back.
    """
    if part[0] == "call":
        return {"input": dict(part[1].arguments)}
    return {"thinking": part[1], "signature": id} if part[0] == "thinking" else {"text": part[1]}


def _delta(part: Part) -> dict[str, Any]:
    if part[0] == "call":
        return {"type": "input_json_delta", "partial_json": bodies.arguments_text(part[1].arguments)}
    kind = "thinking" if part[0] == "thinking" else "text"
    return {"type": f"{kind}_delta", kind: part[1]}


def _usage(answer: Answer) -> dict[str, Any]:
    timings = answer.timings
    return {
        "input_tokens": len(answer.prompt.tokens) - timings["reused_n"],
        "cache_read_input_tokens": timings["reused_n"],
        "cache_creation_input_tokens": 0,
        "output_tokens": timings["predicted_n"],
        "output_tokens_details": {"thinking_tokens": answer.n_thought},
    }


async def _events(answer: Answer, id: str) -> AsyncIterator[bytes]:
    def one(kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, **fields}, kind)

    start = _message(id, answer.name, [], stop_reason=None, stop_sequence=None)
    await answer.begun()  # the number of cached prompt tokens is known after this call
    start["usage"] = _usage(answer) | {"output_tokens": 0}
    yield one("message_start", message=start)
    async for round in answer:
        for event in round.events:
            if event.step == "begin":
                yield one("content_block_start", index=event.index, content_block=_begun(event.part))
            elif event.step == "add":
                yield one("content_block_delta", index=event.index, delta=_delta(event.part))
            else:
                if event.part[0] == "thinking":
                    signed = {"type": "signature_delta", "signature": id}
                    yield one("content_block_delta", index=event.index, delta=signed)
                yield one("content_block_stop", index=event.index)
    yield one("message_delta", delta=_end(answer), usage=_usage(answer), timings=answer.timings)
    yield one("message_stop")
