# SPDX-License-Identifier: MIT
"""OpenAI's `/v1/responses`. A request contains its whole conversation, or names a kept response to
continue.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.chat.message import Message, Role, ToolCall
from eaglecpp.chat.turns import merged
from eaglecpp.results import Event
from eaglecpp.server import bodies
from eaglecpp.server.answer import Answer, ServedRequest, n_prompt_tokens, respond
from eaglecpp.server.errors import ApiError, FieldError, as_api_error, cut
from eaglecpp.server.http import check_values, dump, in_thread, json_response, sse
from eaglecpp.server.models import owner_of, server_of

ENDINGS = {"stop": "completed", "length": "incomplete", "tool_calls": "completed"}
_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""Parameters of a custom tool."""
_REPEATED = ("instructions", "metadata", "parallel_tool_calls", "reasoning", "text", "tool_choice", "tools")
_REPEATED_BYTES = 1 << 20


class _Body(bodies.CloudBody, kw_only=True):
    input: Any = None
    instructions: str | None = None
    max_output_tokens: bodies.Limit | None = None
    metadata: dict[str, Any] = {}
    parallel_tool_calls: Any = True
    previous_response_id: str = ""
    reasoning: dict[str, Any] = {}
    store: bool = True
    text: dict[str, Any] = {}
    background: bool = False
    truncation: Annotated[str, Meta(pattern="^(auto|disabled)$")] = "disabled"
    conversation: None = None
    prompt: None = None
    """A prompt stored on OpenAI's servers. A request with such a prompt is refused, because an answer without
    the prompt would be wrong.
    """

    def wanted(self) -> ServedRequest:
        """Returns the body as a `ServedRequest`. Raises ApiError."""
        n_bytes = len(dump([getattr(self, name) for name in _REPEATED]))
        if n_bytes > _REPEATED_BYTES:  # three events of a stream repeat these fields
            names = ", ".join(_REPEATED)
            raise ApiError(400, f"{names} have {n_bytes} bytes in all; the maximum is {_REPEATED_BYTES}")
        if self.background:
            raise FieldError("background", "not supported; remove it, or stream the response")
        form = bodies.read_format(self.text.get("format"), "text.format")
        return self.request(
            bodies.sampling_of(self, max_tokens=self.max_output_tokens)
            | bodies.read_budget(self.reasoning.get("max_tokens")),
            messages=_messages(self.input, self.instructions),
            think=bodies.read_effort("", self.reasoning),
            truncate=self.truncation == "auto",
            **bodies.offered(list(map(_named, _functions(self.tools))), self.tool_choice, form),
        )


def _functions(tools: Iterable[Any]) -> Iterator[Any]:
    """Yields the tools that the client runs, as functions. A custom tool takes a text, so its function gets
    one text parameter. Tools in a namespace keep the name of the namespace (Codex has a namespace for each
    MCP server). Tools that OpenAI runs are left out, as in Ollama.
    """
    for tool in tools:
        kind = tool.get("type", "function") if isinstance(tool, dict) else "function"
        if kind == "function":
            yield tool
        elif kind == "custom":
            yield _as_function(tool)
        elif kind == "namespace" and isinstance(tool.get("tools"), list):
            inside = (inner for inner in _functions(tool["tools"]) if isinstance(inner, dict))
            yield from ({**inner, "namespace": tool.get("name")} for inner in inside)


def _as_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a custom tool to a function. The grammar of the tool's input is added to the tool's
    description, but not enforced.
    """
    form, text = tool.get("format"), str(tool.get("description") or "")
    if isinstance(form, dict) and isinstance(form.get("definition"), str):
        text += f"\n\nThe input must follow this {form.get('syntax')} grammar:\n{form['definition']}"
    return {"type": "custom", "name": tool.get("name"), "description": text, "parameters": _INPUT}


def _named(tool: Any) -> Any:
    """Returns a tool or a tool call with the name that the model sees. The name's prefix is the namespace."""
    space = tool.get("namespace") if isinstance(tool, dict) else None
    return {**tool, "name": f"{space}__{tool.get('name')}"} if space else tool


async def responses(request: Request) -> Response:
    """`POST /v1/responses`."""
    body = await _read(request)
    wanted = await in_thread(request, body.wanted)
    response = _ResponseObject(body)
    kept = server_of(request).kept
    if kept.n_max and body.store:
        items = await in_thread(request, dump, body.input)
        response.keep = lambda: kept.add(
            owner_of(request), response.id, items[:-1] + b"," + dump(response.output)[1:]
        )
    return await respond(request, [wanted], body.stream, response.whole, partial(_events, response))


async def input_tokens(request: Request) -> Response:
    """`POST /v1/responses/input_tokens`: returns the number of prompt tokens that `/v1/responses` would use
    for the same body.
    """
    wanted = await in_thread(request, (await _read(request)).wanted)
    n_tokens = await n_prompt_tokens(request, wanted)
    return json_response({"object": "response.input_tokens", "input_tokens": n_tokens})


async def _read(request: Request) -> _Body:
    """Reads the body of a request, and replaces its `input` by the whole conversation as a list of items.
    Raises ApiError.
    """
    body = await bodies.read(request, _Body)
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    if not isinstance(items, list) or not items:
        raise FieldError("input", "expected a text or a list of items")
    body.input = items
    if not body.previous_response_id:
        return body
    server = server_of(request)
    kept = server.kept.find(owner_of(request), body.previous_response_id)
    if kept is None:
        why = "this server keeps no responses (serve --keep-responses N)"
        if server.kept.n_max:
            why = f"this server keeps the last {server.kept.n_max} responses of each API key while it runs"
        raise ApiError(
            400,
            f"previous_response_id: {cut(body.previous_response_id)!r} not found: {why}; "
            "send the whole conversation as input",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    n_bytes = request.state.n_body + len(kept)
    if n_bytes > server.config.n_body:
        raise ApiError(
            413,
            f"the conversation has {n_bytes} bytes; this server accepts at most {server.config.n_body}",
            param="previous_response_id",
        )
    server.held.hold(request.scope, n_bytes)
    request.state.n_body = n_bytes
    body.input = await in_thread(request, _continued, kept, items)
    return body


def _continued(kept: bytes, items: list[Any]) -> list[Any]:
    """Returns the items of a kept conversation, including its answer, followed by the new items."""
    check_values(kept)
    return [*msgspec.json.decode(kept), *items]


def _messages(items: list[Any], instructions: str | None) -> list[Message]:
    turns = [Message(Role.SYSTEM, instructions)] if instructions else []
    turns += [_item(item, f"input[{index}]") for index, item in enumerate(items)]
    return merged(turns, (Role.ASSISTANT,))  # one turn of the model may consist of several items


def _item(item: Any, where: str) -> Message:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        return bodies.read_message(item, where)
    if kind == "reasoning":
        return Message(Role.ASSISTANT, thinking=_texts(item.get("content")) or _texts(item.get("summary")))
    if kind in ("function_call", "custom_tool_call"):
        function = _named(item)
        if kind == "custom_tool_call":
            function = {"name": function.get("name"), "arguments": {"input": item.get("input")}}
        call = {"id": item.get("call_id"), "function": function}
        return bodies.read_message({"role": Role.ASSISTANT, "tool_calls": [call]}, where)
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = {"role": Role.TOOL, "content": item.get("output"), "tool_call_id": item.get("call_id")}
        return bodies.read_message(output, where)
    raise FieldError(where, f"items of type {kind!r} are not supported; remove them")


def _texts(parts: Any) -> str:
    """Returns the text of a reasoning item: the text of its content, or of its summary."""
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "\n\n".join(text for text in texts if isinstance(text, str))


class _ItemNames(NamedTuple):
    """Names in one kind of output item: type, prefix of the id, key of the text, and events of the text. If
    the item contains its text in a part, the events and the type of that part too.
    """

    item: str
    id: str
    key: str
    text: str
    part: str = ""
    kind: str = ""


_ITEM_NAMES = {
    "thinking": _ItemNames(
        "reasoning", "rs", "summary", "reasoning_summary_text", "reasoning_summary_part", "summary_text"
    ),
    "content": _ItemNames("message", "msg", "content", "output_text", "content_part", "output_text"),
    "call": _ItemNames("function_call", "fc", "arguments", "function_call_arguments"),
    "custom": _ItemNames("custom_tool_call", "ctc", "input", "custom_tool_call_input"),
}
_UNCHANGED = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "temperature", "top_p")
"""Fields that a response copies from its request."""
ServerEvent = tuple[str, dict[str, Any]]
"""Name and fields of an event that the server sends."""


class _ResponseObject:
    """The response object, updated by each event. output: finished items; keep: function that saves the
    conversation with these items, and returns whether the conversation was saved
    """

    def __init__(self, body: _Body) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.body = body
        self.output: list[dict[str, Any]] = []
        self.keep: Callable[[], bool] | None = None
        self._item: dict[str, Any] = {}  # the output item that the model is generating
        self._tools = {_named(tool).get("name"): tool for tool in _functions(body.tools)}

    def object(self, answer: Answer, status: str, **rest: Any) -> dict[str, Any]:
        body = self.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "model": answer.name,
            "output": self.output,
            "previous_response_id": body.previous_response_id or None,
            "reasoning": body.reasoning or {"effort": None, "summary": None},
            "store": self.keep is not None,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [tool for tool in body.tools if any(_functions([tool]))],
            "truncation": body.truncation,
            **dict.fromkeys(("error", "incomplete_details", "usage")),
            **{name: getattr(body, name) for name in _UNCHANGED},
            **rest,
        }

    def events(self, answer: Answer, event: Event) -> Iterator[ServerEvent]:
        """Yields this API's events for one event of an answer."""
        step, (kind, text), position = event.step, event.part, {"output_index": event.index}
        names = _ITEM_NAMES[kind]
        own = {"role": "assistant"} if kind == "content" else {}
        # the list of logprobs is always empty
        lists: dict[str, Any] = {"logprobs": []} if kind == "content" else {}
        id = uuid.uuid4().hex
        if isinstance(text, ToolCall):
            id, own = text.id, {"call_id": text.id, "name": text.name}
            tool, arguments = self._tools.get(text.name, {}), text.arguments
            if space := tool.get("namespace"):
                own |= {"namespace": space, "name": text.name.removeprefix(f"{space}__")}
            text = bodies.arguments_text(arguments)
            if tool.get("type") == "custom":
                names = _ITEM_NAMES["custom"]
                text = arguments["input"] if isinstance(arguments.get("input"), str) else text
        if step == "begin":
            self._item = {"id": f"{names.id}_{id}", "type": names.item, "status": "in_progress", **own}
            text = ""
        inside = {"item_id": self._item["id"], **position} | ({f"{names.key}_index": 0} if names.part else {})
        content = {"type": names.kind, "text": text, **({"annotations": []} if lists else {}), **lists}
        if step == "begin":
            item = {**self._item, names.key: [] if names.part else ""}
            yield "response.output_item.added", {**position, "item": item}
            if names.part:
                yield f"response.{names.part}.added", {**inside, "part": content}
        elif step == "add":
            yield f"response.{names.text}.delta", {**inside, "delta": text, **lists}
        else:
            fields = {"text": text, **lists} if names.part else {"name": own["name"], names.key: text}
            yield f"response.{names.text}.done", {**inside, **fields}
            if names.part:
                yield f"response.{names.part}.done", {**inside, "part": content}
            status = ENDINGS[answer.reason] if event.is_last and names.part else "completed"
            item = {**self._item, "status": status, names.key: [content] if names.part else text}
            yield "response.output_item.done", {**position, "item": item}
            self.output.append(item)

    def end(self, answer: Answer) -> ServerEvent:
        """Returns the final event, with the whole response."""
        status = ENDINGS[answer.reason]
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        timings = answer.timings
        n_in, n_out = len(answer.prompt.tokens), timings["predicted_n"]
        usage = {
            "input_tokens": n_in,
            "input_tokens_details": {"cached_tokens": timings["reused_n"], "cache_write_tokens": 0},
            "output_tokens": n_out,
            "output_tokens_details": {"reasoning_tokens": answer.n_thought},
            "total_tokens": n_in + n_out,
        }
        whole = self.object(answer, status, incomplete_details=details, usage=usage, timings=timings)
        if self.keep is not None:
            whole["store"] = self.keep()
        return f"response.{status}", {"response": whole}

    def whole(self, answer: Answer, choice: int = 0) -> dict[str, Any]:
        for index, part in enumerate(answer.blocks):
            is_last = index == len(answer.blocks) - 1
            for event in (Event("begin", index, part), Event("end", index, part, is_last)):
                list(self.events(answer, event))
        return dict(self.end(answer)[1]["response"])


async def _events(response: _ResponseObject, answer: Answer, choice: int) -> AsyncIterator[bytes]:
    numbers = count()

    def one(kind: str, fields: Mapping[str, Any]) -> bytes:
        return sse({"type": kind, "sequence_number": next(numbers), **fields}, kind)

    begun = response.object(answer, "in_progress")
    yield one("response.created", {"response": begun})
    yield one("response.in_progress", {"response": begun})
    try:
        async for round in answer:
            for event in round.events:
                for fields in response.events(answer, event):
                    yield one(*fields)
        yield one(*response.end(answer))
    except Exception as error:  # clients expect every error as the final event of a stream
        known = as_api_error(error, "/v1/responses")
        failure = {"code": known.code or "server_error", "message": known.message}
        yield one("response.failed", {"response": response.object(answer, "failed", error=failure)})
        raise known from None
