# SPDX-License-Identifier: MIT
"""OpenAI's `/v1/responses`. A request contains its whole conversation, or names a response that was kept."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.chat.message import Message, Role, ToolCall
from eaglecpp.chat.turns import merged
from eaglecpp.errors import InvalidValueError
from eaglecpp.server import bodies
from eaglecpp.server.answer import Answer, Ask, Part, n_prompt_tokens, respond
from eaglecpp.server.errors import ApiError, FieldError, cut
from eaglecpp.server.http import check_values, dump, in_thread, json_response, sse
from eaglecpp.server.kept import Kept, KeptResponses
from eaglecpp.server.models import server_of

_REPEATED = ("instructions", "parallel_tool_calls", "reasoning", "text", "tool_choice", "tools")
_REPEATED_BYTES = 1 << 20


class _Body(bodies.CloudBody, kw_only=True):
    input: Any = None
    instructions: str | None = None
    max_output_tokens: bodies.Limit | None = None
    parallel_tool_calls: Any = True
    previous_response_id: str = ""
    reasoning: dict[str, Any] = {}
    store: bool = True
    text: dict[str, Any] = {}

    @property
    def functions(self) -> list[Any]:
        """The tools without those that OpenAI runs itself, which are left out, as in Ollama."""
        return [
            one
            for one in self.tools
            if not isinstance(one, dict) or one.get("type", "function") == "function"
        ]

    def ask(self) -> Ask:
        """Raises ApiError."""
        n_bytes = len(dump([getattr(self, name) for name in _REPEATED]))
        if n_bytes > _REPEATED_BYTES:  # three events repeat these
            text = (
                f"{', '.join(_REPEATED)} have {n_bytes} bytes in all, at most {_REPEATED_BYTES} are allowed"
            )
            raise ApiError(400, text)
        form = bodies.read_format(self.text.get("format"), "text.format")
        return self.make_ask(
            bodies.sampling_of(self, max_tokens=self.max_output_tokens),
            messages=_messages(self.input, self.instructions),
            think=bodies.read_effort("", self.reasoning),
            **bodies.offered(self.functions, self.tool_choice, form),
        )


async def responses(request: Request) -> Response:
    """`POST /v1/responses`."""
    body = await _read(request)
    ask = await in_thread(request, body.ask)
    made = _Made(body)
    kept = server_of(request).kept
    if kept.n_max and body.store:
        items = await in_thread(request, dump, body.input)
        made.keep = lambda whole: kept.add(_owner(request), made.id, Kept(items, dump(whole)))
    return await respond(
        request,
        [ask],
        body.stream,
        lambda answers: made.whole(answers[0]),
        lambda answer, index: _events(answer, made),
    )


async def input_tokens(request: Request) -> Response:
    """`POST /v1/responses/input_tokens`: how many tokens the prompt of the same body has."""
    body = await _read(request)
    ask = await in_thread(request, body.ask)
    n_tokens = await n_prompt_tokens(request, ask)
    return json_response({"object": "response.input_tokens", "input_tokens": n_tokens})


async def kept_response(request: Request) -> Response:
    """`GET /v1/responses/{id}`, and `DELETE` of the same."""
    id = request.path_params["id"]
    kept, owner = server_of(request).kept, _owner(request)
    found = kept.find(owner, id)
    if found is None:
        raise ApiError(404, f"response {cut(id)!r} not found: {_why_not_kept(kept)}")
    if request.method != "DELETE":
        return Response(found.response, media_type="application/json")
    kept.remove(owner, id)
    return json_response({"id": id, "object": "response", "deleted": True})


async def _read(request: Request) -> _Body:
    """The body, whose input is the whole conversation, a list of items. Raises ApiError."""
    body = await bodies.read(request, _Body)
    given = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    if not isinstance(given, list) or not given:
        raise FieldError("input", "expected a text or a list of items")
    body.input = given
    if not body.previous_response_id:
        return body
    server = server_of(request)
    found = server.kept.find(_owner(request), body.previous_response_id)
    if found is None:
        raise ApiError(
            400,
            f"previous_response_id: {cut(body.previous_response_id)!r} not found: "
            f"{_why_not_kept(server.kept)}; send the whole conversation as input",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    n_bytes = request.state.n_body + found.n_bytes
    if n_bytes > server.config.n_body:
        raise ApiError(
            413,
            f"the conversation has {n_bytes} bytes, this server accepts at most {server.config.n_body}",
            param="previous_response_id",
        )
    server.held.hold(request.scope, n_bytes)
    request.state.n_body = n_bytes
    body.input = await in_thread(request, _continued, found, given)
    return body


def _continued(found: Kept, given: list[Any]) -> list[Any]:
    """The conversation that was answered, its answer, and what was said since."""
    check_values(found.items + found.response)
    return [*msgspec.json.decode(found.items), *msgspec.json.decode(found.response)["output"], *given]


def _owner(request: Request) -> str:
    """The API key whose responses a request may name, "" where the server asks for none."""
    return str(request.scope.get("api_key", ""))


def _why_not_kept(kept: KeptResponses) -> str:
    if not kept.n_max:
        return "this server keeps no responses (serve --keep-responses N)"
    return f"this server keeps the latest {kept.n_max} of each API key, until it ends"


def _messages(given: list[Any], instructions: str | None) -> list[Message]:
    turns = [Message(Role.SYSTEM, instructions)] if instructions else []
    turns += [_item(item, f"input[{index}]") for index, item in enumerate(given)]
    return merged(turns, (Role.ASSISTANT,))  # one turn of the model is several items


def _item(item: Any, where: str) -> Message:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        return bodies.read_message(item, where)
    if kind == "reasoning":
        return Message(Role.ASSISTANT, thinking=_texts(item.get("content")) or _texts(item.get("summary")))
    if kind == "function_call":
        try:
            call = ToolCall.from_dict({"id": item.get("call_id"), "function": item})
        except InvalidValueError as error:
            raise FieldError(where, str(error)) from None
        return Message(Role.ASSISTANT, tool_calls=(call,))
    if kind == "function_call_output":
        output = {"role": Role.TOOL, "content": item.get("output"), "tool_call_id": item.get("call_id")}
        return bodies.read_message(output, where)
    raise FieldError(where, f"items of type {kind!r} are not supported")


def _texts(parts: Any) -> str:
    """The texts of a reasoning item, which are its own or a summary's."""
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "\n\n".join(text for text in texts if isinstance(text, str))


class _Form(NamedTuple):
    """How an item of text is written: its type and the beginning of its id, the key of its parts, their type,
    and what events of a part and of its text are called.
    """

    item: str
    id: str
    parts: str
    kind: str
    part: str
    text: str


_FORMS = {
    "thinking": _Form(
        "reasoning", "rs", "summary", "summary_text", "reasoning_summary_part", "reasoning_summary_text"
    ),
    "content": _Form("message", "msg", "content", "output_text", "content_part", "output_text"),
}
Event = tuple[str, dict[str, Any]]


class _Made:
    """The response object in its states. output: its finished items; keep: is given the whole, and says
    whether it was kept
    """

    def __init__(self, body: _Body) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.body = body
        self.output: list[dict[str, Any]] = []
        self.keep: Callable[[dict[str, Any]], bool] | None = None
        self._open: _Form | None = None  # of an item that goes on
        self._item: dict[str, Any] = {}
        self._text = ""

    def object(self, answer: Answer, status: str, **rest: Any) -> dict[str, Any]:
        body = self.body
        same = ("instructions", "max_output_tokens", "parallel_tool_calls", "temperature", "top_p")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "metadata": {},
            "model": answer.name,
            "output": self.output,
            "previous_response_id": body.previous_response_id or None,
            "reasoning": body.reasoning or {"effort": None, "summary": None},
            "store": self.keep is not None,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.functions,
            "truncation": "disabled",
            "usage": None,
            **{name: getattr(body, name) for name in same},
            **rest,
        }

    def add(self, part: Part) -> Iterator[Event]:
        """The events of what was said next."""
        if part[0] == "call":
            yield from self._close("completed")
            yield from self._call(part[1])
            return
        form = _FORMS[part[0]]
        if self._open is not form:
            yield from self._close("completed")
            yield from self._begin(form)
        self._text += part[1]
        yield f"response.{form.text}.delta", {**self._place(), "delta": part[1], **self._rest("logprobs")}

    def end(self, answer: Answer) -> Iterator[Event]:
        """The events of the end, the last of which has the whole response."""
        if self._open is None and not any(item["type"] != "reasoning" for item in self.output):
            yield from self._begin(_FORMS["content"])
        status, details = "completed", None
        if answer.reason == "length":
            status, details = "incomplete", {"reason": "max_output_tokens"}
        yield from self._close(status)
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
            whole["store"] = self.keep(whole)
        yield f"response.{status}", {"response": whole}

    def whole(self, answer: Answer) -> dict[str, Any]:
        for part in answer.parts:
            for _ in self.add(part):
                pass
        *_, (_, last) = self.end(answer)
        return dict(last["response"])

    def _place(self) -> dict[str, Any]:
        """Where the open item is, and its only part."""
        assert self._open is not None
        return {"item_id": self._item["id"], "output_index": len(self.output), f"{self._open.parts}_index": 0}

    def _part(self) -> dict[str, Any]:
        assert self._open is not None
        return {"type": self._open.kind, "text": self._text, **self._rest("annotations", "logprobs")}

    def _rest(self, *names: str) -> dict[str, Any]:
        """Lists that a message has, which are empty here."""
        return {name: [] for name in names} if self._open is _FORMS["content"] else {}

    def _begin(self, form: _Form) -> Iterator[Event]:
        self._open, self._text = form, ""
        role = {"role": "assistant"} if form.item == "message" else {}
        id = f"{form.id}_{uuid.uuid4().hex}"
        self._item = {"id": id, "type": form.item, "status": "in_progress", **role, form.parts: []}
        yield "response.output_item.added", {"output_index": len(self.output), "item": self._item}
        yield f"response.{form.part}.added", {**self._place(), "part": self._part()}

    def _close(self, status: str) -> Iterator[Event]:
        form = self._open
        if form is None:
            return
        part = self._part()
        yield f"response.{form.text}.done", {**self._place(), "text": self._text, **self._rest("logprobs")}
        yield f"response.{form.part}.done", {**self._place(), "part": part}
        item = {**self._item, "status": status, form.parts: [part]}
        yield "response.output_item.done", {"output_index": len(self.output), "item": item}
        self.output.append(item)
        self._open = None

    def _call(self, call: ToolCall) -> Iterator[Event]:
        arguments = bodies.arguments_text(call.arguments)
        item = {"id": f"fc_{call.id}", "type": "function_call", "status": "completed", "call_id": call.id,
                "name": call.name, "arguments": arguments}  # fmt: skip
        at = {"output_index": len(self.output)}
        inside = {"item_id": item["id"], **at}
        begun = {**item, "status": "in_progress", "arguments": ""}
        yield "response.output_item.added", {**at, "item": begun}
        yield "response.function_call_arguments.delta", {**inside, "delta": arguments}
        yield "response.function_call_arguments.done", {**inside, "name": call.name, "arguments": arguments}
        yield "response.output_item.done", {**at, "item": item}
        self.output.append(item)


async def _events(answer: Answer, made: _Made) -> AsyncIterator[bytes]:
    numbers = count()

    def one(kind: str, fields: Mapping[str, Any]) -> bytes:
        return sse({"type": kind, "sequence_number": next(numbers), **fields}, kind)

    begun = made.object(answer, "in_progress")
    yield one("response.created", {"response": begun})
    yield one("response.in_progress", {"response": begun})
    async for delta in answer:
        for part in delta.parts:
            for event in made.add(part):
                yield one(*event)
    for event in made.end(answer):
        yield one(*event)
