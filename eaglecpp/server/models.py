# SPDX-License-Identifier: MIT
"""`Server`: state shared by requests, above all the models in memory.

`async with server.use(request) as model` loads a model if necessary. A model in use is not unloaded. An
unused model is unloaded after its keep-alive time, or when another model needs the memory. The least recently
used model is unloaded first. All state belongs to the event loop. Only finding and opening models runs in
threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from eaglecpp.chat.codec import ChatCodec
from eaglecpp.engine.async_engine import AsyncEngine
from eaglecpp.engine.engine import Engine, open_fitting
from eaglecpp.engine.slots import FairLock
from eaglecpp.errors import ModelNotFoundError, QueueFullError
from eaglecpp.human import human_bytes
from eaglecpp.learn.idle import Learner
from eaglecpp.modelfile.parameters import parameter_options
from eaglecpp.opening.context import free_memory, memory_needed
from eaglecpp.opening.find import ModelFiles, find_here, find_name, with_draft
from eaglecpp.opening.plan import OpeningPlan, make_plan
from eaglecpp.options import MAX_SEQUENCES, Strategy
from eaglecpp.references import ModelNameError, model_name, part_paths
from eaglecpp.server.catalog import entry
from eaglecpp.server.config import Preset, ServerConfig, means_path
from eaglecpp.server.errors import ApiError, FieldError
from eaglecpp.server.shared import Held, KeptResponses, Metrics, OwnTexts, Work
from eaglecpp.store.content import file_state

if TYPE_CHECKING:
    from eaglecpp.server.answer import ServedRequest

_N_BATCH = 256  # number of prompt tokens that are processed between two rounds of other requests
_HOST_CACHE_SHARE = 8  # the host cache may take 1/8 of the free memory
_SHARE = 0.85  # share of the memory that is free at startup and that models may use
_LOOK_S = 1.0  # maximum seconds of one wait for a model to become unused
_log = logging.getLogger("eaglecpp.server")
T = TypeVar("T")


Key = tuple[Any, ...]
"""Identity of an opened model: its files in their current state, its Modelfile settings, and as the last
entry the scales of its adapters, if a request set these scales.
"""


def find_model(
    name: str, config: ServerConfig, served: Mapping[str, Path], lora: Mapping[int, float] | None = None
) -> tuple[ModelFiles, Key]:
    """Returns the files of the model with this name on this machine, and the model's key. Downloads nothing.
    served: GGUF files by the name under which they are served. If the model of the command line is a file,
    every unknown name means that file, as in llama-server, because clients send arbitrary names. lora: scales
    of the model's adapters by adapter number; None = the model's own scales

    Raises ModelNotFoundError, ModelNameError; ApiError for an empty name without a default model.
    """
    name = name or config.model
    if not name:
        raise ApiError(400, "model is required", param="model")
    if name not in served and name.removesuffix(":latest") in served:
        name = name.removesuffix(":latest")
    if name in served:
        model = replace(find_here(served[name], config.draft_of(name)), title=name)
    else:
        try:
            if means_path(name):
                raise ModelNotFoundError("")
            model = find_name(model_name(name), name)
        except (ModelNotFoundError, ModelNameError) as error:
            if config.model in served:
                return find_model(config.model, config, served, lora)
            if not isinstance(error, ModelNotFoundError):
                raise
            why = str(error).removeprefix(f"model {name!r} is ")
            raise ModelNotFoundError(f"model '{name}' not found" + (f": {why}" if why else "")) from None
        model = with_draft(model, config.presets.get(model.label, Preset()).draft)
    own = replace(model, adapters=config.engine_of(model.label).get("lora") or model.adapters)
    adapted = own if lora is None else _adapted(own, lora)
    chosen = () if adapted is own else tuple(scale for _, scale in adapted.adapters)
    return adapted, (*_key(model, config), chosen)


def _adapted(model: ModelFiles, scales: Mapping[int, float]) -> ModelFiles:
    """Returns this model with other scales of its adapters. scales: scales by adapter number; an adapter that
    is not listed is not used. The result counts as another model in memory, because generations with
    different adapters cannot share a batch or a cache. Raises ApiError.
    """
    for number in scales:
        if not 0 <= number < len(model.adapters):
            has = f"number of adapters: {len(model.adapters)} (GET /lora-adapters lists them)"
            raise FieldError("lora", f"{model.label} has no adapter {number}; {has}")
    adapters = tuple((path, scales.get(i, 0.0)) for i, (path, _) in enumerate(model.adapters))
    return model if adapters == model.adapters else replace(model, adapters=adapters)


def _key(model: ModelFiles, config: ServerConfig) -> Key:
    """Returns the key of a model. Other spellings of the model's name and copies of the model have the same
    key. The same weights with another drafter, adapter or Modelfile (parameters, system prompt, template,
    messages) have another key.
    """
    others = (*(Path(path) for path, _ in model.adapters), *model.projectors)
    states = tuple(map(file_state, (*part_paths(model.target), *others)))
    draft = None if model.draft is None else file_state(model.draft)
    text, name = model.modelfile, model.label
    texts = (text.template, model.stored_template, text.system, text.messages, text.pragmas)
    own = repr((sorted(config.engine_of(name).items()), config.is_pinned(name) and name))
    return states, draft, model.drafts_text, repr((*texts, sorted(text.parameters.items()))), own


def plan_model(model: ModelFiles, config: ServerConfig, n_ctx: int) -> OpeningPlan:
    """Returns the plan for opening a model for several conversations. The server's settings override the
    model's own settings. n_ctx: minimum context of each conversation in tokens; the context is longer if
    model and memory allow more.
    """
    strategy = Strategy.parse(config.strategy) if config.strategy else None
    options: dict[str, Any] = config.engine_of(model.label) | {"n_sequences": config.n_parallel}
    n_ids = MAX_SEQUENCES // config.n_parallel - 1
    options.setdefault("n_leaves_max", max(1, min(Strategy.AUTO_LEAVES, n_ids)))
    if model.adapters:
        options["lora"] = tuple((path, scale) for path, scale in model.adapters if scale)
    # A model from a file gets Ollama's sampling defaults too.
    defaults: dict[str, Any] = {"model.n_batch": _N_BATCH}
    defaults |= {name: value for name, value in parameter_options({}).items() if name.startswith("sampling.")}
    make = partial(make_plan, model, strategy=strategy, defaults=defaults, choose_context=True)
    plan = make(options=options)
    if 0 <= plan.model_options().n_ctx < n_ctx:  # an n_ctx of -1 already means the model's maximum
        plan = make(options=options | {"n_ctx": n_ctx})
    off = plan.strategy.value.kind == "off"
    return plan.without_drafts() if off and model.draft is None else plan


def n_bytes_of(plan: OpeningPlan) -> int:
    """Returns the memory in bytes that a model opened with this plan takes."""
    return memory_needed(plan.target, plan.model_options(), plan.files.n_weight_bytes)


class LoadedModel:
    """A model in memory: an engine, which the constructor opens, and the requests that use the model. The
    object belongs to one `Server`.

    used: time when the last use of the model ended; load_ms: load time, 0 after a request has reported the
        load time
    is_pinned: the model is never unloaded to make room for another model
    ends_late: functions of the requests that use the model, called when other requests wait for the memory.
        Each function takes a number of seconds, and ends its request if the request has lasted longer
    """

    def __init__(
        self, files: ModelFiles, key: Key, plan: OpeningPlan, entry: dict[str, Any], server: Server
    ) -> None:
        """Opens the model. entry: the model's entry of /api/tags"""
        started, config = time.perf_counter(), server.config
        self.files, self.key, self.name, self.entry = files, key, files.label, entry
        self.notices = list(plan.notices)
        self.n_bytes = n_bytes_of(plan)
        # All steps that may fail come before the engine is opened. If a later step failed, no caller could
        # close the engine.

        def open_engine() -> Engine:
            engine, without = open_fitting(plan)
            if without:
                self.notices.append(without)
                _log.warning("%s: %s", self.name, without)
            return engine

        self.engine = AsyncEngine(
            open_engine,
            n_queue=config.n_queue,
            host_cache_bytes=min(config.host_cache_bytes, (free_memory() or 1 << 62) // _HOST_CACHE_SHARE),
            slot_time_s=config.slot_time_s,
            n_unread=config.n_unread,
            turns=server.turns,
        )
        self.engine.wait_opened()
        self.n_ctx = self.engine.engine.n_ctx
        self.n_users = 0
        self.used = time.monotonic()
        self.keep_alive_s = config.keep_alive_s
        self.load_ms = 1000 * (time.perf_counter() - started)
        self.is_pinned = config.is_pinned(self.name) and not key[-1]
        self.ends_late: set[Callable[[float], None]] = set()
        self.texts = OwnTexts()

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the model is unloaded; None = never."""
        if self.keep_alive_s < 0:
            return None
        return self.keep_alive_s if self.n_users else self.used + self.keep_alive_s - time.monotonic()

    @property
    def expires_at(self) -> datetime:
        left = 100 * 365 * 86400 if self.seconds_left is None else self.seconds_left
        return datetime.now(UTC) + timedelta(seconds=min(left, 100 * 365 * 86400))

    @asynccontextmanager
    async def ending_late(self, end_late: Callable[[float], None]) -> AsyncIterator[None]:
        """Adds a function to the model's `ends_late` until the `with` block ends."""
        self.ends_late.add(end_late)
        try:
            yield
        finally:
            self.ends_late.discard(end_late)

    @property
    def chat(self) -> ChatCodec:
        """The model's chat, which builds prompts and reads answers."""
        return self.engine.engine.shared.chat

    def answers_as(self, requested: str) -> str:
        """Returns the name that an answer states as its model: the requested name, or for a file the file's
        own name.
        """
        return self.name if self.files.name is None or not requested else requested


def server_of(request: Request) -> Server:
    """Returns the server of a request."""
    server: Server = request.app.state.server
    return server


def owner_of(request: Request) -> str:
    """Returns the API key of a request; "" if the server requires no key."""
    return str(request.scope.get("api_key", ""))


class Server:
    """State shared by requests. files: GGUF files by the name under which they are served, in addition to
    stored models.

    models: models in memory by `Key`; all names of one model have the same key, so they share one entry
    """

    def __init__(self, config: ServerConfig, files: Mapping[str, Path]) -> None:
        self.config = config
        self.files = dict(files)
        self.metrics = Metrics()
        self.work = Work()
        self.held = Held(max(config.n_held, config.n_body))
        self.kept = KeptResponses(config.n_responses, config.n_response_bytes)
        self.models: dict[Key, LoadedModel] = {}
        self.loads: list[str] = []  # names of models that are loaded at startup and not loaded yet
        self.n_bytes = config.n_bytes or int(_SHARE * (free_memory() or 1 << 62))
        self._n_asked: Counter[Key] = Counter()
        self._loading = asyncio.Lock()
        self._loads: dict[Key, asyncio.Future[LoadedModel]] = {}
        self._n_joined: Counter[Key] = Counter()  # number of requests that wait for the loading of each model
        self._changed = asyncio.Event()
        self.turns = FairLock()
        self._last_use = time.monotonic()
        self._is_stopping = False
        self.learner = Learner(
            self._learning, self.idle_for, self.forget, config.learn_idle_s, self.work.files
        )

    async def files_run(self, work: Callable[..., T], *args: Any) -> T:
        """Runs `work(files, config, *args)` in a thread. `work` uses the models of this machine."""
        return await self.work.files.run(work, self.files, self.config, *args)

    def _learning(self) -> Iterator[tuple[str, Path, Path]]:
        """Yields name, target and drafter of each model whose answers are saved for its drafter to learn
        from.
        """
        for model in list(self.models.values()):
            if model.engine.engine.shared.on_answer is not None and model.files.draft is not None:
                yield model.name, model.files.target, model.files.draft

    def idle_for(self) -> float:
        """Returns the seconds since any model was last used; 0 while a model is in use."""
        in_use = self._loading.locked() or any(model.n_users for model in self.models.values())
        return 0.0 if in_use else time.monotonic() - self._last_use

    @asynccontextmanager
    async def use(self, wanted: ServedRequest, is_queued: bool = True) -> AsyncIterator[LoadedModel]:
        """Loads the model that a request names if necessary, and keeps it in memory until the `with` block
        ends. is_queued: the request counts towards the model's queue limit. Raises ModelNotFoundError,
        QueueFullError and the errors of opening an engine.
        """
        self.learner.stop_for_request()
        self._last_use = time.monotonic()
        files, key = await self.work.names.run(find_model, wanted.model, self.config, self.files, wanted.lora)
        # requests that only differ in adapter scales share one limit
        n_max, queue = self.config.n_answers, key[:-1]
        if is_queued and self._n_asked[queue] >= n_max:
            raise QueueFullError(
                f"the queue is full: {files.label} has {n_max} requests, {self.config.n_parallel} at a time"
            )
        self._n_asked[queue] += is_queued
        try:
            model = await self._taken(files, key, wanted.n_ctx)
            seconds = self.config.keep_alive_s if wanted.keep_alive_s is None else wanted.keep_alive_s
            model.keep_alive_s = -1.0 if model.is_pinned else seconds
            try:
                yield model
            finally:
                self._release(model)
        finally:
            self._n_asked[queue] -= is_queued
            self._n_asked += Counter()  # adding an empty Counter removes the entries with count 0

    async def unload(self, name: str) -> bool:
        """Unloads the model with this name, and its variants with other adapter scales, as soon as no request
        uses them. Returns False if the model is not loaded. Raises ModelNotFoundError; ApiError for a pinned
        model.
        """
        files, key = await self.work.names.run(find_model, name, self.config, self.files)
        if self.config.is_pinned(files.label):
            raise ApiError(400, f"'{files.label}' is pinned: the operator of this server keeps it in memory")
        models = [model for model in self.models.values() if files.label == model.name or key == model.key]
        for model in models:
            await self._end(model)
        return bool(models)

    async def forget(self, name: str) -> None:
        """Unloads the models that are listed under a name, as soon as no request uses them. Called after a
        model was removed or got another drafter.
        """
        for model in [model for model in self.models.values() if model.name == name]:
            await self._end(model)

    async def _end(self, model: LoadedModel) -> None:
        model.keep_alive_s = 0.0
        if model.n_users == 0:
            async with self._loading:
                if model.n_users == 0 and self.models.get(model.key) is model:
                    await self._unload(model)

    async def close(self) -> None:
        """Gives running requests the configured time to finish, then frees everything."""
        self.stop_loads()
        await self._loading.acquire()  # this lock is never released, so no further model is loaded
        models = list(self.models.values())
        self.models.clear()
        await asyncio.gather(*(model.engine.close(grace_s=self.config.grace_s) for model in models))

    def stop_loads(self) -> None:
        """Cancels running loads and refuses new loads. Requests that wait for a load get an error."""
        self._is_stopping = True
        for loading in self._loads.values():
            loading.cancel()

    async def _taken(self, files: ModelFiles, key: Key, n_ctx: int) -> LoadedModel:
        """Returns a loaded model and adds one to the count of its users. All requests for a model that is
        being loaded share this load and its error. The load continues even if all these requests disconnect.
        """
        model = self.models.get(key)
        if model is not None and model.engine.broken is None:
            model.n_users += 1
            return model
        loading = self._loads.get(key)
        if loading is None:
            loading = self._loads[key] = asyncio.ensure_future(self._load(files, key, n_ctx))
        self._n_joined[key] += 1
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(self._give_up)
            raise

    def _give_up(self, loading: asyncio.Future[LoadedModel]) -> None:
        if not loading.cancelled() and loading.exception() is None:
            self._release(loading.result())

    def _release(self, model: LoadedModel) -> None:
        model.n_users -= 1
        model.used = self._last_use = time.monotonic()
        self._changed.set()

    async def _load(self, files: ModelFiles, key: Key, n_ctx: int) -> LoadedModel:
        """Loads a model for all requests that wait for this load. If the model is loaded but its engine is
        broken, it is replaced. Raises ApiError if the server stops.
        """
        try:
            async with self._loading:
                return await self._loaded(files, key, n_ctx)
        except asyncio.CancelledError:
            raise ApiError(503, f"the server is stopping, so '{files.label}' is not loaded") from None
        finally:
            del self._loads[key], self._n_joined[key]
            self._changed.set()

    async def _loaded(self, files: ModelFiles, key: Key, n_ctx: int) -> LoadedModel:
        if self._is_stopping:
            raise asyncio.CancelledError
        name = files.label
        if (old := self.models.pop(key, None)) is not None:  # the old model has a broken engine
            await self._unload(old)
        plan = await self.work.loading.run(plan_model, files, self.config, n_ctx)
        # A longer context may fit, because other models were unloaded.
        if await self._make_room(n_bytes_of(plan), name):
            plan = await self.work.loading.run(plan.with_context)
        adapters = "".join(f", {Path(path).name} at {scale:g}" for path, scale in files.adapters)
        _log.info("loading %s%s", name, adapters)
        listed = await self.files_run(entry, name)
        model = await self.work.loading.run(LoadedModel, files, key, plan, listed, self)
        self.metrics.add("model_loads_total", model=name)
        _log.info(
            "loaded %s in %.0f ms, %d tokens of context for each of %d conversations",
            name, model.load_ms, model.n_ctx, self.config.n_parallel,
        )  # fmt: skip
        for notice in model.notices:
            _log.warning("%s: %s", name, notice)
        self.models[key] = model
        model.n_users += self._n_joined[key]
        return model

    async def _make_room(self, n_bytes: int, name: str) -> bool:
        """Unloads other models until a new model of `n_bytes` bytes fits into memory. Returns whether a model
        was unloaded. name: name of the new model, for error messages. Raises ApiError if the pinned models
        leave too little memory.
        """
        pinned = [model for model in self.models.values() if model.is_pinned]
        n_pinned_bytes = sum(model.n_bytes for model in pinned)
        if len(pinned) >= self.config.n_models or n_pinned_bytes + n_bytes > self.n_bytes:
            raise ApiError(
                503,
                f"model '{name}' needs about {human_bytes(n_bytes)}, but models may use only "
                f"{human_bytes(self.n_bytes)} (--memory). Pinned models take {human_bytes(n_pinned_bytes)}. "
                f"Number of pinned models: {len(pinned)} of --max-models {self.config.n_models}",
                code="out_of_memory",
            )

        def fits() -> bool:
            taken = sum(model.n_bytes for model in self.models.values()) + self.learner.n_bytes
            return taken + n_bytes <= self.n_bytes and len(self.models) < self.config.n_models

        n_loaded = len(self.models)
        while not fits():
            others = [model for model in self.models.values() if not model.is_pinned]
            idle = [model for model in others if model.n_users == 0]
            if self.learner.n_bytes:
                await self.learner.end()
            elif idle:
                await self._unload(min(idle, key=lambda model: model.used))
            else:
                await self._change(others)
        return len(self.models) < n_loaded

    async def _change(self, of: Iterable[LoadedModel]) -> None:
        """Ends requests of these models that have lasted longer than `slot_time_s`. Then waits until a model
        is unused or unloaded, at most one second.
        """
        if self.config.slot_time_s > 0:
            for end_late in [end_late for model in of for end_late in model.ends_late]:
                end_late(self.config.slot_time_s)
        await self._look_again()

    async def _look_again(self) -> None:
        """Waits until a model is unused or unloaded, at most `_LOOK_S` seconds."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await self._changed.wait()

    async def _unload(self, model: LoadedModel) -> None:
        if self.models.get(model.key) is model:
            del self.models[model.key]
        _log.info("unloading %s", model.name)
        await model.engine.close()
        self._changed.set()

    async def sweep(self) -> None:
        """Unloads models after their keep-alive time, in an endless loop."""
        while True:
            await self._look_again()
            async with self._loading:
                for model in list(self.models.values()):
                    seconds = model.seconds_left
                    if model.n_users == 0 and seconds is not None and seconds <= 0:
                        await self._unload(model)
