# SPDX-License-Identifier: MIT
"""The ASGI application: routes, errors in each API's form, startup and shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from eaglecpp.server import anthropic, embeddings, library, llama_server, ollama, openai, responses
from eaglecpp.server.config import OLLAMA_VERSION, ServerConfig
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import ClientGoneError, end_all, error_response, json_response
from eaglecpp.server.models import Server, server_of
from eaglecpp.server.security import Gate

_STATIC = Path(__file__).parent / "static"
_FILES = {path.relative_to(_STATIC).as_posix(): path for path in _STATIC.rglob("*")}
"""Files of the chat page by name. A requested name is looked up in this table, never on the disk."""
_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
          **dict.fromkeys((".js", ".mjs"), "text/javascript; charset=utf-8")}  # fmt: skip
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify",
    "X-DNS-Prefetch-Control": "off",  # turns DNS look-ups for links in an answer off
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def make_app(config: ServerConfig, files: Mapping[str, Path] | None = None) -> Gate:
    """Builds the application. files: GGUF files by the name under which they are served."""
    server = Server(config, files or {})

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(task) for task in (server.learner.run(), server.sweep())]
        try:
            yield
        finally:
            await end_all(*tasks)
            await server.close()

    get, post = ["GET"], ["POST"]
    routes = [
        Route("/", _root, methods=get),
        Route("/static/{name:path}", _static, methods=get),
        Route("/health", _health, methods=get),
        Route("/v1/health", _health, methods=get),
        Route("/metrics", _metrics, methods=get),
        Route("/api/version", _version, methods=get),
        Route("/api/tags", library.tags, methods=get),
        Route("/api/ps", library.ps, methods=get),
        Route("/api/show", library.show, methods=post),
        Route("/api/chat", ollama.chat, methods=post),
        Route("/api/generate", ollama.generate, methods=post),
        Route("/api/create", library.create, methods=post),
        Route("/api/copy", library.copy, methods=post),
        Route("/api/delete", library.delete, methods=["DELETE"]),
        Route("/api/pull", library.pull, methods=post),
        Route("/api/embed", embeddings.embed, methods=post),
        Route("/api/embeddings", embeddings.prompt_embedding, methods=post),
        Route("/v1/embeddings", embeddings.openai_embeddings, methods=post),
        Route("/v1/models", openai.models, methods=get),
        Route("/v1/models/{name:path}", openai.model, methods=get),
        Route("/v1/chat/completions", openai.chat, methods=post),
        Route("/v1/completions", openai.completions, methods=post),
        Route("/v1/responses", responses.responses, methods=post),
        Route("/v1/responses/input_tokens", responses.input_tokens, methods=post),
        Route("/v1/messages", anthropic.messages, methods=post),
        Route("/models", openai.models, methods=get),
        Route("/models/load", llama_server.load, methods=post),
        Route("/models/unload", llama_server.unload, methods=post),
        Route("/lora-adapters", llama_server.adapters, methods=get),
        Route("/chat/completions", openai.chat, methods=post),
        Route("/responses", responses.responses, methods=post),
        Route("/embeddings", embeddings.openai_embeddings, methods=post),
        Route("/completion", llama_server.completion, methods=post),
        Route("/completions", llama_server.completion, methods=post),
        Route("/embedding", embeddings.embedding, methods=post),
        Route("/infill", llama_server.infill, methods=post),
        Route("/tokenize", llama_server.tokenize, methods=post),
        Route("/detokenize", llama_server.detokenize, methods=post),
        Route("/apply-template", openai.apply_template, methods=post),
        Route("/props", llama_server.props, methods=get),
        Route("/slots", llama_server.slots, methods=get),
        Route("/slots/{id:int}", llama_server.slot, methods=post),
        Route("/v1/messages/count_tokens", anthropic.count_tokens, methods=post),
    ]
    # Exceptions need a separate middleware, because starlette's own handler for Exception raises the error
    # again.
    faults = Middleware(ExceptionMiddleware, handlers={Exception: _on_error})
    app = Starlette(routes=routes, lifespan=life, middleware=[faults])
    app.add_exception_handler(HTTPException, _on_error)
    app.state.server = server
    return Gate(app, server)


async def _on_error(request: Request, error: Exception) -> Response:
    """Turns an exception of a handler into an error response of the requested API."""
    path = request.url.path
    # The client is gone, so this status appears only in the log.
    if isinstance(error, ClientGoneError | ClientDisconnect):
        return Response(status_code=499)
    if isinstance(error, HTTPException):
        error = ApiError(error.status_code, f"{request.method} {path}: {error.detail.lower()}")
    return error_response(error, path)


async def _root(request: Request) -> Response:
    """Returns the chat page to browsers. Other clients get Ollama's text, because some clients check for this
    text.
    """
    if "text/html" in request.headers.get("accept", ""):
        return _file("index.html")
    return PlainTextResponse("Ollama is running")


async def _static(request: Request) -> Response:
    return _file(request.path_params["name"])


def _file(name: str) -> Response:
    path = _FILES.get(name)
    if path is None or path.suffix not in _TYPES:
        raise ApiError(404, f"no such file: {name}")
    # The browser requests the file once per icon, so it is cached.
    kept = {"Cache-Control": "max-age=3600"} if path.suffix == ".svg" else {}
    return FileResponse(path, headers=_PAGE_HEADERS | kept, media_type=_TYPES[path.suffix])


async def _health(request: Request) -> Response:
    """Reports the server's status as llama-server does. The HTTP status is 503 while the models of the
    command line are loading.
    """
    server = server_of(request)
    if server.loads:
        raise ApiError(503, f"Loading model: {server.loads[0]}")
    models = server.models.values()
    running = sum(model.engine.n_running for model in models)
    waiting = sum(model.engine.n_waiting for model in models)
    return json_response({"status": "ok", "models": len(models), "running": running, "waiting": waiting})


async def _metrics(request: Request) -> Response:
    server = server_of(request)
    text = server.metrics.text(server.models.values())
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


async def _version(request: Request) -> Response:
    return json_response({"version": OLLAMA_VERSION, "eaglecpp": version("eaglecpp")})
