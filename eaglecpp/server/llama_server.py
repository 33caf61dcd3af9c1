# SPDX-License-Identifier: MIT
"""The requests that editors send to llama-server: completions and infill, tokens, properties.

Fields and forms: ggml-org/llama.cpp: tools/server/README.md, server-task.cpp. docs/serve.md lists the
supported fields; other fields are ignored, as in llama-server.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.engine.infill import Infill
from eaglecpp.errors import ContextFullError, UnsupportedError
from eaglecpp.limits import JSON_VALUES
from eaglecpp.opening.find import ModelFiles
from eaglecpp.options import SamplingOptions, describe
from eaglecpp.server.answer import Answer, ServedRequest, of_model, respond
from eaglecpp.server.bodies import Body, SampledBody, read, read_prompts, sampling_of
from eaglecpp.server.catalog import facts
from eaglecpp.server.errors import ApiError, FieldError
from eaglecpp.server.http import in_thread, json_response, sse, while_there
from eaglecpp.server.models import Key, LoadedModel, find_model, plan_model, server_of

ENDINGS = {"stop": "eos", "length": "limit", "tool_calls": "eos"}
_SAMPLERS: dict[str, dict[str, Any]] = {
    "penalties": {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
    "infill": {"infill": False},
}
"""llama.cpp's samplers by name. The value is the options that switch the sampler off."""


class CompletionBody(SampledBody, kw_only=True):
    """The body of `/completion`."""

    prompt: Any = None
    n_predict: int | None = None
    n_keep: int = -1
    json_schema: dict[str, Any] | None = None
    samplers: list[str] | None = None

    def generation(self, **fields: Any) -> ServedRequest:
        """Returns the body as a request for one prompt. Raises ApiError."""
        limits = (self.n_predict, self.max_tokens, -1)
        options = sampling_of(self, max_tokens=next(limit for limit in limits if limit is not None))
        if self.samplers is not None:
            for name, off in _SAMPLERS.items():
                options |= off if name not in self.samplers else {}
            options["infill"] = "infill" in self.samplers
        schema = self.json_schema
        if schema is not None and not options.get("grammar"):
            fields["json_schema"] = schema or {"type": "object"}
        return self.request(options, **fields)

    def requests(self, n_max: int) -> list[ServedRequest]:
        """Returns one request for each prompt. Raises ApiError, also for more than n_max prompts."""
        prompts = read_prompts(self.prompt, n_max=n_max)
        return [self.generation(prompt=prompt, n_keep=self.n_keep) for prompt in prompts]


class _Extra(msgspec.Struct):
    text: str
    filename: str = "tmp"


class _InfillBody(CompletionBody, kw_only=True):
    input_prefix: str
    input_suffix: str
    input_extra: list[_Extra] = []
    prompt: str = ""

    def wanted(self) -> ServedRequest:
        extra = [(file.filename, file.text) for file in self.input_extra]
        return self.generation(
            gap=Infill(self.input_prefix, self.input_suffix, extra, self.prompt), truncate=True
        )


async def completion(request: Request) -> Response:
    """`POST /completion`: answers one or more prompts without a template, concurrently."""
    body = await read(request, CompletionBody)
    return await _answered(
        request, body, await in_thread(request, body.requests, server_of(request).config.n_answers)
    )


async def infill(request: Request) -> Response:
    """`POST /infill`: answers with the text between `input_prefix` and `input_suffix`."""
    body = await read(request, _InfillBody)
    return await _answered(request, body, [body.wanted()])


async def _answered(request: Request, body: Body, wanted: Sequence[ServedRequest]) -> Response:

    async def parts(answer: Answer, index: int) -> AsyncIterator[bytes]:
        n_tokens = 0
        async for round in answer:
            n_tokens += len(round.tokens)
            if round.tokens:  # a round has more than one token if drafts were accepted
                part = {"index": index, "content": round.text, "tokens": round.tokens, "stop": False}
                counts = {"tokens_predicted": n_tokens, "tokens_evaluated": len(answer.prompt.tokens)}
                yield sse({**part, "id_slot": answer.stream.slot_number, **counts})
        yield sse({"index": index, "content": "", "tokens": [], **_last(answer)})

    def one(answer: Answer, index: int) -> dict[str, Any]:
        completion = answer.completion
        return {"index": index, "content": completion.text, "tokens": completion.tokens, **_last(answer)}

    return await respond(request, wanted, body.stream, one, parts)


def _last(answer: Answer) -> dict[str, Any]:
    """Returns the fields of an answer's last JSON object."""
    completion, prompt = answer.completion, answer.prompt.tokens
    n_all, ending = len(prompt) + len(completion.tokens), ENDINGS[answer.reason]
    return {
        "stop": True,
        "id_slot": answer.stream.slot_number,
        "model": answer.name,
        "tokens_predicted": len(completion.tokens),
        "tokens_evaluated": len(prompt),
        "prompt": answer.model.engine.engine.detokenize(prompt, special=True),
        "truncated": answer.is_full,
        "stop_type": "word" if completion.stopped_by else ending,
        "stopping_word": completion.stopped_by or "",
        "tokens_cached": max(len(prompt), n_all - 1),
        "timings": answer.timings,
    }


class _TokensBody(Body, kw_only=True):
    content: str = ""
    tokens: list[int] = []
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


async def tokenize(request: Request) -> Response:
    """`POST /tokenize`."""
    body = await read(request, _TokensBody)

    def work(model: LoadedModel) -> list[Any]:
        vocabulary, options = model.engine.engine.vocabulary, {"special": body.parse_special}
        try:
            tokens = vocabulary.tokenize(body.content, add_bos=body.add_special, n_ctx=JSON_VALUES, **options)
        except ContextFullError:
            raise ApiError(413, f"the text has more than {JSON_VALUES - 1} tokens; split it") from None
        if not body.with_pieces:
            return tokens
        return [{"id": id, "piece": _piece(vocabulary.token_to_piece(id, special=True))} for id in tokens]

    return json_response({"tokens": await of_model(request, body.request(), work)})


def _piece(data: bytes) -> str | list[int]:
    """Returns a token's text, or the list of the token's bytes if these bytes are not complete characters."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


async def detokenize(request: Request) -> Response:
    """`POST /detokenize`."""
    body = await read(request, _TokensBody)

    def work(model: LoadedModel) -> str:
        vocabulary = model.engine.engine.vocabulary
        pieces = [vocabulary.token_to_piece(token, special=True) for token in vocabulary.checked(body.tokens)]
        return b"".join(pieces).decode("utf-8", "replace")

    return json_response({"content": await of_model(request, body.request(), work)})


async def load(request: Request) -> Response:
    """`POST /models/load`."""
    await of_model(request, (await read(request, Body)).request(), lambda model: None)
    return json_response({"success": True})


async def unload(request: Request) -> Response:
    """`POST /models/unload`: unloads a model as soon as no request uses it."""
    name = (await read(request, Body)).model
    if not await server_of(request).unload(name):
        raise ApiError(400, f"model '{name}' is not loaded")
    return json_response({"success": True})


async def adapters(request: Request) -> Response:
    """`GET /lora-adapters`; `?model=` selects one of several models. llama-server's `POST`, which changes the
    answers of all clients, is not supported. A request sets the scales for itself.
    """
    own = (await _named(request))[0].adapters
    listed = [{"id": i, "path": Path(path).name, "scale": scale} for i, (path, scale) in enumerate(own)]
    return json_response(listed)


async def _named(request: Request) -> tuple[ModelFiles, Key]:
    """Returns the model that `?model=` names, and its key. Without `?model=`, returns the model of the
    command line.
    """
    server, name = server_of(request), request.query_params.get("model", "")
    return await server.work.names.run(find_model, name, server.config, server.files)


async def props(request: Request) -> Response:
    """`GET /props`; `?model=` selects one of several models. Does not load a model."""
    server, (files, key) = server_of(request), await _named(request)
    if (model := server.models.get(key)) is not None:
        engine = model.engine.engine
        sampling, n_ctx, template = engine.sampling, model.n_ctx, model.chat.template.text
        has_projector = engine.vocabulary.projector is not None
    else:
        plan = await server.work.files.run(plan_model, files, server.config, 0)
        sampling, n_ctx = plan.sampling_options(), plan.model_options().n_ctx
        shown = await server.files_run(facts, files.label)
        template, has_projector = shown["template"], "vision" in shown["capabilities"]
    params = {option.name: getattr(sampling, option.name) for option in describe(SamplingOptions)}
    return json_response(
        {
            "default_generation_settings": {
                "params": params | {"n_predict": sampling.max_tokens},
                "n_ctx": n_ctx,
            },
            "total_slots": server.config.n_parallel,
            "model_alias": files.label,
            "model_path": str(files.target),
            "modalities": {"vision": has_projector, "audio": False},
            "chat_template": template,
        }
    )


async def slots(request: Request) -> Response:
    """`GET /slots`; `?model=` selects one of several models. Does not load a model, and does not report
    prompts.
    """
    server, (files, key) = server_of(request), await _named(request)
    if (model := server.models.get(key)) is not None:
        running, drafts, n_ctx = model.engine.running_slots, model.engine.engine.has_draft, model.n_ctx
    else:
        plan = await server.work.files.run(plan_model, files, server.config, 0)
        running, drafts, n_ctx = set[int](), plan.can_draft, plan.model_options().n_ctx
    numbers = range(server.config.n_parallel)
    if request.query_params.get("fail_on_no_slot") and len(running) >= len(numbers):
        raise ApiError(503, "no slot available; try again later", code="queue_full")
    return json_response(
        [{"id": i, "n_ctx": n_ctx, "speculative": drafts, "is_processing": i in running} for i in numbers]
    )


class _SlotBody(Body, kw_only=True):
    filename: str = ""


async def slot(request: Request) -> Response:
    """`POST /slots/{id}?action=save|restore|erase`; `?model=` selects one of several models."""
    action, number = request.query_params.get("action", ""), int(request.path_params["id"])
    body = await read(request, _SlotBody) if action in ("save", "restore") else _SlotBody()
    name = body.model or request.query_params.get("model", "")
    started = time.perf_counter()

    async def run() -> dict[str, Any]:
        async with server_of(request).use(ServedRequest(model=name)) as model:
            engine = model.engine
            if action == "erase":
                return {"id_slot": number, "n_erased": await engine.erase_slot(number)}
            work, words = {
                "save": (engine.save_slot, ("n_saved", "n_written")),
                "restore": (engine.restore_slot, ("n_restored", "n_read")),
            }[action]
            done = await work(number, body.filename)
            ms = {f"{action}_ms": 1000 * (time.perf_counter() - started)}
            names = {"id_slot": number, "filename": body.filename}
            return {**names, **dict(zip(words, done, strict=True)), "timings": ms}

    if action not in ("save", "restore", "erase"):
        raise FieldError("action", f"expected save, restore or erase, found {action[:80]!r}")
    try:
        return json_response(await while_there(request.receive, run()))
    except UnsupportedError as error:
        raise ApiError(501, str(error)) from None
