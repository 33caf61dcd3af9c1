# SPDX-License-Identifier: MIT
"""Vectors of texts: Ollama's `/api/embed` and `/api/embeddings`, OpenAI's `/v1/embeddings`; and Jina's
`/v1/rerank`, as llama.cpp's server has it.

A model reads texts in threads, between the rounds of those who generate. Long answers are written in a
thread, too, one vector after another: the encoder lets nobody else run meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.errors import ContextFullError
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import dump, field, json_response, keep_alive, read_json, while_there

if TYPE_CHECKING:
    from eaglecpp.engine import AsyncEngine
    from eaglecpp.results import Embedding
    from eaglecpp.server.models import Server

__all__ = ["embed", "openai_embeddings", "prompt_embedding", "rerank"]

T = TypeVar("T")


async def embed(request: Request) -> Response:
    """`POST /api/embed`."""
    body = await read_json(request)
    texts = body.get("input")
    texts = [] if texts in (None, "") else [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ApiError(400, "input must be a text or a list of texts")
    started = time.perf_counter()
    done = await _embedded(
        request,
        body,
        texts,
        dimensions=field(body, "dimensions", int) or None,
        truncate=field(body, "truncate", bool, True),
        n_ctx=field(field(body, "options", dict, {}), "num_ctx", int, 0),
    )
    head = {
        "model": body["model"],
        "total_duration": int(1e9 * (time.perf_counter() - started)),
        "load_duration": max(1, int(1e6 * done.load_ms)),
        "prompt_eval_count": done.n_tokens,
    }
    return await _list_response(head, "embeddings", done.found, lambda index, one: one.vector.tolist())


async def prompt_embedding(request: Request) -> Response:
    """`POST /api/embeddings`, the older form."""
    body = await read_json(request)
    text = field(body, "prompt", str, "")
    n_ctx = field(field(body, "options", dict, {}), "num_ctx", int, 0)
    done = await _embedded(request, body, [text] if text else [], n_ctx=n_ctx)
    return json_response({"embedding": done.found[0].vector.tolist() if text else []})


async def openai_embeddings(request: Request) -> Response:
    """`POST /v1/embeddings`. `truncate: true` is ours."""
    body = await read_json(request)
    encoding = field(body, "encoding_format", str, "float")
    if encoding not in ("float", "base64"):
        raise ApiError(
            400, f"encoding_format must be float or base64, found {encoding!r}", param="encoding_format"
        )
    done = await _embedded(
        request,
        body,
        _inputs(body.get("input")),
        dimensions=field(body, "dimensions", int),
        truncate=field(body, "truncate", bool, False),
    )

    def item(index: int, one: Embedding) -> dict[str, Any]:
        data = one.vector.astype("<f4").tobytes() if encoding == "base64" else b""
        vector = base64.b64encode(data).decode() if data else one.vector.tolist()
        return {"object": "embedding", "index": index, "embedding": vector}

    usage = {"prompt_tokens": done.n_tokens, "total_tokens": done.n_tokens}
    head = {"object": "list", "model": body["model"], "usage": usage}
    return await _list_response(head, "data", done.found, item)


async def rerank(request: Request) -> Response:
    """`POST /v1/rerank`."""
    body = await read_json(request)
    query, documents = field(body, "query", str, ""), field(body, "documents", list, [])
    texts: list[Any] = [one.get("text") if isinstance(one, dict) else one for one in documents]
    if not query or not texts or not all(isinstance(text, str) for text in texts):
        raise ApiError(
            400, "query must be a text, and documents a list of at least one text", param="documents"
        )
    n_top = field(body, "top_n", int, len(texts))
    if n_top < 0:
        raise ApiError(400, f"top_n must be 0 or more, found {n_top}", param="top_n")
    is_told = field(body, "return_documents", bool, False)
    (scores, n_tokens), _ = await _with_model(request, body, lambda engine: engine.rerank(query, texts))
    best = sorted(range(len(texts)), key=lambda index: -scores[index])[:n_top]
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": texts[index]}} if is_told else {})
        for index in best
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return json_response({"object": "list", "model": body["model"], "usage": usage, "results": results})


@dataclass(frozen=True)
class _Done:
    found: Sequence[Embedding]
    load_ms: float

    @property
    def n_tokens(self) -> int:
        return sum(one.n_tokens for one in self.found)


async def _embedded(
    request: Request, body: dict[str, Any], texts: Sequence[Any], n_ctx: int = 0, **options: Any
) -> _Done:
    """The vectors. What asks for none loads the model."""

    async def work(engine: AsyncEngine) -> list[Embedding]:
        return await engine.embed(texts, n_ctx=max(0, n_ctx), **options) if texts else []

    return _Done(*await _with_model(request, body, work, n_ctx))


async def _with_model(
    request: Request, body: dict[str, Any], work: Callable[[AsyncEngine], Awaitable[T]], n_ctx: int = 0
) -> tuple[T, float]:
    """What `work` gives, and the milliseconds that loading the model took."""
    server: Server = request.app.state.server
    name = field(body, "model", str, "")
    keep_alive_s = keep_alive(body.get("keep_alive"))

    async def run() -> tuple[T, float]:
        async with server.pool.use(name, n_ctx=max(0, n_ctx), keep_alive_s=keep_alive_s) as lease:
            assert lease.slot is not None
            load_ms, lease.slot.load_ms = lease.slot.load_ms, 0.0
            body["model"] = lease.model.answers_as(name)
            return await work(lease.model.engine), load_ms

    try:
        async with asyncio.timeout(server.config.request_s or None):
            return await while_there(request, run())
    except ContextFullError as error:
        raise ApiError(400, str(error), code="context_length_exceeded", param="input") from None
    except TimeoutError:
        raise ApiError(504, "the request took longer than this server allows", code="timeout") from None


def _inputs(value: Any) -> list[Any]:
    """OpenAI's `input`: one text, one list of token ids, or a list of either."""
    if isinstance(value, str) and value:
        return [value]
    if isinstance(value, list) and value:
        if all(type(one) is int for one in value):
            return [value]
        if all(isinstance(one, str) for one in value):
            return value
        if all(isinstance(one, list) and all(type(token) is int for token in one) for one in value):
            return value
    raise ApiError(
        400, "input must be a text, a list of texts, or token ids of this model, and not empty", param="input"
    )


async def _list_response(
    head: Mapping[str, Any], key: str, found: Sequence[Embedding], item: Callable[[int, Embedding], Any]
) -> Response:
    """`head` with a list under `key`."""

    def write() -> bytes:
        items = b",".join(dump(item(index, one)) for index, one in enumerate(found))
        return dump(head)[:-1] + f',"{key}":['.encode() + items + b"]}"

    return Response(await asyncio.to_thread(write), media_type="application/json")
