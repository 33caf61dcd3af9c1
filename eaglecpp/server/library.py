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
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from eaglecpp.convert import errors as of_convert
from eaglecpp.errors import EagleError, GgufError, UnsupportedError
from eaglecpp.modelfile.model import Modelfile
from eaglecpp.modelfile.parameters import PARAMETERS, ParameterError, from_json, value_text
from eaglecpp.modelfile.syntax import Command, Document
from eaglecpp.server.catalog import means_path, read_name, stamp
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import LiveResponse, dump, field, json_response, read_json
from eaglecpp.store import Status, Stores
from eaglecpp.store.layout import is_digest

if TYPE_CHECKING:
    from eaglecpp.server.models import Server

__all__ = [
    "copy",
    "create",
    "delete",
    "get_blob",
    "ps",
    "pull",
    "put_blob",
    "refuse_push",
    "show",
    "tags",
]

_UPLOADS = "uploads"
_UPLOAD_S = 24 * 3600  # an upload that no model was made of goes after that
_REPORT_S = 0.1  # between two lines of the same step


async def tags(request: Request) -> Response:
    """`GET /api/tags`."""
    server: Server = request.app.state.server
    return json_response({"models": await server.library.entries()})


async def ps(request: Request) -> Response:
    """`GET /api/ps`."""
    server: Server = request.app.state.server
    found = []
    for slot in list(server.pool.slots.values()):
        model = slot.model
        engine = model.engine
        found.append(
            {key: model.entry[key] for key in ("digest", "details")}
            | {
                "name": slot.name,
                "model": slot.name,
                "size": model.n_bytes,
                "size_vram": model.n_bytes if model.on_gpu else 0,
                "expires_at": stamp(slot.expires_at),
                "context_length": model.n_ctx,
                "n_parallel": server.config.n_parallel,
                "running": engine.n_running,
                "waiting": engine.n_waiting,
                "strategy": str(model.wanted(None)),
                "draft": None if model.source.found.draft is None else str(model.source.found.draft),
                "drafts": engine.engine.has_draft,
                "notices": model.notices,
            }
        )
    return json_response({"models": found})


async def show(request: Request) -> Response:
    """`POST /api/show`."""
    server: Server = request.app.state.server
    body = await read_json(request)
    name = _model_of(body)
    verbose = field(body, "verbose", bool, False)

    facts = await server.library.facts(name, verbose)
    listed = name if means_path(name) or name in server.library.files else str(read_name(name))
    if server.config.engine_of(listed).get("mmproj"):
        facts["capabilities"] = list(dict.fromkeys([*facts["capabilities"], "vision"]))
    return json_response(facts)


async def copy(request: Request) -> Response:
    """`POST /api/copy`."""
    from eaglecpp.store.transaction import copy_model

    body = await read_json(request)
    source, destination = field(body, "source", str, ""), field(body, "destination", str, "")
    if not source or not destination:
        raise ApiError(400, "source and destination are required")
    name = read_name(destination)

    def work() -> None:
        stores = Stores.open()
        copy_model(stores, stores.get(read_name(source)), name)

    await asyncio.to_thread(work)
    return Response(b"")


def _model_of(body: dict[str, Any]) -> str:
    """The model that a body names; `name` is what older clients of Ollama say. Raises ApiError."""
    name: str | None = field(body, "model", str) or field(body, "name", str)
    if not name:
        raise ApiError(400, "model is required")
    return name


async def delete(request: Request) -> Response:
    """`DELETE /api/delete`."""
    from eaglecpp.store.transaction import remove_model

    server: Server = request.app.state.server
    body = await read_json(request)
    name = _model_of(body)

    def work() -> str:
        stores = Stores.open()
        model = stores.get(read_name(name))
        if not model.own:
            raise ApiError(400, f"'{name}' is in {model.root}, which this server does not change")
        remove_model(stores.own, model.name)
        return str(model.name)

    await server.pool.forget(await asyncio.to_thread(work))
    return Response(b"")


async def pull(request: Request) -> Response:
    """`POST /api/pull`."""
    from eaglecpp.store.remote.pull import pull as pull_model

    server: Server = request.app.state.server
    body = await read_json(request)
    text = _model_of(body)
    name = read_name(text)
    draft = body.get("draft")
    if draft is not None and not isinstance(draft, str):
        raise ApiError(400, 'draft must be "auto", "none" or the name of a drafter')
    if draft is not None and draft not in ("auto", "none") and means_path(draft):
        raise ApiError(400, f"invalid drafter name '{draft}'")
    insecure = field(body, "insecure", bool, False)
    if insecure and not server.config.insecure:
        raise ApiError(400, "insecure: this server was not started with --insecure")

    def work(report: Callable[[Status], None]) -> None:
        pull_model(name, draft=draft, insecure=insecure, report=report)

    return await _progress(work, is_streamed=field(body, "stream", bool, True))


async def create(request: Request) -> Response:
    """`POST /api/create`."""
    body = await read_json(request)
    text = _model_of(body)
    name = read_name(text)
    if body.get("modelfile") is not None or body.get("path") is not None:
        raise ApiError(
            400, "modelfile and path belong to an old API; send from, files, template, parameters ..."
        )
    modelfile = _modelfile(body)
    uploads = any(body.get(key) for key in ("files", "draft_files", "adapters"))
    quantize = str(body.get("quantize") or body.get("quantization_level") or "")
    draft_type = field(body, "draft_quantize", str, "")

    def work(report: Callable[[Status], None]) -> None:
        from eaglecpp.store.create import create_model

        stores = Stores.open()
        try:
            with tempfile.TemporaryDirectory() as empty:  # a name that is also a file here stays a name
                create_model(
                    stores,
                    name,
                    modelfile,
                    Path(empty),
                    quantize=quantize,
                    draft_type=draft_type,
                    fetch=True,
                    report=report,
                )
        except (GgufError, UnsupportedError, of_convert.ConvertError) as error:
            if not uploads:
                raise
            raise ApiError(400, str(error)) from None  # the client's own file
        report(Status("success"))

    return await _progress(work, is_streamed=field(body, "stream", bool, True))


async def get_blob(request: Request) -> Response:
    """`HEAD /api/blobs/{digest}`."""
    digest = _digest(request)
    found = await asyncio.to_thread(_find_blob, digest)
    if found is None:
        raise ApiError(404, f"blob {digest} not found")
    return Response(b"")


async def put_blob(request: Request) -> Response:
    """`POST /api/blobs/{digest}`: a file that `create` will name."""
    digest = _digest(request)
    if await asyncio.to_thread(_find_blob, digest) is not None:
        return Response(b"")
    folder = Stores.open().own.root / _UPLOADS
    await asyncio.to_thread(_tidy, folder)
    sha = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=folder, prefix="part-", delete=False) as file:
        part = Path(file.name)
        try:
            async for data in request.stream():
                sha.update(data)
                await asyncio.to_thread(file.write, data)
        except BaseException as error:
            part.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise ApiError(507, f"the upload cannot be stored: {error.strerror}") from None
            raise
    if f"sha256:{sha.hexdigest()}" != digest:
        part.unlink(missing_ok=True)
        raise ApiError(400, f"digest mismatch, expected {digest}, got sha256:{sha.hexdigest()}")
    part.replace(folder / _blob_name(digest))
    return Response(b"", 201)


async def refuse_push(request: Request) -> Response:
    """`POST /api/push`."""
    raise ApiError(400, "push is not supported by this server")


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


def _tidy(folder: Path) -> None:
    """Makes the folder of uploads, and removes what nobody came back for."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _UPLOAD_S:
                path.unlink()


def _modelfile(body: Mapping[str, Any]) -> Modelfile:
    """The request as the Modelfile that says the same. Raises ApiError."""
    commands = [Command("model", path) for path in _uploaded(body, "files")]
    base = field(body, "from", str, "")
    if base:
        read_name(base)
        commands.insert(0, Command("model", base))
    if not commands:
        raise ApiError(400, "neither 'from' or 'files' was specified")
    commands += [Command("draft", path) for path in _uploaded(body, "draft_files")]
    commands += [Command("adapter", path) for path in _uploaded(body, "adapters")]
    for key in ("template", "system"):
        if field(body, key, str):
            commands.append(Command(key, body[key]))
    licenses = body.get("license")
    for text in [licenses] if isinstance(licenses, str) else field(body, "license", list, []):
        commands.append(Command("license", str(text)))
    for key, value in field(body, "parameters", dict, {}).items():
        if key not in PARAMETERS:
            continue
        try:
            typed = from_json(key, value)
        except (ParameterError, OverflowError) as error:
            raise ApiError(400, str(error)) from None
        texts = typed if isinstance(typed, tuple) else (value_text(typed),)
        commands += [Command(key, text) for text in texts]
    for entry in field(body, "messages", list, []):
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise ApiError(400, "messages: expected objects with role and content")
        commands.append(Command("message", f"{entry.get('role')}: {entry['content']}"))
    return Modelfile.from_document(Document(tuple(commands)))


def _uploaded(body: Mapping[str, Any], key: str) -> list[str]:
    """The paths of uploaded blobs, by their digests."""
    paths = []
    for name, digest in field(body, key, dict, {}).items():
        if not isinstance(digest, str) or not is_digest(digest):
            raise ApiError(400, f"{key}: {name}: expected sha256: and 64 hex digits")
        path = _find_blob(digest)
        if path is None:
            raise ApiError(400, f"{key}: {name}: blob {digest} was not uploaded (POST /api/blobs/{digest})")
        paths.append(str(path))
    return paths


async def _progress(work: Callable[[Callable[[Status], None]], None], *, is_streamed: bool) -> Response:
    """Runs `work` in a thread and tells what it reports. A client that leaves ends it at its next report."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    is_over = False
    last: list[Any] = [None, 0.0]

    def report(status: Status) -> None:
        if is_over:
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
        loop.call_soon_threadsafe(lines.put_nowait, out)

    def checked(report: Callable[[Status], None]) -> None:
        try:
            work(report)
        except OSError as error:  # a full disk, in the middle of a stream
            raise EagleError(f"the store cannot be written: {error.strerror or error}") from error

    def run() -> None:
        try:
            checked(report)
        finally:
            loop.call_soon_threadsafe(lines.put_nowait, None)

    if not is_streamed:
        await asyncio.to_thread(checked, lambda status: None)
        return json_response({"status": "success"})
    task = asyncio.ensure_future(asyncio.to_thread(run))
    first = await lines.get()  # what fails at once has a status of its own
    if first is None:
        await task
        return json_response({"status": "success"})

    async def parts() -> AsyncIterator[bytes]:
        nonlocal is_over
        try:
            line: dict[str, Any] | None = first
            while line is not None:
                yield dump(line) + b"\n"
                line = await lines.get()
            await task
        finally:
            is_over = True
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    return LiveResponse(parts(), AsyncExitStack(), "application/x-ndjson")
