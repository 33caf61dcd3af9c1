# SPDX-License-Identifier: MIT
"""llama-server's own endpoints: completions and infill, tokens, templates, properties, slots.

Fields and forms: ggml-org/llama.cpp: tools/server/README.md, server-task.cpp, server-context.cpp. Fields that
nothing here answers to are ignored, as there; docs/serve.md has the differences.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.engine.infill import Infill
from eaglecpp.errors import ContextFullError
from eaglecpp.limits import JSON_VALUES
from eaglecpp.options import SamplingOptions, describe
from eaglecpp.results import Timings
from eaglecpp.server.answer import Answer, Ask, Delta, logprob_list, make_sampling, open_answer
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import (
    LiveResponse,
    field,
    json_response,
    read_json,
    sse,
    while_there,
)
from eaglecpp.server.llama_request import (
    DEFAULTS,
    SAMPLERS,
    LineLimits,
    is_prompt,
    read_ask,
    read_biases,
    read_prompts,
    tokens_of,
)
from eaglecpp.server.openai import read_effort, read_message, read_tools

if TYPE_CHECKING:
    from eaglecpp.engine.async_stream import Task
    from eaglecpp.engine.vocabulary import Vocabulary
    from eaglecpp.server.loaded import LoadedModel
    from eaglecpp.server.models import Server

__all__ = [
    "apply_template",
    "completion",
    "detokenize",
    "infill",
    "props",
    "refuse_changes",
    "slots",
    "tokenize",
]

T = TypeVar("T")


async def completion(request: Request) -> Response:
    """`POST /completion`: a prompt without a template, or several, which are answered side by side."""
    body = await read_json(request)
    ask, prompts = read_ask(body), read_prompts(body.get("prompt"))

    def work(model: LoadedModel) -> list[Ask]:
        vocabulary = model.engine.engine.vocabulary
        sampling = {**ask.sampling, **read_biases(body, vocabulary)}
        return [replace(ask, tokens=tokens_of(vocabulary, prompt), sampling=sampling) for prompt in prompts]

    return await _answered(request, body, await _of_model(request, body, work))


async def infill(request: Request) -> Response:
    """`POST /infill`: what goes between `input_prefix` and `input_suffix`."""
    body = await read_json(request)
    texts = [field(body, name, str) for name in ("input_prefix", "input_suffix")]
    if None in texts:
        raise ApiError(400, 'expected "input_prefix" and "input_suffix"')
    extra = []
    for index, chunk in enumerate(field(body, "input_extra", list, [])):
        if not isinstance(chunk, dict) or not isinstance(chunk.get("text"), str):
            raise ApiError(400, f'input_extra[{index}]: expected {{"filename": text, "text": text}}')
        extra.append((field(chunk, "filename", str, "tmp"), chunk["text"]))
    ask = read_ask(body)
    ask.infill = Infill(texts[0], texts[1], extra, field(body, "prompt", str, ""))

    def work(model: LoadedModel) -> list[Ask]:
        return [replace(ask, sampling={**ask.sampling, **read_biases(body, model.engine.engine.vocabulary)})]

    return await _answered(request, body, await _of_model(request, body, work))


async def tokenize(request: Request) -> Response:
    """`POST /tokenize`."""
    body = await read_json(request)
    content = body.get("content", "")
    if not is_prompt(content) and content != []:
        raise ApiError(400, "content must be a text, or a list of texts and token ids")
    begins, special = field(body, "add_special", bool, False), field(body, "parse_special", bool, True)
    with_pieces = field(body, "with_pieces", bool, False)

    def work(model: LoadedModel) -> Response:
        vocabulary = model.engine.engine.vocabulary
        try:
            tokens = tokens_of(vocabulary, content, begins, special, JSON_VALUES) if content else []
        except ContextFullError:
            raise ApiError(413, f"the text has more than {JSON_VALUES - 1} tokens") from None
        told = [_piece(vocabulary, token) for token in tokens] if with_pieces else tokens
        return json_response({"tokens": told})

    return await _of_model(request, body, work)


async def detokenize(request: Request) -> Response:
    """`POST /detokenize`."""
    body = await read_json(request)
    tokens = field(body, "tokens", list, [])

    def work(model: LoadedModel) -> Response:
        vocabulary = model.engine.engine.vocabulary
        pieces = [vocabulary.token_to_piece(token, special=True) for token in vocabulary.checked(tokens)]
        return json_response({"content": b"".join(pieces).decode("utf-8", "replace")})

    return await _of_model(request, body, work)


async def apply_template(request: Request) -> Response:
    """`POST /apply-template`: the text that `/v1/chat/completions` makes of messages."""
    body = await read_json(request)
    messages = [
        read_message(entry, f"messages[{i}]") for i, entry in enumerate(field(body, "messages", list, []))
    ]
    if not messages:
        raise ApiError(400, "messages must be a list of at least one message")
    tools, think = read_tools(body.get("tools")), read_effort(body)

    def work(model: LoadedModel) -> str:
        chat = model.chat
        turns = chat.conversation(messages).prompt()
        return chat.render(turns, tools=tools, think=chat.thinking(think, has_form=False)).text

    return json_response({"prompt": await _of_model(request, body, work)})


async def props(request: Request) -> Response:
    """`GET /props`; `?model=` where the server has several."""

    def work(model: LoadedModel) -> dict[str, Any]:
        bos, eos = model.engine.engine.vocabulary.border_texts
        sampling = make_sampling(model, {}, {}, Ask("", defaults=DEFAULTS))
        return {
            "default_generation_settings": {
                "params": _settings(sampling, sampling.seed if sampling.seed is not None else -1),
                "n_ctx": model.n_ctx,
            },
            "total_slots": len(model.engine.places),
            "model_alias": model.name,
            "model_path": str(model.source.found.target),
            "modalities": {"vision": False, "audio": False, "video": False},
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "chat_template": model.chat.template.text,
            "bos_token": bos,
            "eos_token": eos,
            "build_info": f"eaglecpp {version('eaglecpp')}",
            "is_sleeping": False,
        }

    return json_response(await _of_model(request, request.query_params, work))


async def slots(request: Request) -> Response:
    """`GET /slots`: the conversations of a model; `?model=` where the server has several."""

    def work(model: LoadedModel) -> list[dict[str, Any]]:
        return [_slot(model, i, *place) for i, place in enumerate(model.engine.places)]

    found = await _of_model(request, request.query_params, work)
    if request.query_params.get("fail_on_no_slot") and all(slot["is_processing"] for slot in found):
        raise ApiError(503, "no slot available")
    return json_response(found)


async def refuse_changes(request: Request) -> Response:
    """`POST /props`, `POST /slots/{id}`."""
    raise ApiError(501, f"POST {request.url.path} is not supported: nothing can be changed there")


async def _answered(request: Request, body: Mapping[str, Any], asks: Sequence[Ask]) -> Response:
    server: Server = request.app.state.server
    n_each = field(body, "n_cmpl", int) or field(body, "n", int, 1)
    if not 1 <= n_each <= server.config.n_parallel:
        raise ApiError(400, f"n_cmpl must be between 1 and {server.config.n_parallel}, found {n_each}")
    n_indent, most_ms = field(body, "n_indent", int, 0), field(body, "t_max_predict_ms", float, 0.0)
    asks = [_nth(ask, i) for ask in asks for i in range(n_each)]
    for ask in asks:
        if n_indent > 0 or most_ms > 0:
            ask.stop_when = lambda model: LineLimits(model, n_indent, most_ms)
    fields = field(body, "response_fields", list, [])
    is_told = field(body, "return_tokens", bool, False)
    is_streamed = field(body, "stream", bool, False)

    def last(answer: Answer, index: int, **rest: Any) -> dict[str, Any]:
        out = {"index": index, **rest, "stop": True, **_last(answer, is_streamed)}
        return _picked(out, fields) if fields else out

    def whole(answer: Answer, index: int) -> dict[str, Any]:
        text, tokens, limits = answer.completion.text, answer.completion.tokens, answer.request.stop_when
        if isinstance(limits, LineLimits) and limits.n_kept is not None:
            text = text.encode()[: limits.n_kept].decode("utf-8", "ignore")
        rest = (
            {}
            if answer.ask.n_probs is None
            else {"completion_probabilities": _probs(answer, answer.logprobs)}
        )
        return last(answer, index, content=text, tokens=tokens if is_told else [], **rest)

    async def parts(answer: Answer, index: int) -> AsyncIterator[bytes]:
        n_tokens = 0
        async for delta in answer:
            n_tokens += len(delta.tokens)
            if delta.tokens:
                yield sse({"index": index, **_part(answer, delta, n_tokens)})
        yield sse(last(answer, index, content="", tokens=[]))

    async with AsyncExitStack() as stack:
        opened = [open_answer(server.pool, ask, server.config.request_s) for ask in asks]
        answers = await while_there(request, _all(stack.enter_async_context(one) for one in opened))
        if is_streamed:
            streams = [parts(answer, index) for index, answer in enumerate(answers)]
            return LiveResponse(_merged(streams), stack.pop_all(), "text/event-stream")
        await while_there(request, _all(answer.whole() for answer in answers))
        told = [whole(answer, index) for index, answer in enumerate(answers)]
        return json_response(told[0] if len(told) == 1 else told)
    raise AssertionError


def _nth(ask: Ask, index: int) -> Ask:
    """The same request for the answer of that number to one prompt; each has a seed of its own."""
    seed = ask.options.get("seed")
    if index and type(seed) is int and seed not in SamplingOptions.RANDOM_SEEDS:
        return replace(ask, options={**ask.options, "seed": seed + index})
    return replace(ask)


async def _all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; the first error ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _merged(streams: Sequence[AsyncIterator[bytes]]) -> AsyncIterator[bytes]:
    """What comes, from whichever it comes."""
    awaited = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while awaited:
            done, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = awaited.pop(task)
                try:
                    yield task.result()
                except StopAsyncIteration:
                    continue
                awaited[asyncio.ensure_future(anext(stream))] = stream
    finally:
        for task in awaited:
            task.cancel()
        await asyncio.gather(*awaited, return_exceptions=True)


def _part(answer: Answer, delta: Delta, n_tokens: int) -> dict[str, Any]:
    """What a round gave: one token, or more where drafts were accepted."""
    out: dict[str, Any] = {
        "content": delta.thinking + delta.content,
        "tokens": delta.tokens,
        "stop": False,
        "id_slot": answer.place,
        "tokens_predicted": n_tokens,
        "tokens_evaluated": len(answer.prompt.tokens),
    }
    if answer.ask.show_drafts:
        out["timings"] = Timings.from_raw(delta.live).as_dict()
    if answer.ask.n_probs is not None:
        out["completion_probabilities"] = _probs(answer, delta.logprobs)
    return out


def _last(answer: Answer, is_streamed: bool) -> dict[str, Any]:
    """What the end of an answer says of all of it."""
    completion, prompt = answer.completion, answer.prompt.tokens
    n_all = len(prompt) + len(completion.tokens)
    engine = answer.model.engine.engine
    return {
        "id_slot": answer.place,
        "model": answer.ask.model,
        "tokens_predicted": len(completion.tokens),
        "tokens_evaluated": len(prompt),
        "generation_settings": _settings(answer.request.sampling, completion.seed, is_streamed),
        "prompt": engine.detokenize(prompt, special=True),
        "has_new_line": "\n" in completion.text,
        "truncated": completion.finish_reason == "length" and n_all >= engine.n_ctx,
        "stop_type": _stop_type(answer),
        "stopping_word": completion.stopped_by or "",
        "tokens_cached": max(len(prompt), n_all - 1),
        "timings": answer.timings,
    }


def _stop_type(answer: Answer) -> str:
    completion = answer.completion
    if completion.finish_reason != "stop":
        return "limit" if completion.finish_reason == "length" else "none"
    if completion.stopped_by is not None:
        return "word"
    is_end = answer.model.engine.engine.vocabulary.is_end
    return "eos" if completion.tokens and is_end(completion.tokens[-1]) else "limit"


def _settings(sampling: SamplingOptions, seed: int, is_streamed: bool = False) -> dict[str, Any]:
    """The options by llama.cpp's names, most of which are ours, too."""
    options = {option.name: getattr(sampling, option.name) for option in describe(sampling)}
    return options | {
        "seed": seed,
        "n_predict": sampling.max_tokens,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in sampling.logit_bias],
        "samplers": [*list(SAMPLERS)[:-1], *(["infill"] if sampling.infill else []), "temperature"],
        "stream": is_streamed,
    }


def _probs(answer: Answer, logprobs: Any) -> list[dict[str, Any]]:
    told = logprob_list(answer, logprobs)
    for entry, known in zip(told, logprobs, strict=True):
        entry["id"] = known.token
        for top, (token, _) in zip(entry["top_logprobs"], known.top, strict=False):
            top["id"] = token
    return told


def _picked(out: Mapping[str, Any], fields: Sequence[Any]) -> dict[str, Any]:
    """`response_fields`: some of an answer; a path such as `timings/predicted_n` reaches inside."""
    found: dict[str, Any] = {}
    for path in map(str, fields):
        value: Any = out
        for key in path.split("/"):
            value = value.get(key, found) if isinstance(value, Mapping) else found
        if value is not found:
            found[path] = value
    return found


def _slot(model: LoadedModel, number: int, n_tokens: int, task: Task | None) -> dict[str, Any]:
    out = {
        "id": number,
        "n_ctx": model.n_ctx,
        "speculative": model.engine.engine.has_draft,
        "is_processing": task is not None,
        "n_prompt_tokens": n_tokens,
    }
    if task is None:
        return out
    n_decoded = 0 if task.stream is None else task.stream.n_tokens
    sampling, limit = task.request.sampling, task.request.sampling.max_tokens
    n_left = -1 if limit < 0 else max(0, limit - n_decoded)
    return out | {
        "params": _settings(sampling, task.request.seed),
        "next_token": [{"has_next_token": True, "n_remain": n_left, "n_decoded": n_decoded}],
    }


def _piece(vocabulary: Vocabulary, token: int) -> dict[str, Any]:
    data = vocabulary.token_to_piece(token, special=True)
    try:
        return {"id": token, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(data)}


async def _of_model(request: Request, named: Mapping[str, Any], work: Callable[[LoadedModel], T]) -> T:
    """What `work` makes, in a thread, of the model that is named, or of the server's own."""
    server: Server = request.app.state.server
    async with server.pool.use(field(named, "model", str, "")) as lease:
        return await asyncio.to_thread(work, lease.model)
