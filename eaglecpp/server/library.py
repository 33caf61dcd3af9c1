# SPDX-License-Identifier: MIT
"""The models of this machine over HTTP: list, show, create, copy, delete, pull.

The model store does the work, in threads. A request names models and never paths, because the operator
decides which files the server may read.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.engine.engine import Engine
from eaglecpp.errors import EagleError
from eaglecpp.lowlevel import gpus
from eaglecpp.modelfile.model import Modelfile
from eaglecpp.modelfile.parameters import DEPRECATED, from_json, value_text
from eaglecpp.modelfile.syntax import MAX_COMMANDS, MAX_TEXT, Command, Document
from eaglecpp.options import HEAD, TEXT, Strategy
from eaglecpp.references import ModelName
from eaglecpp.server import catalog
from eaglecpp.server.bodies import read
from eaglecpp.server.catalog import read_name, stamp
from eaglecpp.server.errors import ApiError, FieldError
from eaglecpp.server.http import dump, in_thread, json_response, live
from eaglecpp.server.models import server_of
from eaglecpp.store import Status, Stores
from eaglecpp.store.store import read_again
from eaglecpp.store.transaction import copy_model, remove_model

_REPORT_S = 0.1  # minimum seconds between two progress reports of the same step


class _Named(msgspec.Struct, kw_only=True):
    """A request body that names a model in `model`, or in `name` as older Ollama clients do."""

    model: str = ""
    name: str = ""
    stream: bool = True

    @property
    def named(self) -> str:
        """The model's name. Raises ApiError if it is missing."""
        if not (self.model or self.name):
            raise ApiError(400, "model is required; send its name")
        return self.model or self.name


class _Pull(_Named, kw_only=True):
    draft: str | bool | None = None
    insecure: bool = False


class _Copy(msgspec.Struct, kw_only=True):
    source: str
    destination: str


class _MessageBody(msgspec.Struct):
    role: Literal["system", "user", "assistant"]
    content: str


_Refused = dict[str, Any] | str | None


class _Create(_Named, kw_only=True):
    """The body of `/api/create`: texts and parameters of a Modelfile. Files of the client or of this machine
    are never read.
    """

    base: str = msgspec.field(default="", name="from")
    system: str = ""
    template: str = ""
    license: str | Annotated[list[str], Meta(max_length=64)] = []  # each license becomes a file
    parameters: dict[str, Any] = {}
    messages: list[_MessageBody] = []
    files: _Refused = None
    adapters: _Refused = None
    quantize: _Refused = None
    modelfile: _Refused = None
    path: _Refused = None

    def read_modelfile(self) -> Modelfile:
        """Returns the Modelfile that this body describes. Raises ApiError, ModelfileError."""
        for field in ("files", "adapters", "quantize", "modelfile", "path"):
            if getattr(self, field):
                how = "send from, system, template, parameters and messages, or use `eaglecpp create`"
                raise FieldError(field, f"not supported: {how}")
        if not self.base:
            raise FieldError("from", "expected the name of a model")
        texts = [self.license] if isinstance(self.license, str) else self.license
        commands = [Command("model", str(read_name(self.base)))]
        commands += [Command(key, text) for key in ("template", "system") if (text := getattr(self, key))]
        commands += [Command("license", text) for text in texts if text]
        for key, value in self.parameters.items():
            if key in DEPRECATED or value is None:
                continue
            try:
                typed = from_json(key, value)
            except (ValueError, OverflowError) as error:
                raise FieldError(f"parameters.{key}", str(error)) from None
            commands += (
                [Command(key, value) for value in typed]
                if isinstance(typed, tuple)
                else [Command(key, value_text(typed))]
            )
        commands += [Command("message", f"{turn.role}: {turn.content}") for turn in self.messages]
        n_chars = sum(len(turn.args) for turn in commands)
        if n_chars > MAX_TEXT or len(commands) > MAX_COMMANDS:
            raise ApiError(413, f"expected at most {MAX_COMMANDS} values of {MAX_TEXT} characters in all")
        return Modelfile.from_document(Document(tuple(commands)))


async def tags(request: Request) -> Response:
    """`GET /api/tags`."""
    return json_response({"models": await server_of(request).files_run(catalog.entries)})


async def ps(request: Request) -> Response:
    """`GET /api/ps`."""
    server = server_of(request)
    loaded = []
    for model in list(server.models.values()):
        engine = model.engine
        gain = engine.engine.shared.gains.gain()
        loaded.append(
            {key: model.entry[key] for key in ("digest", "details")}
            | {
                "name": model.name,
                "model": model.name,
                "size": model.n_bytes,
                "size_vram": model.n_bytes if engine.engine.model.n_gpu_layers and gpus() else 0,
                "expires_at": stamp(model.expires_at),
                "context_length": model.n_ctx,
                "pinned": model.is_pinned,
                "adapters": [(Path(path).name, scale) for path, scale in model.files.adapters if scale],
                "n_parallel": server.config.n_parallel,
                "running": engine.n_running,
                "waiting": engine.n_waiting,
                "strategy": str(engine.engine.resolve(engine.engine.strategy)[0]),
                "draft": None if model.files.draft is None else str(model.files.draft),
                "drafts": engine.engine.has_draft,
                "drafter": _drafter(engine.engine),
                "drafting_gain": None if gain is None else asdict(gain),
                "notices": model.notices,
            }
        )
    return json_response({"models": loaded})


def _drafter(engine: Engine) -> str | None:
    """Returns the kind of an engine's drafter, named as in `eaglecpp list`; None if the engine does not
    draft.
    """
    if not engine.has_draft or (info := engine.draft_info) is None:
        return TEXT if engine.has_draft else None
    return HEAD if info["kind"] == "head" else info["arch" if info["kind"] in ("eagle", "model") else "kind"]


async def show(request: Request) -> Response:
    """`POST /api/show`."""
    server = server_of(request)
    return json_response(await server.files_run(catalog.facts, (await read(request, _Named)).named))


async def delete(request: Request) -> Response:
    """`DELETE /api/delete`."""
    server = server_of(request)
    name = (await read(request, _Named)).named

    def work() -> str:
        stores = Stores.open()
        model = stores.get(read_name(name))
        if not model.own:
            raise ApiError(400, f"'{name}' is in another program's store; delete it there")
        remove_model(stores.own, model.name)
        return str(model.name)

    await server.forget(await server.work.files.run(work))
    return Response(b"")


async def copy(request: Request) -> Response:
    """`POST /api/copy`: gives a model a second name."""
    body = await read(request, _Copy)
    source, destination = read_name(body.source), read_name(body.destination)

    def work() -> None:
        stores = Stores.open()
        read_again(lambda: stores.get(source), lambda model: copy_model(stores, model, destination))

    await server_of(request).work.files.run(work)
    return Response(b"")


async def create(request: Request) -> Response:
    """`POST /api/create`: creates a model from a stored model, which is pulled if it is missing."""
    body = await read(request, _Create)
    if body.base in server_of(request).files:
        raise FieldError("from", "expected a stored model, found a file that this server serves")
    name, modelfile = read_name(body.named), await in_thread(request, body.read_modelfile)

    def work(report: Callable[[Status], None]) -> None:
        from eaglecpp.store.create import create_model

        with tempfile.TemporaryDirectory() as empty:  # this folder is empty, so FROM finds no file in it
            create_model(Stores.open(), name, modelfile, Path(empty), report=report)

    return await _progress(request, work, body.stream)


async def pull(request: Request) -> Response:
    """`POST /api/pull`."""
    from eaglecpp.store.remote.pull import pull as pull_model

    body = await read(request, _Pull)
    name = read_name(body.named)
    draft: str | ModelName | None
    draft = {True: "auto", False: "none"}[body.draft] if isinstance(body.draft, bool) else body.draft
    # A client must not name a path, because a path could name any file of this machine.
    if draft is not None and draft not in ("auto", TEXT) and not Strategy.is_off(draft):
        draft = read_name(draft)
    if body.insecure and not server_of(request).config.insecure:
        raise ApiError(400, "insecure is not allowed, because this server was started without --insecure")

    def work(report: Callable[[Status], None]) -> None:
        pull_model(name, draft=draft, insecure=body.insecure, report=report)

    return await _progress(request, work, body.stream)


async def _progress(
    request: Request, work: Callable[[Callable[[Status], None]], None], is_streamed: bool
) -> Response:
    """Runs `work` in a thread and sends its progress reports to the client. If the client disconnects, the
    next report raises an error, which ends `work`.
    """
    from eaglecpp.store.remote.reach import named_by_a_request

    server = server_of(request)
    if server.work.downloads.is_full:
        raise ApiError(503, "the maximum number of downloads is running; try again later", code="busy")
    loop, is_over = asyncio.get_running_loop(), threading.Event()
    lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    last = ("", "", 0.0)

    def report(status: Status) -> None:
        nonlocal last
        if is_over.is_set():
            raise EagleError("the client disconnected")
        now, is_done = time.monotonic(), status.total and status.completed >= status.total
        if (status.status, status.digest) == last[:2] and now - last[2] < _REPORT_S and not is_done:
            return
        last = status.status, status.digest, now
        fields = {key: getattr(status, key) for key in ("status", "digest", "total", "completed")}
        loop.call_soon_threadsafe(lines.put_nowait, {key: value for key, value in fields.items() if value})

    def run() -> None:
        try:
            with named_by_a_request(server.config.registries):
                work(report)
        except OSError as error:  # for example because the disk became full in the middle of a stream
            raise EagleError(f"cannot write to the store: {error.strerror or error}") from error

    def ended(task: asyncio.Future[None]) -> None:
        lines.put_nowait(None)
        if not task.cancelled():
            task.exception()  # without this call, asyncio would log an exception that was never retrieved

    async def parts() -> AsyncGenerator[bytes, None]:
        task = asyncio.ensure_future(server.work.downloads.run(run))
        task.add_done_callback(ended)
        try:
            while (line := await lines.get()) is not None:
                yield dump(line) + b"\n"
            await task
        finally:
            is_over.set()

    whole = None if is_streamed else lambda: {"status": "success"}
    return await live(request, parts(), bool, whole, "application/x-ndjson")
