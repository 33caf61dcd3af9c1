# SPDX-License-Identifier: MIT
"""OpenAI's `/v1/chat/completions`, `/v1/completions` and `/v1/models`."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.chat.message import ToolCall
from eaglecpp.engine.infill import Infill
from eaglecpp.results import LogprobLists
from eaglecpp.server import bodies
from eaglecpp.server.answer import Answer, ServedRequest, logprob_list, of_model, respond
from eaglecpp.server.catalog import entries, entry
from eaglecpp.server.errors import FieldError
from eaglecpp.server.http import in_thread, json_response, sse
from eaglecpp.server.models import LoadedModel, server_of

ENDINGS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}
Choices = Annotated[int, Meta(ge=1, le=128)]
"""Number of answers to each prompt; the maximum is OpenAI's."""
_OF_PROMPTS = {"messages", "tools", "bos_token", "eos_token", "add_generation_prompt", "chat_template"}


class _Body(bodies.CloudBody, kw_only=True):
    n: Choices = 1
    max_completion_tokens: bodies.Limit | None = None
    response_format: Any = None
    json_schema: dict[str, Any] = {}
    stream_options: dict[str, Any] = {}

    def given(self) -> dict[str, Any]:
        """Returns the sampling options of the body. Raises ApiError."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return bodies.sampling_of(self, max_tokens=limit)

    def form(self) -> dict[str, Any]:
        """Returns the requested form of the answer, from `response_format` or llama-server's `json_schema`.
        Raises ApiError.
        """
        form = bodies.read_format(self.response_format)
        return form or ({"json_schema": self.json_schema} if self.json_schema else {})

    def choices(self, request: ServedRequest) -> list[ServedRequest]:
        """Returns a request for each answer to the same prompt."""
        return [replace(request, choice=index) for index in range(self.n)]


class _Chat(_Body, kw_only=True):
    """The body of chat completions."""

    messages: Annotated[list[Any], Meta(min_length=1)]
    logprobs: bool = False
    top_logprobs: bodies.NTop = 0
    reasoning_effort: str = ""
    reasoning_budget_tokens: int | None = None
    thinking_budget_tokens: int | None = None
    """llama-server's field, which means the same as `reasoning_budget_tokens`."""
    reasoning: dict[str, Any] = {}
    chat_template_kwargs: Annotated[dict[str, str | float | int | bool | None], Meta(max_length=256)] = {}
    """Variables for the chat template. The number of variables is limited, because probing a template tries
    the value of each variable.
    """

    def chat(self) -> ServedRequest:
        """Returns the body as a `ServedRequest`. Raises ApiError."""
        values = self.chat_template_kwargs
        if taken := ", ".join(values.keys() & _OF_PROMPTS):
            raise FieldError("chat_template_kwargs", f"remove {taken}: only the server may set this")
        think = bodies.read_effort(self.reasoning_effort, self.reasoning)
        wanted = (values.get(name) for name in ("enable_thinking", "thinking"))
        budgets = (
            self.reasoning_budget_tokens,
            self.thinking_budget_tokens,
            self.reasoning.get("max_tokens"),
        )
        return self.request(
            self.given() | bodies.read_budget(*budgets),
            n_top=self.top_logprobs if self.logprobs else None,
            messages=[bodies.read_message(entry, f"messages[{i}]") for i, entry in enumerate(self.messages)],
            template_values=values,
            think=next((value for value in wanted if isinstance(value, bool)), think),
            **bodies.offered(self.tools, self.tool_choice, self.form()),
        )


class _Completions(_Body, kw_only=True):
    prompt: Any = None
    suffix: str = ""
    best_of: int | None = None
    logprobs: bodies.NTop | None = None
    echo: bool = False

    def requests(self, n_max: int) -> list[ServedRequest]:
        """Returns one request for each answer. Raises ApiError for an invalid field or more than n_max
        answers.
        """
        if self.echo:
            raise FieldError("echo", "not supported; remove it")
        if self.best_of not in (None, self.n):
            raise FieldError("best_of", f"expected {self.n}, the value of n, as every answer is returned")
        options, form = self.given(), self.form()
        requests = []
        for prompt in bodies.read_prompts(self.prompt, n_max=n_max // self.n):
            if self.suffix and not isinstance(prompt, str):
                raise FieldError("suffix", "expected a prompt that is a text")
            what = {"gap": Infill(str(prompt), self.suffix)} if self.suffix else {"prompt": prompt}
            requests += self.choices(self.request(options, n_top=self.logprobs, **what, **form))
        return requests


async def chat(request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    body = await bodies.read(request, _Chat)
    wanted = await in_thread(request, body.chat)
    head = _head("chatcmpl", "chat.completion")
    chunk = {**head, "object": "chat.completion.chunk"}

    def choice(answer: Answer, index: int) -> dict[str, Any]:
        message = answer.reader.message
        fields: dict[str, Any] = {"role": "assistant", "content": message.content, "refusal": None}
        if message.thinking:
            fields["reasoning_content"] = fields["reasoning"] = message.thinking
        if message.tool_calls:
            fields["content"] = message.content or None
            fields["tool_calls"] = [_call(call) for call in message.tool_calls]
        logprobs = _logprobs(answer, answer.logprobs)
        reason = ENDINGS[answer.reason]
        return {"index": index, "message": fields, "logprobs": logprobs, "finish_reason": reason}

    async def chunks(answer: Answer, index: int) -> AsyncIterator[bytes]:
        usual = {**chunk, "model": answer.name}

        def one(delta: Any, logprobs: Any = None, reason: str | None = None, **rest: Any) -> bytes:
            part = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
            return sse({**usual, "choices": [part], **rest})

        n_calls = 0
        yield one({"role": "assistant", "content": ""})
        async for round in answer:
            logprobs = _logprobs(answer, round.logprobs) if round.logprobs else None
            for part in round.parts or ([("content", "")] if logprobs else []):
                match part:
                    case "thinking", text:
                        yield one({"reasoning_content": text, "reasoning": text}, logprobs)
                    case "content", text:
                        yield one({"content": text}, logprobs)
                    case _, call:
                        begun = _call(call)
                        arguments, begun["function"]["arguments"] = begun["function"]["arguments"], ""
                        yield one({"tool_calls": [{"index": n_calls, **begun}]}, logprobs)
                        rest = {"index": n_calls, "function": {"arguments": arguments}}
                        yield one({"tool_calls": [rest]})
                        n_calls += 1
                logprobs = None
        yield one({}, reason=ENDINGS[answer.reason], timings=answer.timings)

    whole, end = partial(_whole, head), partial(_end, chunk, body)
    return await respond(request, body.choices(wanted), body.stream, choice, chunks, whole, end)


async def apply_template(request: Request) -> Response:
    """llama-server's `POST /apply-template`: returns the prompt text of the same chat request."""
    wanted = await in_thread(request, (await bodies.read(request, _Chat)).chat)

    def work(model: LoadedModel) -> str:
        return model.engine.engine.shared.prompt(wanted).rendered.text

    return json_response({"prompt": await of_model(request, wanted, work)})


async def completions(request: Request) -> Response:
    """`POST /v1/completions`: answers one or more prompts without a template, concurrently."""
    body = await bodies.read(request, _Completions)
    wanted = await in_thread(request, body.requests, server_of(request).config.n_answers)
    head = _head("cmpl", "text_completion")

    def choice(index: int, text: str, logprobs: Any = None, reason: str | None = None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def one(answer: Answer, index: int) -> dict[str, Any]:
        logprobs = None if body.logprobs is None else _lists(answer).of(answer.logprobs, body.logprobs)
        return choice(index, answer.completion.text, logprobs, ENDINGS[answer.reason])

    async def parts(answer: Answer, index: int) -> AsyncIterator[bytes]:
        lists, usual = _lists(answer), {**head, "model": answer.name}
        async for round in answer:
            logprobs = lists.of(round.logprobs, body.logprobs) if round.logprobs else None
            if round.text or logprobs:
                yield sse({**usual, "choices": [choice(index, round.text, logprobs)]})
        last = choice(index, "", reason=ENDINGS[answer.reason])
        yield sse({**usual, "choices": [last], "timings": answer.timings})

    whole, end = partial(_whole, head), partial(_end, head, body)
    return await respond(request, wanted, body.stream, one, parts, whole, end)


async def models(request: Request) -> Response:
    """`GET /v1/models`. The response has the fields of OpenAI's form and of Anthropic's form."""
    listed = [_model(item, request) for item in await server_of(request).files_run(entries)]
    ids = [item["id"] for item in listed] or [None]
    ends = {"has_more": False, "first_id": ids[0], "last_id": ids[-1]}
    return json_response({"object": "list", "data": listed, **ends})


async def model(request: Request) -> Response:
    """`GET /v1/models/{id}`."""
    listed = await server_of(request).files_run(entry, request.path_params["name"])
    return json_response(_model(listed, request))


def _model(entry: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """Returns a model's entry of `/v1/models`. The field `status` is llama-server's."""
    is_loaded = any(model.name == entry["name"] for model in server_of(request).models.values())
    status = {"status": {"value": "loaded" if is_loaded else "unloaded"}}
    name, modified = entry["name"], entry["modified_at"]
    created = int(datetime.fromisoformat(modified).timestamp())
    of_openai = {"id": name, "object": "model", "created": created, "owned_by": "library"}
    of_anthropic = {"type": "model", "display_name": name, "created_at": modified}
    ours = ("details", "capabilities", "context_length", "size", "draft")
    return of_openai | of_anthropic | status | {key: entry[key] for key in ours}


def _head(prefix: str, kind: str) -> dict[str, Any]:
    """Returns the fields that every JSON object of an answer repeats."""
    id, fingerprint = f"{prefix}-{uuid.uuid4().hex[:24]}", "fp_eaglecpp"
    return {"id": id, "object": kind, "created": int(time.time()), "system_fingerprint": fingerprint}


def _whole(
    head: Mapping[str, Any], answers: Sequence[Answer], choices: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Returns the JSON object of a finished answer. If the answer has several choices, each choice has its
    own timings.
    """
    out = {**head, "model": answers[0].name, "choices": choices, "usage": _usage(answers)}
    if len(answers) == 1:
        return {**out, "timings": answers[0].timings}
    for choice, answer in zip(choices, answers, strict=True):
        choice["timings"] = answer.timings
    return out


def _end(head: Mapping[str, Any], body: _Body, answers: Sequence[Answer]) -> bytes:
    """Returns the last chunks of a stream. The earlier chunks have no `usage` field, because some clients
    take even a null `usage` for the end of the stream.
    """
    last = {**head, "model": answers[0].name, "choices": [], "usage": _usage(answers)}
    return (sse(last) if body.stream_options.get("include_usage") is True else b"") + b"data: [DONE]\n\n"


def _usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns the `usage` object with token counts, including cached and drafted tokens. A prompt with
    several answers counts once.
    """
    first = [answer for answer in answers if answer.request.choice == 0]
    n_prompt = sum(len(answer.prompt.tokens) for answer in first)
    n_cached = sum(answer.timings["reused_n"] for answer in first)
    n_out, n_drafted, n_accepted = (
        sum(answer.timings[name] for answer in answers)
        for name in ("predicted_n", "draft_n", "draft_n_accepted")
    )
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_out,
        "total_tokens": n_prompt + n_out,
        "prompt_tokens_details": {"cached_tokens": n_cached},
        "completion_tokens_details": {
            "reasoning_tokens": sum(answer.n_thought for answer in answers),
            "accepted_prediction_tokens": n_accepted,
            "rejected_prediction_tokens": n_drafted - n_accepted,
        },
    }


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": bodies.arguments_text(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _logprobs(answer: Answer, logprobs: Any) -> dict[str, Any] | None:
    if answer.request.n_top is None:
        return None
    return {"content": logprob_list(answer, logprobs), "refusal": None}


def _lists(answer: Answer) -> LogprobLists:
    vocabulary, request = answer.model.engine.engine.vocabulary, answer.request
    prompt = request.prompt if request.gap is None else request.gap.prefix
    text = prompt if isinstance(prompt, str) else vocabulary.detokenize(answer.prompt.tokens)

    def name(token: int) -> str:
        return vocabulary.token_to_piece(token, special=True).decode("utf-8", "replace")

    return LogprobLists(name, vocabulary.token_to_piece, len(text), "replace")
