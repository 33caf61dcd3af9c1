# SPDX-License-Identifier: MIT
"""`Server`: state shared by requests, above all the models in memory.

`async with server.use(request) as lease` leases a model, loading it first if necessary; a leased model is not
unloaded. An unused model is unloaded after its keep-alive time, or when another model needs its memory, least
recently used first. All state belongs to the event loop; only loading runs in a thread. `Source` and
`LoadedModel` find and open models; their methods block.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from eaglecpp.chat.model import ChatModel
from eaglecpp.engine.async_engine import AsyncEngine
from eaglecpp.engine.engine import Engine, open_fitting
from eaglecpp.engine.slots import FairLock
from eaglecpp.errors import ModelNotFoundError, QueueFullError
from eaglecpp.human import human_bytes
from eaglecpp.learn.idle import Learner
from eaglecpp.modelfile.parameters import engine_options
from eaglecpp.opening.context import free_memory, memory_needed
from eaglecpp.opening.find import ModelFiles, find_here, find_name, with_draft
from eaglecpp.opening.plan import OpeningPlan, make_plan
from eaglecpp.options import MAX_SEQUENCES, Strategy
from eaglecpp.references import ModelNameError, model_name, part_paths
from eaglecpp.server.catalog import complete_entry, served
from eaglecpp.server.config import Preset, ServerConfig, means_path
from eaglecpp.server.errors import ApiError, FieldError
from eaglecpp.server.shared import Held, KeptResponses, Metrics, OwnTexts, Work
from eaglecpp.store import Stores
from eaglecpp.store.content import file_state
from eaglecpp.store.model import StoredModel

if TYPE_CHECKING:
    from eaglecpp.server.answer import ServedRequest

_N_BATCH = 256  # prompt tokens processed between two rounds of other requests
_HOST_CACHE_SHARE = 8  # swapped out conversations may take 1/8 of the free memory
_SHARE = 0.85  # share of the memory free at startup that models may use
_LOOK_S = 1.0  # maximum seconds between two checks for a change
_log = logging.getLogger("eaglecpp.server")
T = TypeVar("T")


Key = tuple[Any, ...]
"""Identity of an opened model: its files in their current state, and its Modelfile settings."""


@dataclass(frozen=True)
class Source:
    """The model that a name currently refers to.

    name:   the model's listed name, in one spelling
    key:    identity of the model, equal for all its names
    stored: function that returns the model in its store, or the file as a model
    adapters: path and scale of each adapter; an adapter with scale 0 is not used
    chosen: the adapters' scales, if a request chose them
    """

    name: str
    files: ModelFiles
    key: Key
    stored: Callable[[], StoredModel]
    adapters: tuple[tuple[str, float], ...] = ()
    chosen: tuple[float, ...] = ()

    @classmethod
    def of(
        cls, name: str, files: ModelFiles, config: ServerConfig, stored: Callable[[], StoredModel]
    ) -> Source:
        """Builds the source of a name. Other spellings of the name and copies of the model have the same key.
        The same weights with another drafter, adapter or Modelfile (parameters, system prompt, template,
        messages) are another model.
        """
        text, draft = files.modelfile, files.draft
        states = (
            tuple(map(file_state, part_paths(files.target))),
            None if draft is None else file_state(draft),
            tuple(map(file_state, (*files.adapters, *files.projectors))),
        )
        texts = (text.template, files.stored_template, text.system, text.messages, text.pragmas)
        options = config.engine_of(name)
        own = repr((sorted(options.items()), config.is_pinned(name) and name))
        key = (states, files.drafts_text, repr((*texts, sorted(text.parameters.items()))), own)
        adapters = options.get("lora") or tuple((str(path), 1.0) for path in files.adapters)
        return cls(name, files, key, stored, tuple(adapters))

    def adapted(self, scales: Mapping[int, float]) -> Source:
        """Returns this model with other scales of its adapters, given by number. Unlisted adapters are not
        used. The result counts as another model in memory, because different adapters share neither a batch
        nor a cache. Raises ApiError.
        """
        for number in scales:
            if not 0 <= number < len(self.adapters):
                has = f"it has {len(self.adapters)}" if self.adapters else "it has none"
                raise FieldError("lora", f"{self.name} has no adapter {number}: {has} (GET /lora-adapters)")
        chosen = tuple(scales.get(i, 0.0) for i in range(len(self.adapters)))
        if chosen == tuple(scale for _, scale in self.adapters):
            return self
        adapters = tuple((path, scale) for (path, _), scale in zip(self.adapters, chosen, strict=True))
        return replace(self, adapters=adapters, key=(*self.key, chosen), chosen=chosen)

    @property
    def base_key(self) -> Key:
        """Key of the model with its own adapter scales. Variants with other scales share the queue of this
        key.
        """
        return self.key[:-1] if self.chosen else self.key


def find_source(
    name: str, config: ServerConfig, files: Mapping[str, Path], lora: Mapping[int, float] | None = None
) -> Source:
    """Finds the model of a name on this machine; downloads nothing. files: GGUF files by the name under which
    they are served. The operator decides which files are served. If the server's model is a file, every
    unknown name means that file, as in llama-server, since clients send arbitrary names. lora: scales of the
    model's adapters by number, instead of its own

    Raises ModelNotFoundError, ModelNameError; ApiError for an empty name without a default model.
    """
    name = name or config.model
    if not name:
        raise ApiError(400, "model is required", param="model")
    if lora is not None:
        return find_source(name, config, files).adapted(lora)
    if name not in files and name.removesuffix(":latest") in files:
        name = name.removesuffix(":latest")
    if name in files:
        model = find_here(files[name], config.draft_of(name))
        return Source.of(name, model, config, lambda: served(files[name]))
    stores = Stores.open()
    try:
        if means_path(name):
            raise ModelNotFoundError("")
        model = find_name(model_name(name), name, stores)
    except (ModelNotFoundError, ModelNameError) as error:
        if config.model in files:
            return find_source(config.model, config, files)
        if not isinstance(error, ModelNotFoundError):
            raise
        why = str(error).removeprefix(f"model {name!r} is ")
        raise ModelNotFoundError(f"model '{name}' not found" + (f": {why}" if why else "")) from None
    known = model.name
    assert known is not None
    preset = config.presets.get(str(known), Preset())
    return Source.of(str(known), with_draft(model, preset.draft), config, lambda: stores.get(known))


def plan_source(source: Source, config: ServerConfig, n_ctx: int) -> OpeningPlan:
    """Returns the plan for opening a model for several conversations. The server's settings override the
    model's own. n_ctx: minimum context of each conversation in tokens; it is longer if model and memory allow
    it.
    """
    strategy = Strategy.parse(config.strategy) if config.strategy else None
    options: dict[str, Any] = config.engine_of(source.name) | {"n_sequences": config.n_parallel}
    n_ids = MAX_SEQUENCES // config.n_parallel - 1
    options.setdefault("n_leaves_max", max(1, min(Strategy.AUTO_LEAVES, n_ids)))
    if source.adapters:
        options["lora"] = tuple((path, scale) for path, scale in source.adapters if scale)
    defaults: dict[str, Any] = {"model.n_batch": _N_BATCH}  # files get Ollama's sampling defaults too
    defaults |= {name: value for name, value in engine_options({}).items() if name.startswith("sampling.")}
    make = partial(make_plan, source.files, strategy=strategy, defaults=defaults, choose_context=True)
    plan = make(options=options)
    if 0 <= plan.model_options().n_ctx < n_ctx:  # -1 means the model's maximum
        plan = make(options=options | {"n_ctx": n_ctx})
    off = plan.strategy.value.kind == "off"
    return plan.without_drafts() if off and source.files.draft is None else plan


def n_bytes_of(plan: OpeningPlan) -> int:
    """Returns the memory in bytes that a model opened with this plan takes."""
    return memory_needed(plan.target, plan.model_options(), plan.files.n_weight_bytes)


class LoadedModel:
    """A model in memory: the engine, which the constructor opens, and the requests that use it. Belongs to
    one server.

    used: time when the last use of the model ended; load_ms: load time, 0 after a request has reported it
    is_pinned: the model is never unloaded to make room for another model
    """

    def __init__(self, source: Source, plan: OpeningPlan, config: ServerConfig, turns: FairLock) -> None:
        """Opens the model. plan: from `plan_source`"""
        started = time.perf_counter()
        self.notices = list(plan.notices)
        self.entry = complete_entry(source.stored(), source.name)  # the model's entry of /api/tags
        self.n_bytes = n_bytes_of(plan)
        # Steps that may fail come before the engine is opened, because no caller could close it after a
        # failure.

        def open_engine() -> Engine:
            engine, without = open_fitting(plan)
            if without:
                self.notices.append(without)
                _log.warning("%s: %s", source.name, without)
            return engine

        self.engine = AsyncEngine(
            open_engine,
            n_queue=config.n_queue,
            host_cache_bytes=min(config.host_cache_bytes, (free_memory() or 1 << 62) // _HOST_CACHE_SHARE),
            slot_time_s=config.slot_time_s,
            n_unread=config.n_unread,
            turns=turns,
        )
        self.engine.wait_opened()
        self.source = source
        self.name = source.name
        self.n_ctx = self.engine.engine.n_ctx
        self.n_users = 0
        self.used = time.monotonic()
        self.keep_alive_s = config.keep_alive_s
        self.load_ms = 1000 * (time.perf_counter() - started)
        self.is_pinned = config.is_pinned(source.name) and not source.chosen
        self.leases: set[Lease] = set()
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

    @property
    def chat(self) -> ChatModel:
        """The model's chat, which builds prompts and reads answers."""
        return self.engine.engine.shared.chat

    def answers_as(self, requested: str) -> str:
        """Returns the model's name for an answer: the requested name, or the file's own name for a file."""
        return self.name if self.source.files.name is None or not requested else requested


def server_of(request: Request) -> Server:
    """Returns the server of a request."""
    server: Server = request.app.state.server
    return server


def owner_of(request: Request) -> str:
    """Returns the API key of a request; "" if the server requires none."""
    return str(request.scope.get("api_key", ""))


class Lease:
    """The use of a loaded model by one request.

    end_late: function that takes seconds; ends the use if it has lasted longer, because other requests wait
    for the memory
    """

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.end_late: Callable[[float], None] = lambda max_s: None


class Server:
    """State shared by requests. files: GGUF files by the name under which they are served, in addition to
    stored models.

    models: models in memory by `Source.key`, so that all names of a model share one entry
    """

    def __init__(self, config: ServerConfig, files: Mapping[str, Path]) -> None:
        self.config = config
        self.files = dict(files)
        self.metrics = Metrics()
        self.work = Work()
        self.held = Held(max(config.n_held, config.n_body))
        self.kept = KeptResponses(config.n_responses, config.n_response_bytes)
        self.models: dict[Key, LoadedModel] = {}
        self.loads: list[str] = []  # models of the command line that are not loaded yet
        self.n_bytes = config.n_bytes or int(_SHARE * (free_memory() or 1 << 62))
        self._n_asked: Counter[Key] = Counter()
        self._loading = asyncio.Lock()
        self._loads: dict[Key, asyncio.Future[LoadedModel]] = {}
        self._n_joined: Counter[Key] = Counter()  # requests that wait for a load, including disconnected ones
        self._changed = asyncio.Event()
        self._turns = FairLock()
        self._last_use = time.monotonic()
        self._is_stopping = False
        self.learner = Learner(
            self._learning, self.idle_for, self.forget, config.learn_idle_s, self.work.files
        )

    async def files_run(self, work: Callable[..., T], *args: Any) -> T:
        """Runs `work(files, config, *args)`, which uses the models of this machine, in a thread."""
        return await self.work.files.run(work, self.files, self.config, *args)

    def _learning(self) -> Iterator[tuple[str, Path, Path]]:
        """Yields name, target and drafter of each model whose answers are saved for its drafter to learn
        from.
        """
        for model in list(self.models.values()):
            files = model.source.files
            if model.engine.engine.shared.on_answer is not None and files.draft is not None:
                yield model.name, files.target, files.draft

    def idle_for(self) -> float:
        """Returns the seconds since the last use of any model, 0 while one is in use."""
        in_use = self._loading.locked() or any(model.n_users for model in self.models.values())
        return 0.0 if in_use else time.monotonic() - self._last_use

    @asynccontextmanager
    async def use(self, wanted: ServedRequest, is_queued: bool = True) -> AsyncIterator[Lease]:
        """Leases the model that a request names, loading it if necessary. is_queued: the request counts
        towards the model's queue limit. Raises ModelNotFoundError, QueueFullError and the errors of opening
        an engine.
        """
        self.learner.stop_for_request()
        self._last_use = time.monotonic()
        source = await self.work.names.run(find_source, wanted.model, self.config, self.files, wanted.lora)
        n_max = self.config.n_answers
        if is_queued and self._n_asked[source.base_key] >= n_max:
            raise QueueFullError(
                f"the queue is full: {source.name} has {n_max} requests, {self.config.n_parallel} at a time"
            )
        self._n_asked[source.base_key] += is_queued
        try:
            lease = Lease(await self._taken(source, wanted.n_ctx))
            model = lease.model
            model.leases.add(lease)
            seconds = self.config.keep_alive_s if wanted.keep_alive_s is None else wanted.keep_alive_s
            model.keep_alive_s = -1.0 if model.is_pinned else seconds
            try:
                yield lease
            finally:
                model.leases.discard(lease)
                self._release(model)
        finally:
            self._n_asked[source.base_key] -= is_queued
            self._n_asked += Counter()  # removes zero counts

    async def unload(self, name: str) -> bool:
        """Unloads the model with this name, and its variants with other adapters, as soon as they are unused.
        Returns False if the model is not loaded. Raises ModelNotFoundError; ApiError for a pinned model.
        """
        source = await self.work.names.run(find_source, name, self.config, self.files)
        if self.config.is_pinned(source.name):
            raise ApiError(400, f"'{source.name}' is pinned: the operator of this server keeps it in memory")
        models = [m for m in self.models.values() if m.name == source.name or m.source.key == source.key]
        for model in models:
            await self._end(model)
        return bool(models)

    async def forget(self, name: str) -> None:
        """Unloads the models with a listed name as soon as they are unused. Called after a model was removed
        or got another drafter.
        """
        for model in [model for model in self.models.values() if model.name == name]:
            await self._end(model)

    async def _end(self, model: LoadedModel) -> None:
        model.keep_alive_s = 0.0
        if model.n_users == 0:
            async with self._loading:
                if model.n_users == 0 and self.models.get(model.source.key) is model:
                    await self._unload(model)

    async def close(self) -> None:
        """Gives running requests the configured time to finish, then frees everything."""
        self.stop_loads()
        await self._loading.acquire()  # never released, so that nothing is loaded any more
        models = list(self.models.values())
        self.models.clear()
        await asyncio.gather(*(model.engine.close(grace_s=self.config.grace_s) for model in models))

    def stop_loads(self) -> None:
        """Cancels running loads and refuses new loads. Requests that wait for a load get an error."""
        self._is_stopping = True
        for loading in self._loads.values():
            loading.cancel()

    async def _taken(self, source: Source, n_ctx: int) -> LoadedModel:
        """Returns a loaded model and adds one to the count of its users. All requests for a model that is
        being loaded share this load and its error. The load continues even if all of them disconnect.
        """
        model = self.models.get(source.key)
        if model is not None and model.engine.broken is None:
            model.n_users += 1
            return model
        loading = self._loads.get(source.key)
        if loading is None:
            loading = self._loads[source.key] = asyncio.ensure_future(self._load(source, n_ctx))
        self._n_joined[source.key] += 1
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

    async def _load(self, source: Source, n_ctx: int) -> LoadedModel:
        """Loads a model for all requests that wait for this load. A loaded model whose engine is broken is
        replaced. Raises ApiError if the server stops.
        """
        try:
            async with self._loading:
                return await self._loaded(source, n_ctx)
        except asyncio.CancelledError:
            raise ApiError(503, f"the server is stopping, so '{source.name}' is not loaded") from None
        finally:
            del self._loads[source.key], self._n_joined[source.key]
            self._changed.set()

    async def _loaded(self, source: Source, n_ctx: int) -> LoadedModel:
        if self._is_stopping:
            raise asyncio.CancelledError
        if (old := self.models.pop(source.key, None)) is not None:  # the old engine is broken
            await self._unload(old)
        plan = await self.work.loading.run(plan_source, source, self.config, n_ctx)
        if await self._make_room(n_bytes_of(plan), source.name):  # now a longer context may fit
            plan = await self.work.loading.run(plan.with_context)
        adapters = "".join(f", {Path(path).name} at {scale:g}" for path, scale in source.adapters)
        _log.info("loading %s%s", source.name, adapters)
        model = await self.work.loading.run(LoadedModel, source, plan, self.config, self._turns)
        self.metrics.add("model_loads_total", model=source.name)
        _log.info(
            "loaded %s in %.0f ms, %d tokens of context for each of %d conversations",
            source.name, model.load_ms, model.n_ctx, self.config.n_parallel,
        )  # fmt: skip
        for notice in model.notices:
            _log.warning("%s: %s", source.name, notice)
        self.models[source.key] = model
        model.n_users += self._n_joined[source.key]
        return model

    async def _make_room(self, n_bytes: int, name: str) -> bool:
        """Unloads other models until `n_bytes` more fit into memory; returns whether a model was unloaded.
        name: the new model, for errors. Raises ApiError if the pinned models leave too little.
        """
        pinned = [model for model in self.models.values() if model.is_pinned]
        n_pinned_bytes = sum(model.n_bytes for model in pinned)
        if len(pinned) >= self.config.n_models or n_pinned_bytes + n_bytes > self.n_bytes:
            raise ApiError(
                503,
                f"model '{name}' needs about {human_bytes(n_bytes)}, but models may use only "
                f"{human_bytes(self.n_bytes)} (--memory), of which pinned models take "
                f"{human_bytes(n_pinned_bytes)}; pinned {len(pinned)} of --max-models {self.config.n_models}",
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
        """Ends leases of these models that have lasted longer than `slot_time_s`. Then waits until a model is
        unused or unloaded, at most one second.
        """
        if self.config.slot_time_s > 0:
            for lease in [lease for model in of for lease in model.leases]:
                lease.end_late(self.config.slot_time_s)
        await self._look_again()

    async def _look_again(self) -> None:
        """Waits until a model is unused or unloaded, at most `_LOOK_S` seconds."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await self._changed.wait()

    async def _unload(self, model: LoadedModel) -> None:
        name, key = model.name, model.source.key
        if self.models.get(key) is model:
            del self.models[key]
        _log.info("unloading %s", name)
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
