# SPDX-License-Identifier: MIT
"""From a request to a running answer: `Ask` in, `Delta`s out, the same for every API.

`open_answer` does everything that can refuse a request: it loads the model, renders and tokenizes the prompt,
checks that it fits, starts the generation and waits briefly for the engine to accept it. Only then does an
API send its status. `Answer` splits the text into answer, thinking and tool calls as it streams.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from eaglecpp.chat.call_forms import HERMES
from eaglecpp.chat.message import ToolCall
from eaglecpp.chat.reader import AnswerReader
from eaglecpp.chat.tool_calls import ToolReader
from eaglecpp.engine.async_engine import Lane
from eaglecpp.engine.async_stream import AsyncStream
from eaglecpp.engine.grammar import Lark, resolve_grammar
from eaglecpp.engine.request import GenerationRequest, Request
from eaglecpp.options import SamplingOptions
from eaglecpp.results import Completion, Piece, TokenLogprob
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import end_all, live, while_there
from eaglecpp.server.models import Lease, LoadedModel, owner_of, server_of
from eaglecpp.server.shared import note_answer

T = TypeVar("T")

_PATIENCE_S = 1.0  # of a status that waits for the engine to take the request up; clients give up after 30 s
_SHORT, _SHORT_FORM = 128 << 10, 16 << 10  # bytes of a body; of one with a grammar or a schema


@dataclass(frozen=True)
class Ask:
    """One request to a server.

    generation: what the engine is asked for, whose options stand over the model's own
    n_ctx:      tokens of context that a model has at least which it loads
    n_top:      likeliest tokens to tell of each; None = no log-probabilities
    must_think: refuse a model that does not think
    choice:     which of several answers to the same prompt; each has a seed of its own, the first the one
                that was asked for
    lora:       scales of the model's adapters by number, None = the model's own
    may_call:   the answer is a call of a tool or has the form that is asked for
    """

    model: str
    generation: GenerationRequest
    keep_alive_s: float | None = None
    n_ctx: int = 0
    n_top: int | None = None
    must_think: bool = False
    show_drafts: bool = False
    choice: int = 0
    lora: Mapping[int, float] | None = None
    may_call: bool = False


Part = tuple[Literal["thinking", "content"], str] | tuple[Literal["call"], ToolCall]


@dataclass
class Generated:
    """parts: thinking, content and calls of tools, in the order in which the model wrote them."""

    parts: list[Part] = field(default_factory=list)

    def add(self, part: Part) -> None:
        last = self.parts[-1] if self.parts else None
        if last is not None and last[0] != "call" and last[0] == part[0]:
            part = last[0], last[1] + part[1]
            self.parts.pop()
        self.parts.append(part)

    @property
    def content(self) -> str:
        return "".join(part[1] for part in self.parts if part[0] == "content")

    @property
    def thinking(self) -> str:
        return "".join(part[1] for part in self.parts if part[0] == "thinking")

    @property
    def blocks(self) -> list[Part]:
        """The parts, and an empty text where there is nothing but thinking: clients read the last block."""
        return self.parts if self.content or self.calls else [*self.parts, ("content", "")]

    @property
    def calls(self) -> list[ToolCall]:
        return [part[1] for part in self.parts if part[0] == "call"]


@dataclass
class Delta(Generated):
    """What one round gave. pieces: the same text with who wrote it, for the page."""

    logprobs: list[TokenLogprob] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    live: dict[str, Any] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Prepared:
    """A request that is ready to start, with the readers of its answer. The readers may have to compile and
    probe the request's own template, so they are created in the preparing thread, too.
    """

    request: Request
    reader: AnswerReader
    tools: ToolReader | None


class Answer(Generated):
    """A running answer. Iterate for deltas; afterwards it has the whole.

    name: what an answer calls it; prompt: what it was asked
    """

    def __init__(
        self, model: LoadedModel, ask: Ask, made: Prepared, stream: AsyncStream, deadline: float | None
    ) -> None:
        super().__init__()
        self.model = model
        self.ask = ask
        self.prompt = made.request.prompt
        self._reader, self._tools = made.reader, made.tools
        self._n_first = 0  # tokens before what is no thought
        self.logprobs: list[TokenLogprob] = []
        self.first_s: float | None = None
        self.started = time.perf_counter()
        self.load_ms = 0.0  # of the model, where this request had to wait for that
        self.n_own: int | None = None  # tokens of the prompt that may count as cached; None = any
        self._stream = stream
        self._deadline = deadline
        self.name = model.answers_as(ask.model)

    @property
    def completion(self) -> Completion:
        return self._stream.completion()

    @property
    def slot(self) -> int:
        """The number of the conversation it runs in, -1 while it waits for one."""
        return self._stream.slot_number

    @property
    def reason(self) -> str:
        """Why it ended: "stop", "length", "tool_calls" or "cancelled"."""
        reason = self.completion.finish_reason
        return "tool_calls" if self.calls and reason == "stop" else reason

    @property
    def is_full(self) -> bool:
        """Whether it ended because the context was full."""
        n_all = len(self.prompt.tokens) + len(self.completion.tokens)
        return self.reason == "length" and n_all >= self.model.n_ctx

    @property
    def timings(self) -> dict[str, Any]:
        """The counters, with the names of llama.cpp's server besides ours."""
        timings = self.completion.timings.as_dict()
        if self.n_own is not None and (n_more := timings["reused_n"] - self.n_own) > 0:
            timings["reused_n"], timings["prompt_n"] = self.n_own, timings["prompt_n"] + n_more
            seconds = timings["prompt_ms"] / 1000
            timings["prompt_per_second"] = timings["prompt_n"] / seconds if seconds else 0.0
        return timings | {
            "cache_n": timings["reused_n"],
            "queue_ms": self._stream.queue_ms,
            "first_token_ms": None if self.first_s is None else 1000 * self.first_s,
            "messages_left_out": self.prompt.n_left_out,
            "context_full": self.is_full,
            "notices": self.prompt.notices,
            "seed": self.completion.seed,
        }

    @property
    def n_thought(self) -> int:
        """Tokens of its thinking, tags included."""
        return self._n_first if self.thinking else 0

    async def begun(self) -> None:
        """Waits until the engine has taken the request up."""
        await self._in_time(self._stream.started())

    async def _in_time(self, awaitable: Awaitable[T]) -> T:
        """Waits for the engine, at most until the request's time is over: ApiError."""
        left = None if self._deadline is None else max(0.0, self._deadline - time.perf_counter())
        try:
            async with asyncio.timeout(left):  # wait_for may lose a cancellation until 3.12
                return await awaitable
        except TimeoutError:
            self._stream.cancel()
            raise ApiError(504, "the request took longer than this server allows", code="timeout") from None

    async def __aiter__(self) -> AsyncIterator[Delta]:
        chunks = aiter(self._stream)
        while True:
            try:
                chunk = await self._in_time(anext(chunks))
            except StopAsyncIteration:
                if self._stream.completion().finish_reason == "cancelled":  # by us: never a success
                    raise ApiError(
                        503,
                        "the server ended this answer before it was complete: the client read too slowly, or "
                        "the server is stopping",
                        code="cancelled",
                    ) from None
                return
            if self.first_s is None:
                self.first_s = time.perf_counter() - self.started
            pieces = self._reader.read(chunk)
            if chunk.finish_reason is not None:
                pieces += self._reader.finish(self._stream.completion().text, chunk.finish_reason)
            delta = self._delta(pieces, is_last=chunk.finish_reason is not None)
            is_eog = self.model.engine.engine.native.is_eog  # such a token is no text
            delta.logprobs = [one for one in chunk.logprobs if not is_eog(one.token)]
            delta.tokens, delta.live = chunk.tokens, self._stream.live
            self.logprobs += delta.logprobs
            if not (self.content or self.calls):  # a piece is of one token, a tag is none
                thoughts = [piece.is_thinking for piece in pieces] or [True]
                self._n_first += round(len(chunk.tokens) * sum(thoughts) / len(thoughts))
            for part in delta.parts:
                self.add(part)
            yield delta

    def _delta(self, pieces: list[Piece], is_last: bool) -> Delta:
        delta = Delta(pieces=pieces)
        if thinking := "".join(piece.text for piece in pieces if piece.is_thinking):
            delta.add(("thinking", thinking))
        text = "".join(piece.text for piece in pieces if not piece.is_thinking)
        found: list[str | ToolCall] = [text] if text else []
        if self._tools is not None:
            found = self._tools.feed(text) + (self._tools.finish() if is_last else [])
        for part in found:
            if isinstance(part, ToolCall):
                delta.add(("call", part if part.id else replace(part, id=f"call_{uuid.uuid4().hex[:8]}")))
            elif part:
                delta.add(("content", part))
        return delta


Step = Literal["begin", "more", "end", "last"]


async def steps(answer: Answer) -> AsyncIterator[tuple[Step, int, Part]]:
    """An answer in blocks: where one begins, what it is given next, and its end, with all of it; and its
    number. "last" is the end of the last one.
    """

    async def parts() -> AsyncIterator[Part]:
        async for delta in answer:
            for part in delta.parts:
                yield part
        for part in answer.blocks[len(answer.parts) :]:
            yield part

    made = Generated()
    async for part in parts():
        n = len(made.parts)
        made.add(part)
        if len(made.parts) > n:
            if n:
                yield "end", n - 1, made.parts[n - 1]
            yield "begin", n, part
        yield "more", len(made.parts) - 1, part
    yield "last", len(made.parts) - 1, made.parts[-1]


def leased(request: HttpRequest, ask: Ask) -> AbstractAsyncContextManager[Lease]:
    """The model that is asked for, loaded."""
    return server_of(request).use(
        ask.model,
        n_ctx=ask.n_ctx,
        keep_alive_s=ask.keep_alive_s,
        is_queued=request.method == "POST",  # whoever watches a busy server is not a part of its queue
        lora=ask.lora,
    )


@asynccontextmanager
async def open_answer(request: HttpRequest, ask: Ask) -> AsyncIterator[Answer]:
    """Starts an answer; leaving the block ends it. Raises what refuses the request."""
    asked, request_s = time.perf_counter(), server_of(request).config.request_s
    deadline = asked + request_s if request_s > 0 else None
    async with leased(request, ask) as lease:
        if lease.model.engine.engine.only_embeds:
            raise ApiError(
                400,
                f"'{ask.model}' is an embedding model and generates no text; /api/embed and /v1/embeddings "
                "have its vectors",
            )
        made = await prepare(request, lease.model, ask, partial(prepared, ask=ask))
        stream = lease.model.engine.stream(made.request, watch=ask.show_drafts)
        async with stream:
            lease.end_late = stream.end_late
            answer = Answer(lease.model, ask, made, stream, deadline)
            answer.started = asked
            answer.load_ms, lease.model.load_ms = lease.model.load_ms, 0.0
            if len(server_of(request).config.keys) > 1:
                answer.n_own = lease.model.texts.add(owner_of(request), answer.prompt.tokens)
            await stream.started(_PATIENCE_S)
            try:
                yield answer
            finally:
                _count(answer, request)


async def respond(
    request: HttpRequest,
    asks: Sequence[Ask],
    is_streamed: bool,
    one: Callable[[Answer, int], Any],
    parts: Callable[[Answer, int], AsyncIterator[bytes]],
    whole: Callable[..., Any] = lambda answers, made: made[0] if len(made) == 1 else made,
    end: Callable[[Sequence[Answer]], bytes] = lambda answers: b"",
    media_type: str = "text/event-stream",
) -> Response:
    """Answers side by side, as the client wants them: the `parts` of each, by its index, as they come and
    then the `end`, or the `whole` of what `one` makes of each. So many are begun at a time as a model has
    slots; the requests of others come in between. Raises ApiError for more than a model's queue holds.
    """
    config = server_of(request).config
    n_at_once, n_max = config.n_parallel, config.n_answers
    if len(asks) > n_max:
        raise ApiError(400, f"one request asks for {len(asks)} answers, at most {n_max} are allowed")
    slots, answers, made = asyncio.Semaphore(n_at_once), dict[int, Answer](), dict[int, Any]()

    async def part(index: int) -> AsyncGenerator[bytes, None]:
        async with slots, open_answer(request, asks[index]) as answer:
            answers[index] = answer
            yield b""
            if is_streamed:
                async for data in parts(answer, index):
                    yield data
            else:
                async for _ in answer:
                    pass
                made[index] = one(answer, index)

    def ordered(found: Mapping[int, T]) -> list[T]:
        return [found[index] for index in range(len(asks))]

    parts_of_all = _merged(list(map(part, range(len(asks)))), lambda: end(ordered(answers)))
    return await live(
        request,
        parts_of_all,
        lambda n_parts: len(answers) >= min(n_at_once, len(asks)),  # what refuses one of these has a status
        None if is_streamed else lambda: whole(ordered(answers), ordered(made)),
        media_type,
    )


async def _merged(
    streams: Sequence[AsyncGenerator[bytes, None]], end: Callable[[], bytes]
) -> AsyncGenerator[bytes, None]:
    """What comes, from whichever it comes, and then the end of all."""
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


async def prepare(request: HttpRequest, model: LoadedModel, ask: Ask, work: Callable[[LoadedModel], T]) -> T:
    """What `work` makes of a request, in a thread, where it waits only for those of its kind: a short one
    not for long ones, nor one without images for those with some.
    """
    n_bytes = getattr(request.state, "n_body", 0)
    lane: Lane = "long" if n_bytes > _SHORT else "short"
    asked = ask.generation
    has_form = asked.json_schema or asked.response_format or asked.options.get("grammar")
    messages: Any = asked.messages or ()
    if any(message.images for message in messages):
        lane = "images"
    elif asked.template or (n_bytes > _SHORT_FORM and has_form):
        lane = "long"
    return await model.engine.prepare(work, model, lane=lane)


async def of_model(request: HttpRequest, ask: Ask, work: Callable[[LoadedModel], T]) -> T:
    """What `work` makes, in a thread, of the model that is named, or of the server's own."""

    async def run() -> T:
        async with leased(request, ask) as lease:
            return await prepare(request, lease.model, ask, work)

    return await while_there(request.receive, run())


async def n_prompt_tokens(request: HttpRequest, ask: Ask) -> int:
    """Tokens of a request's whole prompt."""
    whole = replace(ask.generation, truncate=False)

    return await of_model(request, ask, lambda model: len(model.engine.engine.shared.prompt(whole).tokens))


def prepared(model: LoadedModel, ask: Ask) -> Prepared:
    """Prepares the generation, with the seed of this answer. Blocks: runs in a preparing thread."""
    asked = ask.generation
    seed = asked.options.get("seed", model.engine.engine.sampling.seed)
    if ask.choice and seed not in SamplingOptions.RANDOM_SEEDS:  # those that are drawn differ anyway
        seed = SamplingOptions.fixed_seed(seed + ask.choice)
        asked = replace(asked, options={**asked.options, "seed": seed})
    if ask.may_call:
        asked = _with_calls(model, asked)
    request = model.engine.prepared(asked)
    chat, prompt = request.chat, request.prompt
    if ask.must_think and chat.tags is None:
        raise ApiError(400, f"{model.name!r} does not support thinking: its template has no place for it")
    if asked.messages is None:
        return Prepared(request, AnswerReader(model.engine.engine.vocabulary.token_to_piece), None)
    return Prepared(request, chat.reader(prompt), chat.tool_reader(prompt))


def _with_calls(model: LoadedModel, asked: GenerationRequest) -> GenerationRequest:
    """The request with a grammar that also allows calls: in the model's own form, and as bare JSON."""
    names = {"enum": [tool["function"]["name"] for tool in asked.tools]}
    form = {"$id": "form", **(asked.json_schema or {"type": "object"})}  # type: ignore[dict-item]
    bare = [
        {"type": "object", "properties": {"name": names, key: {"type": "object"}}, "required": ["name", key]}
        for key in ("arguments", "parameters")
    ]
    template = model.chat.template
    forms = (*template.calls, *(() if template.takes.tools else (HERMES,)))
    opens = {one.open for one in forms if one.open}  # without a mark, a call is bare
    grammar = resolve_grammar(json_schema={"anyOf": [form, *bare]})
    assert grammar is not None
    if opens:
        calls = " | ".join(json.dumps(text, ensure_ascii=False) for text in sorted(opens))
        text = re.sub("^start:", "form_or_bare:", grammar, count=1, flags=re.MULTILINE)
        grammar = Lark(f"{text}start: form_or_bare | ({calls}) /[^\\x00]*/\n")
    return replace(asked, json_schema=None, response_format=None, grammar=grammar)


def _count(answer: Answer, request: HttpRequest) -> None:
    metrics = server_of(request).metrics
    try:
        timings, reason = answer.timings, answer.reason
    except ValueError:  # it never had a place
        metrics.add("generations_total", model=answer.model.name, reason="cancelled")
        return
    if answer.n_own is not None:
        text = [*answer.prompt.tokens, *answer.completion.tokens]
        answer.model.texts.add(owner_of(request), text)
    metrics.count(answer.model.name, timings, reason, time.perf_counter() - answer.started)
    note_answer(request.scope, answer.model.name, timings)


def logprob_list(answer: Answer, logprobs: list[TokenLogprob]) -> list[dict[str, Any]]:
    """Log-probabilities in the form that Ollama and OpenAI share."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        data = answer.model.engine.engine.token_to_piece(token, special=True)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    n_top = answer.ask.n_top or 0
    return [
        one(entry.token, entry.logprob) | {"top_logprobs": [one(*top) for top in entry.top[:n_top]]}
        for entry in logprobs
    ]
