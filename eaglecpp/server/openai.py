# SPDX-License-Identifier: MIT
"""OpenAI's `/v1/chat/completions`, `/v1/completions` and `/v1/models`."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.engine.infill import Infill
from eaglecpp.errors import InvalidArgumentError
from eaglecpp.limits import LOGIT_BIASES
from eaglecpp.modelfile.parameters import PARAMETERS
from eaglecpp.server.answer import Answer, Ask, logprob_list, open_answer
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import extensions, field, json_response, keep_alive, read_json, respond, sse
from eaglecpp.server.llama_request import NAMES, read_samplers

if TYPE_CHECKING:
    from eaglecpp.server.models import Server

__all__ = [
    "answered",
    "chat",
    "common_ask",
    "completions",
    "model",
    "models",
    "offer_tools",
    "read_effort",
    "read_format",
    "read_message",
    "read_tools",
    "usage",
]

_NUMBERS = ("temperature", "top_p", "min_p", "top_k", "seed", "frequency_penalty", "presence_penalty",
            "repeat_penalty", "num_ctx")  # fmt: skip
_KINDS = {"int": int, "float": float}
_N_TOP = 20


@dataclass
class _Head:
    """What every object of an answer repeats."""

    id: str
    object: str
    created: int
    ask: Ask

    def with_choices(self, choices: list[Any], **rest: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.ask.model,
            "system_fingerprint": "fp_eaglecpp",
            "choices": choices,
            **rest,
        }


async def chat(request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    body = await read_json(request)
    ask = common_ask(body)
    entries = body.get("messages")
    if not isinstance(entries, list) or not entries:
        raise ApiError(400, "messages must be a list of at least one message", param="messages")
    ask.messages = [read_message(entry, f"messages[{i}]") for i, entry in enumerate(entries)]
    offer_tools(ask, read_tools(body.get("tools")), body.get("tool_choice"))
    ask.format = read_format(body.get("response_format"))
    if field(body, "logprobs", bool, False):
        ask.n_probs = _n_top(field(body, "top_logprobs", int, 0))
    ask.think = read_effort(body)
    kwargs = field(body, "chat_template_kwargs", dict, {})
    if isinstance(kwargs.get("enable_thinking"), bool):
        ask.think = kwargs["enable_thinking"]
    head = _Head(f"chatcmpl-{uuid.uuid4().hex[:24]}", "chat.completion", int(time.time()), ask)

    def whole(answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.thinking:
            message["reasoning_content"] = message["reasoning"] = answer.thinking
        if answer.calls:
            message["content"] = answer.content or None
            message["tool_calls"] = [_call(call) for call in answer.calls]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": _logprobs(answer, answer.logprobs),
            "finish_reason": answer.reason,
        }
        return head.with_choices([choice], usage=usage(answer), timings=answer.timings)

    return await answered(request, body, ask, whole, lambda answer: _chunks(answer, head, body))


async def completions(request: Request) -> Response:
    """`POST /v1/completions`: a prompt without a template."""
    body = await read_json(request)
    ask = common_ask(body)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        ask.text = prompt
    elif isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        ask.tokens = prompt
    else:
        raise ApiError(400, "prompt must be one text, or one list of token ids", param="prompt")
    if suffix := field(body, "suffix", str, ""):
        if ask.text is None:
            raise ApiError(400, "suffix needs a prompt that is a text", param="suffix")
        ask.infill = Infill(ask.text, suffix)
    if field(body, "best_of", int, 1) != 1:
        raise ApiError(400, "best_of is not supported by this server", param="best_of")
    n_top = field(body, "logprobs", int)
    ask.n_probs = None if n_top is None else _n_top(n_top)
    ask.format = read_format(body.get("response_format"))
    echo = field(body, "echo", bool, False)
    head = _Head(f"cmpl-{uuid.uuid4().hex[:24]}", "text_completion", int(time.time()), ask)

    async def parts(answer: Answer) -> AsyncIterator[bytes]:
        if echo:
            yield sse(head.with_choices([_text(_echo(answer))]))
        async for delta in answer:
            text = delta.thinking + delta.content
            if text:
                yield sse(head.with_choices([_text(text)]))
        yield sse(head.with_choices([_text("", answer.reason)], timings=answer.timings))
        if _wants_usage(body):
            yield sse(head.with_choices([], usage=usage(answer)))
        yield b"data: [DONE]\n\n"

    def whole(answer: Answer) -> dict[str, Any]:
        text = (_echo(answer) if echo else "") + answer.completion.text
        choice = _text(text, answer.reason) | {"logprobs": _old_logprobs(answer)}
        return head.with_choices([choice], usage=usage(answer), timings=answer.timings)

    return await answered(request, body, ask, whole, parts)


async def models(request: Request) -> Response:
    """`GET /v1/models`."""
    server: Server = request.app.state.server
    entries = await server.library.entries()
    return json_response({"object": "list", "data": [_model(entry) for entry in entries]})


async def model(request: Request) -> Response:
    """`GET /v1/models/{id}`."""
    server: Server = request.app.state.server
    entry = await server.library.entry(request.path_params["name"])
    return json_response(_model(entry))


async def answered(
    request: Request,
    body: Mapping[str, Any],
    ask: Ask,
    whole: Callable[[Answer], Any],
    parts: Callable[[Answer], AsyncIterator[bytes]],
) -> Response:
    """The answer to a request that streams when it says so, by server-sent events."""
    server: Server = request.app.state.server
    opened = open_answer(server.pool, ask, server.config.request_s)
    return await respond(request, opened, field(body, "stream", bool, False), whole, parts)


def common_ask(body: Mapping[str, Any]) -> Ask:
    """The fields that OpenAI's endpoints share, llama-server's for sampling, and ours: `options`, `num_ctx`,
    `draft`, `strategy`, `exact`, `keep_alive`. What a request leaves out is the model's own.
    """
    if field(body, "n", int, 1) != 1:
        raise ApiError(400, "n: this server returns one choice per request", param="n")
    options: dict[str, Any] = dict(field(body, "options", dict, {}))
    for key in _NUMBERS:
        value = field(body, key, _KINDS[PARAMETERS[key].kind])
        if value is not None:
            options[key] = value
    options |= {key: body[key] for key in NAMES if key not in options and body.get(key) is not None}
    options |= read_samplers(body.get("samplers"))
    limits = [field(body, key, int) for key in ("max_completion_tokens", "max_tokens", "max_output_tokens")]
    limit = next((one for one in limits if one is not None), None)
    if limit is not None:
        if limit < 0 and limit != -1:
            raise ApiError(400, f"max_tokens must be 0 or more, found {limit}", param="max_tokens")
        options["num_predict"] = limit
    stop = body.get("stop")
    if stop is not None:
        texts = [stop] if isinstance(stop, str) else stop
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ApiError(400, "stop must be a text or a list of texts", param="stop")
        options["stop"] = [text for text in texts if text]
    for key, low, high in (("temperature", 0.0, 2.0), ("top_p", 0.0, 1.0)):
        if key in options and not low <= options[key] <= high:
            raise ApiError(
                400, f"{key} must be between {low:g} and {high:g}, found {options[key]}", param=key
            )
    sampling: dict[str, Any] = {}
    if bias := field(body, "logit_bias", dict):
        if len(bias) > LOGIT_BIASES:
            raise ApiError(
                400,
                f"logit_bias: {len(bias)} entries, at most {LOGIT_BIASES} are allowed",
                param="logit_bias",
            )
        try:
            sampling["logit_bias"] = {int(token): float(value) for token, value in bias.items()}
        except (ValueError, TypeError, OverflowError):
            raise ApiError(400, "logit_bias must map token ids to numbers", param="logit_bias") from None
    if grammar := field(body, "grammar", str):
        sampling["grammar"] = grammar
    draft, strategy = extensions(body)
    return Ask(
        model=field(body, "model", str, ""),
        options=options,
        sampling=sampling,
        truncate=False,
        cache_prompt=field(body, "cache_prompt", bool, True),
        keep_alive_s=keep_alive(body.get("keep_alive")),
        draft=draft,
        strategy=strategy,
        exact=field(body, "exact", str),
    )


def read_message(entry: Any, where: str) -> Message:
    """One message. Raises ApiError, also for what is not text."""
    if not isinstance(entry, dict):
        raise ApiError(400, f"{where} must be an object", param="messages")
    role = entry.get("role")
    fixed = {**entry, "role": "system" if role == "developer" else role}
    if isinstance(entry.get("content"), list):
        fixed["content"] = [_part(part) for part in entry["content"]]
    try:
        return Message.from_dict(fixed)
    except InvalidArgumentError as error:
        raise ApiError(400, f"{where}: {error}", param="messages") from None


def read_tools(tools: Any) -> list[dict[str, Any]]:
    """The tools, in the form of chat completions. Raises ApiError."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise ApiError(400, "tools must be a list", param="tools")
    found = []
    for index, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise ApiError(400, f"tools[{index}]: only functions with a name are supported", param="tools")
        kept = {key: function[key] for key in ("name", "description", "parameters") if function.get(key)}
        found.append({"type": "function", "function": kept})
    return found


def read_format(value: Any) -> Any:
    """`response_format` as None, "json" or a schema. Raises ApiError."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    nested = value.get("json_schema") if isinstance(value, dict) else None
    if kind == "json_object":
        return value.get("schema") or "json"
    if kind == "json_schema":
        schema = nested.get("schema") if isinstance(nested, dict) else value.get("schema")
        if not isinstance(schema, dict):
            raise ApiError(
                400, "response_format: json_schema.schema must be an object", param="response_format"
            )
        return schema or "json"
    raise ApiError(
        400, "response_format.type must be text, json_object or json_schema", param="response_format"
    )


def usage(answer: Answer) -> dict[str, Any]:
    """Tokens, with those that were found in a cache and those that were drafted."""
    timings = answer.timings
    n_prompt, n_out = len(answer.prompt.tokens), timings["predicted_n"]
    accepted = timings["draft_n_accepted"]
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_out,
        "total_tokens": n_prompt + n_out,
        "prompt_tokens_details": {"cached_tokens": timings["reused_n"]},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": timings["draft_n"] - accepted,
        },
    }


async def _chunks(answer: Answer, head: _Head, body: Mapping[str, Any]) -> AsyncIterator[bytes]:
    head = replace(head, object="chat.completion.chunk")

    def one(delta: dict[str, Any], reason: str | None = None, **rest: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        if wants_usage and "usage" not in rest:
            rest["usage"] = None
        logprobs = rest.pop("logprobs", None)
        if logprobs is not None:
            choice["logprobs"] = logprobs
        return sse(head.with_choices([choice], **rest))

    wants_usage = _wants_usage(body)
    n_calls = 0
    yield one({"role": "assistant", "content": ""})
    async for delta in answer:
        if delta.thinking:
            yield one({"reasoning_content": delta.thinking, "reasoning": delta.thinking})
        logprobs = _logprobs(answer, delta.logprobs)
        if delta.content or (logprobs and delta.logprobs):
            yield one({"content": delta.content}, logprobs=logprobs)
        for call in delta.calls:
            told = _call(call)
            arguments = told["function"].pop("arguments")
            begin = {"index": n_calls, **told, "function": {**told["function"], "arguments": ""}}
            yield one({"tool_calls": [begin]})
            yield one({"tool_calls": [{"index": n_calls, "function": {"arguments": arguments}}]})
            n_calls += 1
    yield one({}, answer.reason, timings=answer.timings)
    if wants_usage:
        yield sse(head.with_choices([], usage=usage(answer)))
    yield b"data: [DONE]\n\n"


def _wants_usage(body: Mapping[str, Any]) -> bool:
    options = field(body, "stream_options", dict, {})
    return bool(field(options, "include_usage", bool, False))


def read_effort(body: Mapping[str, Any]) -> bool | str | None:
    """Whether to think, and how long; None = as the model likes."""
    effort = body.get("reasoning_effort") or field(body, "reasoning", dict, {}).get("effort")
    return None if effort is None else False if effort in ("none", "minimal") else str(effort)


def offer_tools(ask: Ask, tools: list[dict[str, Any]], choice: Any) -> None:
    """The tools, and the names of those one of which must be called. Raises ApiError."""
    if choice != "none":
        ask.tools, ask.must_call = tools, _must_call(tools, choice)


def _must_call(tools: list[dict[str, Any]], choice: Any) -> list[str]:
    if choice in (None, "auto"):
        return []
    names = [tool["function"]["name"] for tool in tools]
    if choice in ("required", "any"):
        if not names:
            raise ApiError(400, f"tool_choice {choice!r} needs tools", param="tool_choice")
        return names
    if isinstance(choice, dict):
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, dict) else None
        if name is not None and name in names:
            return [str(name)]
        raise ApiError(400, f"tool_choice names {name!r}, which is not among the tools", param="tool_choice")
    raise ApiError(400, "tool_choice must be none, auto, required or a function", param="tool_choice")


def _n_top(number: int) -> int:
    if not 0 <= number <= _N_TOP:
        raise ApiError(
            400, f"top_logprobs must be between 0 and {_N_TOP}, found {number}", param="top_logprobs"
        )
    return number


def _part(part: Any) -> Any:
    """A part of a content list; the names for text differ between the APIs."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": part.get("text")}
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    if kind == "input_image":
        return {"type": "image_url", "image_url": part.get("image_url")}
    if kind in ("image", "input_audio", "file", "input_file"):
        raise ApiError(400, f"content of type {kind} is not supported, only text and image_url are")
    return part


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _logprobs(answer: Answer, logprobs: Any) -> dict[str, Any] | None:
    if answer.ask.n_probs is None:
        return None
    return {"content": logprob_list(answer, logprobs), "refusal": None}


def _old_logprobs(answer: Answer) -> dict[str, Any] | None:
    if answer.ask.n_probs is None:
        return None
    entries = logprob_list(answer, answer.logprobs)
    offsets, at = [], 0
    for entry in entries:
        offsets.append(at)
        at += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [{top["token"]: top["logprob"] for top in e["top_logprobs"]} for e in entries],
        "text_offset": offsets,
    }


def _text(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}


def _echo(answer: Answer) -> str:
    return answer.model.engine.engine.detokenize(answer.prompt.tokens)


def _model(entry: Mapping[str, Any]) -> dict[str, Any]:
    from datetime import datetime

    created = int(datetime.fromisoformat(entry["modified_at"]).timestamp())
    return {"id": entry["name"], "object": "model", "created": created, "owned_by": "library"}
