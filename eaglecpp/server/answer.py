# SPDX-License-Identifier: MIT
"""From a checked request to a running answer: `Ask` in, `Delta`s out, the same for every API.

`open_answer` does everything that can refuse a request: it loads the model, renders and tokenizes the prompt,
checks that it fits, starts the generation and waits briefly for the engine to accept it. Only then does an
API send its status. `Answer` splits the text into answer, thinking and tool calls as it streams.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.chat.model import ChatPrompt, answer_room
from eaglecpp.chat.template import Rendered
from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.errors import ContextFullError
from eaglecpp.modelfile.parameters import PARAMETERS, ParameterError, from_json
from eaglecpp.modelfile.parameters import engine_options as parameter_options
from eaglecpp.options import SamplingOptions, describe
from eaglecpp.server.errors import ApiError
from eaglecpp.server.loaded import LoadedModel

if TYPE_CHECKING:
    from eaglecpp.chat.reader import Piece
    from eaglecpp.engine.async_stream import AsyncStream
    from eaglecpp.engine.infill import Infill
    from eaglecpp.engine.request import Request
    from eaglecpp.results import Completion, TokenLogprob
    from eaglecpp.server.models import Lease, ModelPool, Slot

__all__ = ["Answer", "Ask", "Delta", "logprob_list", "make_prompt", "make_sampling", "open_answer"]

_PATIENCE_S = 1.0  # of a status that waits for the engine to take the request up; clients give up after 30 s
_FIELDS = {option.name for option in describe(SamplingOptions)} - {"grammar", "n_probs", "logit_bias"}


@dataclass
class Ask:
    """One request, in no API's words.

    messages, text or infill: a conversation, a prompt without a template (tokens: the same, tokenized), or a
               gap between two texts
    template:  in place of the model's own
    defaults:  parameters that the model's own stand over
    options:   parameters by Ollama's names, or fields of `SamplingOptions`; these stand over the model's own
    format:    None, "json", or a JSON schema
    tools, must_call: the tools there are; the names one of which must be called, () = as the model likes
    n_probs:   likeliest tokens to tell of each; None = no log-probabilities
    truncate:  leave out the oldest messages where a conversation does not fit, or what is far from a gap
    cache_prompt: go on from what the caches hold of the prompt
    stop_when: makes of the model what ends the answer, from the tokens so far
    draft:     False = no drafts; strategy, exact: as on the command line
    """

    model: str
    messages: Sequence[Message] = ()
    text: str | None = None
    infill: Infill | None = None
    template: str | None = None
    tokens: Sequence[int] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    format: Any = None
    tools: Sequence[Mapping[str, Any]] = ()
    must_call: Sequence[str] = ()
    think: bool | str | None = None
    n_probs: int | None = None
    truncate: bool = True
    cache_prompt: bool = True
    stop_when: Callable[[LoadedModel], Callable[[list[int]], bool]] | None = None
    keep_alive_s: float | None = None
    draft: bool = True
    strategy: str | None = None
    exact: str | None = None
    show_drafts: bool = False


@dataclass
class Delta:
    """What one round gave. pieces: the same text with who wrote it, for the page."""

    content: str = ""
    thinking: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    live: dict[str, Any] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.thinking or self.calls)


class Answer:
    """A running answer. Iterate for deltas; afterwards the properties have the whole.

    slot: the model and how it was loaded; prompt: what it was asked
    """

    def __init__(
        self, slot: Slot, ask: Ask, prompt: ChatPrompt, stream: AsyncStream, deadline: float | None
    ) -> None:
        self.slot = slot
        self.ask = ask
        self.prompt = prompt
        self.content = ""
        self.thinking = ""
        self.calls: list[ToolCall] = []
        self.logprobs: list[TokenLogprob] = []
        self.first_s: float | None = None
        self.started = time.perf_counter()
        self.load_ms = 0.0  # of the model, where this request had to wait for that
        self._stream = stream
        self._deadline = deadline
        chat = slot.model.chat.with_template(ask.template)
        self._reader, self._tools = chat.reader(prompt), chat.tool_reader(prompt.tools)

    @property
    def model(self) -> LoadedModel:
        return self.slot.model

    @property
    def completion(self) -> Completion:
        return self._stream.completion()

    @property
    def request(self) -> Request:
        """What the engine was asked for."""
        return self._stream.request

    @property
    def place(self) -> int:
        """The number of the conversation it runs in, -1 while it waits for one."""
        return self._stream.place_number

    @property
    def reason(self) -> str:
        """Why it ended: "stop", "length", "tool_calls" or "cancelled"."""
        reason = self.completion.finish_reason
        return "tool_calls" if self.calls and reason == "stop" else reason

    @property
    def timings(self) -> dict[str, Any]:
        """The counters, with the names of llama.cpp's server besides ours."""
        timings = self.completion.timings.as_dict()
        n, n_prompt = timings["predicted_n"], timings["prompt_n"]
        return timings | {
            "cache_n": timings["reused_n"],
            "prompt_per_token_ms": timings["prompt_ms"] / n_prompt if n_prompt else 0.0,
            "predicted_per_token_ms": timings["predicted_ms"] / n if n else 0.0,
            "queue_ms": self._stream.queue_ms,
            "first_token_ms": None if self.first_s is None else 1000 * self.first_s,
            "messages_left_out": self.prompt.n_left_out,
            "seed": self.completion.seed,
        }

    async def __aiter__(self) -> AsyncIterator[Delta]:
        chunks = aiter(self._stream)
        while True:
            try:
                left = None if self._deadline is None else max(0.0, self._deadline - time.perf_counter())
                async with asyncio.timeout(left):  # wait_for may lose a cancellation until 3.12
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError:
                self._stream.cancel()
                raise ApiError(
                    504, "the request took longer than this server allows", code="timeout"
                ) from None
            if self.first_s is None:
                self.first_s = time.perf_counter() - self.started
            pieces = self._reader.read(chunk)
            if chunk.finish_reason is not None:
                pieces += self._reader.finish(self._stream.completion().text)
            delta = self._delta(pieces, is_last=chunk.finish_reason is not None)
            delta.logprobs, delta.tokens = self._shown(chunk.logprobs), chunk.tokens
            delta.live = self._stream.live
            self.logprobs += delta.logprobs
            yield delta

    async def whole(self) -> None:
        """Reads it to the end."""
        async for _ in self:
            pass

    def _delta(self, pieces: list[Piece], is_last: bool) -> Delta:
        delta = Delta(pieces=pieces)
        delta.thinking = "".join(piece.text for piece in pieces if piece.is_thinking)
        text = "".join(piece.text for piece in pieces if not piece.is_thinking)
        found: list[str | ToolCall] = [text] if text else []
        if self._tools is not None:
            found = self._tools.feed(text) + (self._tools.finish() if is_last else [])
        for part in found:
            if isinstance(part, str):
                delta.content += part
            else:
                delta.calls.append(part if part.id else replace(part, id=f"call_{uuid.uuid4().hex[:8]}"))
        self.thinking += delta.thinking
        self.content += delta.content
        self.calls += delta.calls
        return delta

    def _shown(self, logprobs: Sequence[TokenLogprob]) -> list[TokenLogprob]:
        """Those of tokens that are text."""
        is_eog = self.model.engine.engine.native.is_eog
        return [one for one in logprobs if not is_eog(one.token)]


@asynccontextmanager
async def open_answer(pool: ModelPool, ask: Ask, request_s: float = 0.0) -> AsyncIterator[Answer]:
    """Starts an answer; leaving the block ends it. Raises what refuses the request."""
    asked = time.perf_counter()
    parameters, fields = _parameters(ask)
    n_ctx = int(parameters.get("num_ctx") or 0)
    async with pool.use(ask.model, n_ctx=n_ctx, keep_alive_s=ask.keep_alive_s) as lease:
        if lease.model.engine.engine.only_embeds:
            raise ApiError(
                400,
                f"'{ask.model}' is an embedding model and generates no text; /api/embed and /v1/embeddings "
                "have its vectors",
            )
        sampling = await asyncio.to_thread(make_sampling, lease.model, parameters, fields, ask)
        prompt = await _fitting_prompt(pool, lease, ask, n_ctx, sampling.max_tokens)
        model = lease.model
        ask.model = model.answers_as(ask.model)
        strategy = model.wanted("off" if not ask.draft else ask.strategy)
        request = await asyncio.to_thread(
            model.engine.request,
            prompt.tokens,
            sampling=sampling,
            strategy=strategy,
            cache_prompt=ask.cache_prompt,
            stop_when=None if ask.stop_when is None else ask.stop_when(model),
            **_exact(ask),
        )
        stream = model.engine.stream(request, watch=ask.show_drafts)
        async with stream:
            assert lease.slot is not None
            answer = Answer(lease.slot, ask, prompt, stream, asked + request_s if request_s > 0 else None)
            answer.started = asked
            answer.load_ms, lease.slot.load_ms = lease.slot.load_ms, 0.0
            await stream.started(_PATIENCE_S)
            try:
                yield answer
            finally:
                _count(pool, answer)


def _exact(ask: Ask) -> dict[str, Any]:
    return {} if ask.exact is None else {"exact": ask.exact}


def _count(pool: ModelPool, answer: Answer) -> None:
    try:
        timings, reason = answer.timings, answer.reason
    except ValueError:  # it never had a place
        pool.metrics.ended.add(1, model=answer.model.name, reason="cancelled")
        return
    pool.metrics.count(answer.model.name, timings, reason)
    pool.metrics.queue_s.observe(timings["queue_ms"] / 1000)
    if answer.first_s is not None:
        pool.metrics.first_s.observe(answer.first_s)
    pool.metrics.total_s.observe(time.perf_counter() - answer.started)


async def _fitting_prompt(pool: ModelPool, lease: Lease, ask: Ask, n_ctx: int, max_tokens: int) -> ChatPrompt:
    """The prompt; the model is opened again with a longer context only where one was asked for and the
    prompt, with the answer's own limit, needs it.
    """
    n_room = max_tokens if max_tokens > 0 else 1
    n_wanted = min(n_ctx, lease.model.engine.engine.native.n_ctx_train or n_ctx)
    if n_wanted > lease.model.n_ctx and await asyncio.to_thread(_needs, lease.model, ask, n_room):
        await pool.enlarge(lease, n_wanted)
    return await asyncio.to_thread(make_prompt, lease.model, ask, max_tokens)


def _needs(model: LoadedModel, ask: Ask, n_room: int) -> bool:
    """Whether all of the prompt and an answer of n_room tokens need more than the model's context."""
    try:
        return len(make_prompt(model, replace(ask, truncate=False)).tokens) + n_room > model.n_ctx
    except ContextFullError:
        return True


def make_prompt(model: LoadedModel, ask: Ask, max_tokens: int = 1) -> ChatPrompt:
    """What the model reads. Raises ContextFullError where it may not be truncated, or that does not help."""
    if ask.infill is not None:
        room = answer_room(max_tokens, model.n_ctx)
        return model.chat.with_template(ask.template).infill(
            ask.infill, model.n_ctx - room if ask.truncate else 0
        )
    given = ask.text if ask.tokens is None else ask.tokens
    if given is not None:
        tokens = model.engine.engine.vocabulary.prompt_tokens(given, has_to_fit=True)
        return ChatPrompt(Rendered(ask.text or "", has_bos=False), tokens)
    chat = model.chat.with_template(ask.template)
    conversation = chat.conversation(ask.messages)
    think = chat.thinking(ask.think, has_form=ask.format is not None or bool(ask.must_call))
    if not ask.truncate:
        return chat.prompt(conversation.prompt(), n_ctx=model.n_ctx, tools=ask.tools, think=think)
    return chat.fitting(conversation, n_ctx=model.n_ctx, max_tokens=max_tokens, tools=ask.tools, think=think)


def _parameters(ask: Ask) -> tuple[dict[str, Any], dict[str, Any]]:
    """The request's options: parameters of Ollama's, and fields of ours. Others are ignored, as in Ollama."""
    parameters: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for name, value in ask.options.items():
        if value is None:
            continue
        if name in PARAMETERS:
            try:
                parameters[name] = from_json(name, value)
            except (ParameterError, OverflowError) as error:
                raise ApiError(400, str(error), param=name) from None
        elif name in _FIELDS:
            fields[name] = value
    return parameters, fields


def make_sampling(
    model: LoadedModel, parameters: Mapping[str, Any], fields: Mapping[str, Any], ask: Ask
) -> SamplingOptions:
    """The options of an answer: the request's, over those of the model. Raises ApiError."""
    own = model.source.modelfile
    options = parameter_options({**ask.defaults, **own.parameters, **parameters}) | own.settings.options
    # what the request says stands over a pragma of the model's author
    options |= {PARAMETERS[name].option: PARAMETERS[name].fitted(value) for name, value in parameters.items()}
    merged = {
        name.removeprefix("sampling."): value
        for name, value in options.items()
        if name.startswith("sampling.")
    }
    merged |= {**fields, **ask.sampling}
    grammar = _grammar(ask)
    if grammar is not None:
        merged["grammar"] = grammar
    if ask.n_probs is not None:
        merged["n_probs"] = max(1, ask.n_probs)
    try:
        return SamplingOptions(**merged)
    except (TypeError, ValueError) as error:
        raise ApiError(400, str(error)) from None


def _grammar(ask: Ask) -> str | None:
    if ask.must_call:
        return resolve_grammar(json_schema=_call_schema(ask))
    if ask.format in (None, ""):
        return None
    if ask.format == "json":
        return resolve_grammar(response_format={"type": "json_object"})
    if not isinstance(ask.format, Mapping):
        raise ApiError(
            400, f'invalid format: {json.dumps(ask.format)[:80]}; expected "json" or a JSON schema'
        )
    return resolve_grammar(json_schema=ask.format)


def _call_schema(ask: Ask) -> dict[str, Any]:
    """A call of one of the tools that must be called, as the bare JSON that `ToolReader` understands."""
    forms = []
    for tool in ask.tools:
        function = tool.get("function", tool)
        if function.get("name") not in ask.must_call:
            continue
        arguments = function.get("parameters") or {"type": "object"}
        if isinstance(arguments, Mapping):  # its references mean the tool's own schema
            arguments = {"$id": function["name"], **arguments}
        forms.append(
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "arguments": arguments},
                "required": ["name", "arguments"],
            }
        )
    if not forms:
        raise ApiError(
            400, f"tool_choice names a tool that is not in this request: {', '.join(ask.must_call)}"
        )
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def logprob_list(answer: Answer, logprobs: list[TokenLogprob]) -> list[dict[str, Any]]:
    """Log-probabilities in the form that Ollama and OpenAI share."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        data = answer.model.engine.engine.token_to_piece(token, special=True)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    n_top = answer.ask.n_probs or 0
    return [
        one(entry.token, entry.logprob) | {"top_logprobs": [one(*top) for top in entry.top[:n_top]]}
        for entry in logprobs
    ]
