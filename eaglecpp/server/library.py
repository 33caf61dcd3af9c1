# SPDX-License-Identifier: MIT
"""The models of this machine over HTTP: list, show, create, copy, delete, pull, and uploads of files.

The store does the work, in threads. A request names models, never paths: what may be read from this
machine's files is the operator's choice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.convert import errors as of_convert
from eaglecpp.errors import EagleError, GgufError, UnsupportedError
from eaglecpp.modelfile.model import Modelfile
from eaglecpp.modelfile.parameters import PARAMETERS, ParameterError, from_json, value_text
from eaglecpp.modelfile.syntax import Command, Document
from eaglecpp.server import catalog
from eaglecpp.server.bodies import read
from eaglecpp.server.catalog import means_path, read_name, stamp
from eaglecpp.server.errors import ApiError, without_folders
from eaglecpp.server.http import LiveResponse, body_parts, dump, json_response, while_there
from eaglecpp.server.models import server_of
from eaglecpp.store import Status, Stores
from eaglecpp.store.layout import is_digest
from eaglecpp.store.store import read_again

_UPLOADS = "uploads"
_UPLOAD_S = 24 * 3600  # an upload that no model was made of goes after that
_REPORT_S = 0.1  # between two lines of the same step


class _Named(msgspec.Struct, kw_only=True):
    """What names a model; `name` is what older clients of Ollama say."""

    model: str = ""
    name: str = ""
    stream: bool = True
    verbose: bool = False
    draft: str | None = None
    insecure: bool = False

    @property
    def named(self) -> str:
        """Raises ApiError."""
        if not (self.model or self.name):
            raise ApiError(400, "model is required")
        return self.model or self.name


class _Copy(msgspec.Struct, kw_only=True):
    source: str
    destination: str


class _Turn(msgspec.Struct):
    content: str
    role: str = "user"


class _Create(_Named, kw_only=True):
    base: str = msgspec.field(default="", name="from")
    files: dict[str, str] = {}
    draft_files: dict[str, str] = {}
    adapters: dict[str, str] = {}
    template: str = ""
    system: str = ""
    license: str | Annotated[list[str], Meta(max_length=64)] = []  # each becomes a file
    parameters: dict[str, Any] = {}
    messages: list[_Turn] = []
    quantize: str = ""
    quantization_level: str = ""
    draft_quantize: str = ""
    modelfile: Any = None
    path: Any = None


async def tags(request: Request) -> Response:
    """`GET /api/tags`."""
    return json_response({"models": await server_of(request).files_run(catalog.entries)})


async def ps(request: Request) -> Response:
    """`GET /api/ps`."""
    server = server_of(request)
    found = []
    for model in list(server.pool.models.values()):
        engine = model.engine
        gain = engine.engine.gains.gain()
        found.append(
            {key: model.entry[key] for key in ("digest", "details")}
            | {
                "name": model.name,
                "model": model.name,
                "size": model.n_bytes,
                "size_vram": model.n_bytes if model.on_gpu else 0,
                "expires_at": stamp(model.expires_at),
                "context_length": model.n_ctx,
                "pinned": model.is_pinned,
                "adapters": [(Path(path).name, scale) for path, scale in model.source.adapters if scale],
                "n_parallel": server.config.n_parallel,
                "running": engine.n_running,
                "waiting": engine.n_waiting,
                "strategy": str(engine.engine.resolve(engine.engine.strategy)[0]),
                "draft": None if model.source.found.draft is None else str(model.source.found.draft),
                "drafts": engine.engine.has_draft,
                "drafting_gain": None if gain is None else asdict(gain),
                "notices": model.notices,
            }
        )
    return json_response({"models": found})


async def show(request: Request) -> Response:
    """`POST /api/show`."""
    server = server_of(request)
    body = await read(request, _Named)
    return json_response(await server.files_run(catalog.facts, body.named, body.verbose))


async def copy(request: Request) -> Response:
    """`POST /api/copy`."""
    from eaglecpp.store.transaction import copy_model

    body = await read(request, _Copy)
    source, name = body.source, read_name(body.destination)

    def work() -> None:
        stores = Stores.open()
        read_again(partial(stores.get, read_name(source)), lambda model: copy_model(stores, model, name))

    await server_of(request).work.files.run(work)
    return Response(b"")


async def delete(request: Request) -> Response:
    """`DELETE /api/delete`."""
    from eaglecpp.store.transaction import remove_model

    server = server_of(request)
    name = (await read(request, _Named)).named

    def work() -> str:
        stores = Stores.open()
        model = stores.get(read_name(name))
        if not model.own:
            raise ApiError(400, f"'{name}' is in another program's store, which this server does not change")
        remove_model(stores.own, model.name)
        return str(model.name)

    await server.pool.forget(await server.work.files.run(work))
    return Response(b"")


async def pull(request: Request) -> Response:
    """`POST /api/pull`."""
    from eaglecpp.store.remote.pull import pull as pull_model
    from eaglecpp.store.remote.reach import named_by_a_request

    server = server_of(request)
    body = await read(request, _Named)
    name, draft = read_name(body.named), body.draft
    if draft is not None and draft not in ("auto", "none") and means_path(draft):
        raise ApiError(400, f"invalid drafter name '{draft}'")
    if body.insecure and not server.config.insecure:
        raise ApiError(400, "insecure: this server was not started with --insecure")

    def work(report: Callable[[Status], None]) -> None:
        with named_by_a_request(server.config.registries):
            pull_model(name, draft=draft, insecure=body.insecure, report=report)

    return await _progress(request, work, is_streamed=body.stream)


async def create(request: Request) -> Response:
    """`POST /api/create`."""
    server = server_of(request)
    body = await read(request, _Create)
    name = read_name(body.named)
    if body.modelfile is not None or body.path is not None:
        raise ApiError(
            400, "modelfile and path belong to an old API; send from, files, template, parameters ..."
        )
    modelfile = await server.work.files.run(_modelfile, body)
    uploads = body.files or body.draft_files or body.adapters

    def work(report: Callable[[Status], None]) -> None:
        from eaglecpp.store.create import create_model
        from eaglecpp.store.remote.reach import named_by_a_request

        stores = Stores.open()
        try:
            with (
                named_by_a_request(server.config.registries),
                tempfile.TemporaryDirectory() as empty,  # a name that is also a file here stays a name
            ):
                create_model(
                    stores,
                    name,
                    modelfile,
                    Path(empty),
                    quantize=body.quantize or body.quantization_level,
                    draft_type=body.draft_quantize,
                    fetch=True,
                    report=report,
                )
        except (GgufError, UnsupportedError, of_convert.ConvertError) as error:
            if not uploads:
                raise
            raise ApiError(400, without_folders(str(error))) from None  # the client's own file
        report(Status("success"))

    return await _progress(request, work, is_streamed=body.stream)


async def get_blob(request: Request) -> Response:
    """`HEAD /api/blobs/{digest}`."""
    digest = _digest(request)
    if await server_of(request).work.files.run(_find_blob, digest) is None:
        raise ApiError(404, f"blob {digest} not found")
    return Response(b"")


async def put_blob(request: Request) -> Response:
    """`POST /api/blobs/{digest}`: a file that `create` will name."""
    files = server_of(request).work.files
    digest = _digest(request)
    if await files.run(_find_blob, digest) is not None:
        return Response(b"")
    file = await files.run(_new_upload)
    part, sha = Path(file.name), hashlib.sha256()
    try:
        async for data in body_parts(request):
            sha.update(data)
            await files.run(file.write, data)
        if f"sha256:{sha.hexdigest()}" != digest:
            raise ApiError(400, f"digest mismatch, expected {digest}, got sha256:{sha.hexdigest()}")
        file.close()
        part.replace(part.with_name(_blob_name(digest)))
    except OSError as error:
        raise ApiError(507, f"the upload cannot be stored: {error.strerror}") from None
    finally:
        file.close()
        part.unlink(missing_ok=True)
    return Response(b"", 201)


def _digest(request: Request) -> str:
    digest = request.path_params["digest"].replace("sha256-", "sha256:", 1)
    if not is_digest(digest):
        raise ApiError(400, f"invalid digest {digest!r}, expected sha256: and 64 hex digits")
    return str(digest)


def _blob_name(digest: str) -> str:
    return f"{digest.replace(':', '-')}.gguf"


def _find_blob(digest: str) -> Path | None:
    store = Stores.open().own
    uploaded = store.root / _UPLOADS / _blob_name(digest)
    return uploaded if uploaded.is_file() else store.blob(digest)


def _new_upload() -> IO[bytes]:
    """A new file among the uploads, from which goes what nobody came back for."""
    folder = Stores.open().own.root / _UPLOADS
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _UPLOAD_S:
                path.unlink()
    return tempfile.NamedTemporaryFile(dir=folder, prefix="part-", delete=False)


def _modelfile(body: _Create) -> Modelfile:
    """The request as the Modelfile that says the same. Raises ApiError."""
    commands = [Command("model", path) for path in _uploaded("files", body.files)]
    if body.base:
        read_name(body.base)
        commands.insert(0, Command("model", body.base))
    if not commands:
        raise ApiError(400, "neither 'from' or 'files' was specified")
    commands += [Command("draft", path) for path in _uploaded("draft_files", body.draft_files)]
    commands += [Command("adapter", path) for path in _uploaded("adapters", body.adapters)]
    commands += [Command(key, text) for key in ("template", "system") if (text := getattr(body, key))]
    texts = [body.license] if isinstance(body.license, str) else body.license
    commands += [Command("license", text) for text in texts]
    for key, value in body.parameters.items():
        if key not in PARAMETERS:
            continue
        try:
            typed = from_json(key, value)
        except (ParameterError, OverflowError) as error:
            raise ApiError(400, str(error)) from None
        values = typed if isinstance(typed, tuple) else (value_text(typed),)
        commands += [Command(key, value) for value in values]
    commands += [Command("message", f"{one.role}: {one.content}") for one in body.messages]
    return Modelfile.from_document(Document(tuple(commands)))


def _uploaded(key: str, given: Mapping[str, str]) -> list[str]:
    """The paths of uploaded blobs, by their digests."""
    paths = []
    for name, digest in given.items():
        if not is_digest(digest):
            raise ApiError(400, f"{key}: {name}: expected sha256: and 64 hex digits")
        path = _find_blob(digest)
        if path is None:
            raise ApiError(400, f"{key}: {name}: blob {digest} was not uploaded (POST /api/blobs/{digest})")
        paths.append(str(path))
    return paths


async def _progress(
    request: Request, work: Callable[[Callable[[Status], None]], None], *, is_streamed: bool
) -> Response:
    """Runs `work` in a thread and tells what it reports. A client that leaves ends it at its next report."""
    server = server_of(request)
    if server.work.downloads.is_full:
        raise ApiError(
            503, "all downloads that may run at a time are under way; try again later", code="busy"
        )
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    is_over = threading.Event()
    last: list[Any] = [None, 0.0]

    def report(status: Status) -> None:
        if is_over.is_set():
            raise EagleError("the client left")
        now, key = time.monotonic(), (status.status, status.digest)
        is_done = status.total and status.completed >= status.total
        if key == last[0] and now - last[1] < _REPORT_S and not is_done:
            return
        last[:] = [key, now]
        out: dict[str, Any] = {"status": status.status}
        if status.digest:
            out["digest"] = status.digest
        if status.total:
            out |= {"total": status.total, "completed": status.completed}
        if is_streamed:
            loop.call_soon_threadsafe(lines.put_nowait, out)

    def run() -> None:
        try:
            work(report)
        except OSError as error:  # a full disk, in the middle of a stream
            raise EagleError(f"the store cannot be written: {error.strerror or error}") from error

    def ended(task: asyncio.Future[None]) -> None:
        lines.put_nowait(None)
        if not task.cancelled():
            task.exception()  # which nobody may wait for

    async def parts() -> AsyncIterator[bytes]:
        while (line := await lines.get()) is not None:
            yield dump(line) + b"\n"
        await task

    task, stream = asyncio.ensure_future(server.work.downloads.run(run)), parts()
    task.add_done_callback(ended)
    async with AsyncExitStack() as stack:
        stack.callback(is_over.set)
        first = await while_there(request, anext(stream, b""))  # what fails at once has a status of its own
        if not first:
            return json_response({"status": "success"})
        return LiveResponse(_after(first, stream), stack.pop_all(), "application/x-ndjson")
    raise AssertionError


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in rest:
        yield part
