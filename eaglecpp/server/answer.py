# SPDX-License-Identifier: MIT
"""Turns a `ServedRequest` into a running answer, which yields chunks with events. Every API uses this module.

`open_answer` does everything that can reject a request: it loads the model, renders and tokenizes the prompt,
checks that the prompt fits, starts the generation and waits briefly for a slot. Only then does the API send
the HTTP status. Each API converts the events of an answer to its own JSON.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.chat.formats import HERMES
from eaglecpp.chat.reader import AnswerReader
from eaglecpp.engine.async_engine import Lane
from eaglecpp.engine.async_stream import AsyncStream
from eaglecpp.engine.grammar import Lark, resolve_grammar
from eaglecpp.engine.request import GenerationRequest, ResolvedRequest
from eaglecpp.options import SamplingOptions
from eaglecpp.results import Chunk, Completion, TokenLogprob
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import end_all, live, while_there
from eaglecpp.server.models import LoadedModel, owner_of, server_of
from eaglecpp.server.shared import note_answer

T = TypeVar("T")

# Seconds for which an answer waits for a slot before its HTTP status is sent. Clients time out after 30 s.
_PATIENCE_S = 1.0
# maximum bytes of a short body, without a grammar and with a grammar
_SHORT, _SHORT_FORM = 128 << 10, 16 << 10


@dataclass(frozen=True, kw_only=True)
class ServedRequest(GenerationRequest):
    """One generation that a client requests. The request's options override the model's own options.

    n_ctx:      minimum context if the model has to be loaded
    n_top:      number of likeliest tokens to report at each position; None = report no log-probabilities
    must_think: raise an error if the model cannot think
    choice:     index of this answer among several answers to the same prompt; the index is added to the seed
    lora:       scales of the model's adapters by adapter number; None = the model's own scales
    may_call:   the answer may be a tool call instead of having the requested form
    strict:     JSON schemas that must be enforced completely
    """

    model: str
    keep_alive_s: float | None = None
    n_ctx: int = 0
    n_top: int | None = None
    must_think: bool = False
    show_drafts: bool = False
    choice: int = 0
    lora: Mapping[int, float] | None = None
    may_call: bool = False
    strict: Sequence[Mapping[str, Any]] = ()


@dataclass(eq=False)
class Answer:
    """A running answer. Iterate over it for chunks; after the last chunk, `completion` is the whole answer.

    started, deadline: start time and deadline of the request; load_ms: time to load the model, 0 if the model
        was already in memory
    n_own: maximum prompt tokens that may be reported as cached; None = no limit
    name: the model's name in the answer; blocks: thinking, content and tool calls, as in `AnswerReader`
    """

    model: LoadedModel
    request: ServedRequest
    resolved: ResolvedRequest
    stream: AsyncStream
    started: float
    deadline: float | None
    load_ms: float
    n_own: int | None = None
    first_s: float | None = None

    def __post_init__(self) -> None:
        assert self.resolved.reader is not None
        self.prompt, self.reader = self.resolved.prompt, self.resolved.reader
        self.reader.new_id = lambda: f"call_{uuid.uuid4().hex[:8]}"
        self.blocks = self.reader.blocks
        self.name = self.model.answers_as(self.request.model)

    @property
    def completion(self) -> Completion:
        return self.stream.completion()

    @property
    def reason(self) -> str:
        """Why the answer ended: "stop", "length", "tool_calls" or "cancelled"."""
        reason = self.completion.finish_reason
        has_calls = any(kind == "call" for kind, _ in self.blocks)
        return "tool_calls" if has_calls and reason == "stop" else reason

    @property
    def is_full(self) -> bool:
        """True if the answer ended because the context was full."""
        n_all = len(self.prompt.tokens) + len(self.completion.tokens)
        return self.reason == "length" and n_all >= self.model.n_ctx

    @property
    def timings(self) -> dict[str, Any]:
        """The counters of the answer: llama-server's counters under the names that llama-server uses, and
        eaglecpp's own.
        """
        timings = self.completion.timings.as_dict()
        if self.n_own is not None and (n_more := timings["reused_n"] - self.n_own) > 0:
            timings["reused_n"], timings["prompt_n"] = self.n_own, timings["prompt_n"] + n_more
            seconds = timings["prompt_ms"] / 1000
            timings["prompt_per_second"] = timings["prompt_n"] / seconds if seconds else 0.0
        return timings | {
            "cache_n": timings["reused_n"],
            "queue_ms": self.stream.queue_ms,
            "first_token_ms": None if self.first_s is None else 1000 * self.first_s,
            "messages_left_out": self.prompt.n_left_out,
            "context_full": self.is_full,
            "notices": self.prompt.notices,
            "seed": self.completion.seed,
        }

    @property
    def n_thought(self) -> int:
        """Number of tokens of the answer's thinking, including its tags."""
        return self.reader.n_thought if any(kind == "thinking" for kind, _ in self.blocks) else 0

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return self._of_text(self.completion.logprobs)

    def _of_text(self, logprobs: Sequence[TokenLogprob]) -> list[TokenLogprob]:
        """Removes the entry of the end-of-generation token, which has no text."""
        is_eog = self.model.engine.engine.native.is_eog
        return [entry for entry in logprobs if not is_eog(entry.token)]

    async def begun(self) -> None:
        """Waits until the generation has a slot."""
        await self._in_time(self.stream.started())

    async def _in_time(self, awaitable: Awaitable[T]) -> T:
        """Waits for a result of the engine. Raises ApiError after the request's deadline."""
        left = None if self.deadline is None else max(0.0, self.deadline - time.perf_counter())
        try:
            async with asyncio.timeout(left):  # asyncio.wait_for may lose a cancellation in Python 3.11
                return await awaitable
        except TimeoutError:
            self.stream.cancel()
            raise ApiError(504, "the request took longer than this server allows", code="timeout") from None

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        chunks = aiter(self.stream)
        while True:
            try:
                chunk = await self._in_time(anext(chunks))
            except StopAsyncIteration:
                # the server, not the client, cancelled the answer
                if self.completion.finish_reason == "cancelled":
                    raise ApiError(
                        503,
                        "the server stopped this answer before it was complete: the client read too slowly, "
                        "or the server is stopping",
                        code="cancelled",
                    ) from None
                return
            if self.first_s is None:
                self.first_s = time.perf_counter() - self.started
            yield replace(chunk, logprobs=self._of_text(chunk.logprobs)) if chunk.logprobs else chunk


def in_use(request: Request, wanted: ServedRequest) -> AbstractAsyncContextManager[LoadedModel]:
    """Loads the requested model if necessary, and keeps it in memory until the `with` block ends. GET
    requests do not count towards the queue limit, because monitors send them.
    """
    return server_of(request).use(wanted, is_queued=request.method == "POST")


@asynccontextmanager
async def open_answer(request: Request, wanted: ServedRequest) -> AsyncIterator[Answer]:
    """Starts an answer. Leaving the `with` block ends the answer. Raises the error if the request is
    rejected.
    """
    started, request_s = time.perf_counter(), server_of(request).config.request_s
    deadline = started + request_s if request_s > 0 else None
    async with in_use(request, wanted) as model:
        resolved = await in_lane(request, wanted, model, partial(resolve, request=wanted))
        stream = model.engine.stream(resolved, watch=wanted.show_drafts)
        async with stream, model.ending_late(stream.end_late):
            load_ms, model.load_ms = model.load_ms, 0.0
            answer = Answer(model, wanted, resolved, stream, started, deadline, load_ms)
            if len(server_of(request).config.keys) > 1:
                answer.n_own = model.texts.add(owner_of(request), answer.prompt.tokens)
            await stream.started(_PATIENCE_S)
            try:
                yield answer
            finally:
                _count(answer, request)


async def respond(
    request: Request,
    wanted: Sequence[ServedRequest],
    is_streamed: bool,
    one: Callable[[Answer, int], Any],
    parts: Callable[[Answer, int], AsyncIterator[bytes]],
    whole: Callable[..., Any] = lambda answers, items: items[0] if len(items) == 1 else items,
    end: Callable[[Sequence[Answer]], bytes] = lambda answers: b"",
    media_type: str = "text/event-stream",
) -> Response:
    """Runs several generations, at most one per slot of the model at a time. A streamed response sends
    `parts(answer, index)` of every answer, and then `end(answers)`. A response without streaming is
    `whole(answers, items)`, where `one(answer, index)` builds each item. Raises ApiError if there are more
    generations than a model's queue allows.
    """
    config = server_of(request).config
    n_at_once, n_max = config.n_parallel, config.n_answers
    if len(wanted) > n_max:
        raise ApiError(400, f"expected at most {n_max} answers for one request, found {len(wanted)}")
    slots, answers, items = asyncio.Semaphore(n_at_once), dict[int, Answer](), dict[int, Any]()

    async def part(index: int) -> AsyncGenerator[bytes, None]:
        async with slots, open_answer(request, wanted[index]) as answer:
            answers[index] = answer
            yield b""
            if is_streamed:
                async for data in parts(answer, index):
                    yield data
            else:
                async for _ in answer:
                    pass
                items[index] = one(answer, index)

    def ordered(by_index: Mapping[int, T]) -> list[T]:
        return [by_index[index] for index in range(len(wanted))]

    parts_of_all = _merged(list(map(part, range(len(wanted)))), lambda: end(ordered(answers)))
    return await live(
        request,
        parts_of_all,
        # until this number of answers has begun, an error still sets the status
        lambda n_parts: len(answers) >= min(n_at_once, len(wanted)),
        None if is_streamed else lambda: whole(ordered(answers), ordered(items)),
        media_type,
    )


async def _merged(
    streams: Sequence[AsyncGenerator[bytes, None]], end: Callable[[], bytes]
) -> AsyncGenerator[bytes, None]:
    """Yields the items of all streams in the order in which they arrive, and then the result of `end()`."""
    awaited = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while awaited:
            done, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = awaited.pop(task)
                with suppress(StopAsyncIteration):
                    yield task.result()
                    awaited[asyncio.ensure_future(anext(stream))] = stream
        yield end()
    finally:
        await end_all(*awaited)
        for stream in streams:
            await stream.aclose()


async def in_lane(
    request: Request, wanted: ServedRequest, model: LoadedModel, work: Callable[[LoadedModel], T]
) -> T:
    """Runs `work` in the model's threads for this kind of request: short, long, or with images. Short
    requests never wait for long requests. Requests without images never wait for requests with images.
    """
    n_bytes = getattr(request.state, "n_body", 0)
    lane: Lane = "long" if n_bytes > _SHORT else "short"
    has_form = wanted.json_schema or wanted.options.get("grammar")
    messages: Any = wanted.messages or ()
    if any(message.images for message in messages):
        lane = "images"
    elif wanted.template or (n_bytes > _SHORT_FORM and has_form):
        lane = "long"
    return await model.engine.run_in_lane(work, model, lane=lane)


async def of_model(request: Request, wanted: ServedRequest, work: Callable[[LoadedModel], T]) -> T:
    """Runs `work` on the requested model, in a thread."""

    async def run() -> T:
        async with in_use(request, wanted) as model:
            return await in_lane(request, wanted, model, work)

    return await while_there(request.receive, run())


async def n_prompt_tokens(request: Request, wanted: ServedRequest) -> int:
    """Counts the tokens of a request's whole prompt."""
    whole = replace(wanted, truncate=False)

    return await of_model(request, wanted, lambda model: len(model.engine.engine.shared.prompt(whole).tokens))


def resolve(model: LoadedModel, request: ServedRequest) -> ResolvedRequest:
    """Checks a request and builds its prompt. If the prompt gets several answers, each answer gets its own
    seed. This function blocks, so `in_lane` runs it in a thread.
    """
    if request.strict and not request.choice:
        from eaglecpp._extension import core

        form = {"schema": {"anyOf": [*request.strict]}, "strict": True}
        core.check_grammar(resolve_grammar(None, None, {"type": "json_schema", "json_schema": form}) or "")
    seed = request.options.get("seed", model.engine.engine.sampling.seed)
    if request.choice and seed not in SamplingOptions.RANDOM_SEEDS:  # answers with random seeds differ anyway
        seed = SamplingOptions.fixed_seed(seed + request.choice)
        request = replace(request, options={**request.options, "seed": seed})
    if request.may_call:
        request = _with_calls(model, request)
    resolved = model.engine.resolve(request)
    if request.must_think and resolved.chat.tags is None:
        raise ApiError(400, f"{model.name!r} does not support thinking: its chat template has no thinking")
    reader = resolved.reader or AnswerReader(model.engine.engine.vocabulary.token_to_piece)
    return replace(resolved, reader=reader)


def _with_calls(model: LoadedModel, request: ServedRequest) -> ServedRequest:
    """Adds a grammar to the request. The grammar allows an answer in the requested form, a tool call in the
    model's own form, and a tool call in bare JSON.
    """
    names = {"enum": [tool["function"]["name"] for tool in request.tools]}
    form = {"$id": "form", **(request.json_schema or {"type": "object"})}  # type: ignore[dict-item]
    bare = [
        {"type": "object", "properties": {"name": names, key: {"type": "object"}}, "required": ["name", key]}
        for key in ("arguments", "parameters")
    ]
    template = model.chat.template
    forms = (*template.calls, *(() if template.takes.tools else (HERMES,)))
    opens = {form.open for form in forms if form.open}  # calls without an opening mark are bare JSON
    grammar = resolve_grammar(request.options.get("grammar"), {"anyOf": [form, *bare]})
    assert grammar is not None
    if opens:
        calls = " | ".join(json.dumps(text, ensure_ascii=False) for text in sorted(opens))
        text = re.sub("^start:", "form_or_bare:", grammar, count=1, flags=re.MULTILINE)
        grammar = Lark(f"{text}start: form_or_bare | ({calls}) /[^\\x00]*/\n")
    return replace(request, json_schema=None, grammar=grammar)


def _count(answer: Answer, request: Request) -> None:
    metrics = server_of(request).metrics
    try:
        timings, reason = answer.timings, answer.reason
    except ValueError:  # the generation has never received a slot
        metrics.add("generations_total", model=answer.model.name, reason="cancelled")
        return
    if answer.n_own is not None:
        text = [*answer.prompt.tokens, *answer.completion.tokens]
        answer.model.texts.add(owner_of(request), text)
    metrics.count(answer.model.name, timings, reason, time.perf_counter() - answer.started)
    note_answer(request.scope, answer.model.name, timings)


def logprob_list(answer: Answer, logprobs: list[TokenLogprob]) -> list[dict[str, Any]]:
    """Returns log-probabilities in the form that Ollama and OpenAI share."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        data = answer.model.engine.engine.token_to_piece(token, special=True)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    n_top = answer.request.n_top or 0
    return [
        one(entry.token, entry.logprob) | {"top_logprobs": [one(*top) for top in entry.top[:n_top]]}
        for entry in logprobs
    ]
