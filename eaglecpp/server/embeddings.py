# SPDX-License-Identifier: MIT
"""Vectors of texts: Ollama's `/api/embed` and `/api/embeddings`, OpenAI's `/v1/embeddings`.

The engine computes the vectors between the rounds of generations. Concurrent requests take turns, with a few
texts of one request per turn. Long responses are encoded in a thread, vector by vector, because the JSON
encoder holds the GIL.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.limits import EMBEDDING_VALUES
from eaglecpp.results import Embedding
from eaglecpp.server.answer import in_use
from eaglecpp.server.bodies import Body, read, read_prompts
from eaglecpp.server.errors import ApiError, FieldError
from eaglecpp.server.http import dump, json_response, while_there
from eaglecpp.server.models import server_of
from eaglecpp.server.shared import note_answer


class _Body(Body, kw_only=True):
    input: Any = None
    content: Any = None
    prompt: str = ""
    dimensions: int | None = None
    truncate: bool | None = None
    encoding_format: Annotated[str, Meta(pattern="^(float|base64)$")] = "float"


async def embed(request: Request) -> Response:
    """`POST /api/embed`."""
    body = await read(request, _Body)
    texts = [] if body.input in (None, "") else [body.input] if isinstance(body.input, str) else body.input
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise FieldError("input", "expected a text or a list of texts")
    started = time.perf_counter()
    body.dimensions = body.dimensions or None
    vectors, name, load_ms = await _embedded(request, body, texts, truncate=body.truncate is not False)
    head = {
        "model": name,
        "total_duration": int(1e9 * (time.perf_counter() - started)),
        "load_duration": max(1, int(1e6 * load_ms)),
        "prompt_eval_count": sum(vector.n_tokens for vector in vectors),
    }
    return await _list_response(request, head, "embeddings", vectors, lambda i, v: v.vector.tolist())


async def prompt_embedding(request: Request) -> Response:
    """`POST /api/embeddings`, the older form."""
    body = await read(request, _Body)
    vectors, _, _ = await _embedded(request, body, [body.prompt] if body.prompt else [])
    return json_response({"embedding": vectors[0].vector.tolist() if vectors else []})


async def openai_embeddings(request: Request) -> Response:
    """`POST /v1/embeddings`. The field `truncate` is eaglecpp's extension of OpenAI's API."""
    body = await read(request, _Body)
    texts = read_prompts(body.input or None, "input")
    vectors, name, _ = await _embedded(request, body, texts, truncate=bool(body.truncate))

    def item(index: int, embedding: Embedding) -> dict[str, Any]:
        is_base64 = body.encoding_format == "base64"
        data = base64.b64encode(embedding.vector.astype("<f4").tobytes()).decode() if is_base64 else ""
        return {"object": "embedding", "index": index, "embedding": data or embedding.vector.tolist()}

    n_tokens = sum(embedding.n_tokens for embedding in vectors)
    head = {"object": "list", "model": name, "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens}}
    return await _list_response(request, head, "data", vectors, item)


async def embedding(request: Request) -> Response:
    """llama-server's `POST /embedding`."""
    body = await read(request, _Body)
    where = "content" if body.content is not None else "input"
    results, _, _ = await _embedded(request, body, read_prompts(getattr(body, where) or None, where), False)
    vectors = [result.vector.reshape(-1, result.vector.shape[-1]).tolist() for result in results]
    return json_response([{"index": i, "embedding": vector} for i, vector in enumerate(vectors)])


async def _embedded(
    request: Request, body: _Body, texts: Sequence[Any], truncate: bool = True
) -> tuple[list[Embedding], str, float]:
    """Returns the vectors, the model's name for the response, and the model's load time in milliseconds. A
    request without texts only loads the model.
    """
    server = server_of(request)
    wanted, begun = body.request(), time.perf_counter()

    def end_late(max_s: float) -> None:
        if time.perf_counter() - begun > max_s:
            limit.reschedule(0)

    async def run() -> tuple[list[Embedding], str, float]:
        async with in_use(request, wanted) as model, model.ending_late(end_late):
            load_ms, model.load_ms = model.load_ms, 0.0
            name, vectors = model.answers_as(wanted.model), []
            if texts:
                vectors = await model.engine.embed(
                    texts,
                    dimensions=body.dimensions,
                    truncate=truncate,
                    n_ctx=wanted.n_ctx,
                    n_values_max=EMBEDDING_VALUES,
                )
            note_answer(request.scope, name, {"prompt_n": sum(embedding.n_tokens for embedding in vectors)})
            return vectors, name, load_ms

    try:
        async with asyncio.timeout(server.config.request_s or None) as limit:
            return await while_there(request.receive, run())
    except TimeoutError:
        raise ApiError(504, "the request took longer than this server allows", code="timeout") from None


async def _list_response(
    request: Request,
    head: Mapping[str, Any],
    key: str,
    vectors: Sequence[Embedding],
    item: Callable[[int, Embedding], Any],
) -> Response:
    """Returns a JSON response with the fields of `head`, and a list of `item(index, vector)` in the field
    `key`.
    """

    def write() -> bytes:
        items = b",".join(dump(item(index, vector)) for index, vector in enumerate(vectors))
        return dump(head)[:-1] + f',"{key}":['.encode() + items + b"]}"

    data = await while_there(request.receive, server_of(request).work.answers.run(write))
    return Response(data, media_type="application/json")
