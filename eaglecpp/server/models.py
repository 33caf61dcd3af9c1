# SPDX-License-Identifier: MIT
"""`ModelPool`: which models are in memory.

`async with pool.use("name") as model` gives a loaded model, loading it first if necessary, and keeps it from
being unloaded in the meantime. An unused model is unloaded when its time is over, or when another one needs
its memory, least recently used first. All state belongs to the event loop; only loading itself is in a
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request

from eaglecpp.engine.slots import FairLock
from eaglecpp.errors import QueueFullError
from eaglecpp.learn.idle import Learner
from eaglecpp.opening.context import free_memory
from eaglecpp.server.config import ServerConfig
from eaglecpp.server.errors import ApiError
from eaglecpp.server.kept import KeptResponses
from eaglecpp.server.loaded import Key, LoadedModel, Source, find_source, n_bytes_of, plan_source
from eaglecpp.server.metrics import Metrics
from eaglecpp.server.work import Held, Work

T = TypeVar("T")


class Server:
    """files: GGUF files served under a name."""

    def __init__(self, config: ServerConfig, files: Mapping[str, Path]) -> None:
        self.config = config
        self.metrics = Metrics()
        self.work = Work()
        self.held = Held(max(config.n_held, config.n_body))
        self.kept = KeptResponses(config.n_responses, config.n_response_bytes)
        self.pool = ModelPool(config, self.metrics, files, self.work)

    async def files_run(self, work: Callable[..., T], *args: Any) -> T:
        """What `work` says of the models on this machine: files served under a name, and stored ones."""
        return await self.work.files.run(work, self.pool.files, self.config, *args)


def server_of(request: Request) -> Server:
    """The server that a request came to."""
    server: Server = request.app.state.server
    return server


_SHARE = 0.85  # of the free memory at the start that models may take
_LOOK_S = 1.0  # at what others wait for
_log = logging.getLogger("eaglecpp.server")


class Lease:
    """The use of a loaded model.

    end_late: ends it where it takes longer than so many seconds: others wait for the memory
    in_queue: counts it among the requests for the model until it is closed
    """

    def __init__(self, model: LoadedModel, in_queue: contextlib.ExitStack) -> None:
        self.model = model
        self.in_queue = in_queue
        self.end_late: Callable[[float], None] = lambda max_s: None


class ModelPool:
    """files: GGUF files served under a name, besides what the stores hold.

    models: by what is opened (`Source.key`), so that all names of one model share it
    """

    def __init__(self, config: ServerConfig, metrics: Metrics, files: Mapping[str, Path], work: Work) -> None:
        self.config = config
        self.metrics = metrics
        self.work = work
        self.files = dict(files)
        self.models: dict[Key, LoadedModel] = {}
        self.n_bytes = config.n_bytes or int(_SHARE * (free_memory() or 1 << 62))
        self._n_asked: Counter[Key] = Counter()
        self._loading = asyncio.Lock()
        self._changed = asyncio.Event()
        self._released = asyncio.Event()
        self._turns = FairLock()
        self._last_use = time.monotonic()
        self.learner = Learner(self._learning, self.idle_for, self.forget, config.learn_idle_s, work.files)

    def _learning(self) -> Iterator[tuple[str, Path, Path]]:
        """Models whose answers are kept for their drafter: name, target, drafter."""
        for model in list(self.models.values()):
            found = model.source.found
            if model.engine.engine.shared.on_answer is not None and found.draft is not None:
                yield model.name, found.target, found.draft

    def idle_for(self) -> float:
        """Seconds since the last use of any model ended, 0 while one is used."""
        in_use = self._loading.locked() or any(model.n_users for model in self.models.values())
        return 0.0 if in_use else time.monotonic() - self._last_use

    @asynccontextmanager
    async def use(
        self,
        name: str,
        *,
        n_ctx: int = 0,
        keep_alive_s: float | None = None,
        is_queued: bool = True,
        lora: Mapping[int, float] | None = None,
    ) -> AsyncIterator[Lease]:
        """The model of that name, loaded. n_ctx: the context at least of one that is not loaded yet; one that
        is keeps what it has. is_queued: counts among the requests of which each model has so many at most.
        lora: scales of its adapters, None = its own. Raises ModelNotFoundError, QueueFullError and what
        opening an engine raises.
        """
        self.learner.stop_for_request()
        self._last_use = time.monotonic()
        source = await self.work.names.run(find_source, name, self.config, self.files, lora)
        n_max = self.config.n_parallel + self.config.n_queue
        if is_queued and self._n_asked[source.base_key] >= n_max:
            raise QueueFullError(
                f"the queue is full: {source.name} has {n_max} requests, {self.config.n_parallel} at a time"
            )
        with contextlib.ExitStack() as in_queue:
            if is_queued:
                self._n_asked[source.base_key] += 1
                in_queue.callback(self._left, source.base_key)
            model = await self._taken(source, n_ctx)
            lease = Lease(model, in_queue)
            try:
                model.keep_alive_s = self.config.keep_alive_s if keep_alive_s is None else keep_alive_s
                if model.is_pinned:
                    model.keep_alive_s = -1.0
                model.leases.add(lease)
                yield lease
            finally:
                model.leases.discard(lease)
                self._release(model)

    def _left(self, key: Key) -> None:
        self._n_asked[key] -= 1
        self._n_asked += Counter()  # drops what is 0

    async def unload(self, name: str) -> bool:
        """Unloads a model, by any of its names, as soon as nobody uses it; False when it is not loaded. One
        with other adapters goes with it. Raises ModelNotFoundError; ApiError for a pinned one.
        """
        source = await self.work.names.run(find_source, name, self.config, self.files)
        if self.config.is_pinned(source.name):
            raise ApiError(400, f"'{source.name}' is pinned: the operator of this server keeps it in memory")
        found = self._named(source.name) + [m for m in self.models.values() if m.source.key == source.key]
        for model in dict.fromkeys(found):
            await self._end(model)
        return bool(found)

    async def forget(self, name: str) -> None:
        """Unloads the models of that name, as soon as nobody uses them: it is no longer there, or has another
        drafter. name: as lists have it
        """
        for model in self._named(name):
            await self._end(model)

    async def _end(self, model: LoadedModel) -> None:
        model.keep_alive_s = 0.0
        if model.n_users == 0:
            async with self._loading:
                if model.n_users == 0 and self.models.get(model.source.key) is model:
                    await self._unload(model)

    async def close(self) -> None:
        """Gives what runs the configured time to end, then frees everything."""
        models = list(self.models.values())
        self.models.clear()
        await asyncio.gather(*(model.engine.close(grace_s=self.config.grace_s) for model in models))

    def _named(self, name: str) -> list[LoadedModel]:
        return [model for model in self.models.values() if model.name == name]

    async def _taken(self, source: Source, n_ctx: int) -> LoadedModel:
        """A model with one more user."""
        while True:
            model = self.models.get(source.key)
            if model is not None and model.engine.broken is None:
                model.n_users += 1
                return model
            await self._loading.acquire()  # for whoever leaves until now nothing is loaded
            if self.models.get(source.key) is not model:
                self._loading.release()
                continue
            self.models.pop(source.key, None)  # nobody else takes what is about to go
            # Loading goes on when whoever asked for it has left: what a thread makes must not be lost.
            loading = asyncio.ensure_future(self._load(source, n_ctx, model))
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
        self._released.set()

    async def _load(self, source: Source, n_ctx: int, old: LoadedModel | None) -> LoadedModel:
        """A new model with one user, in place of one that is broken. Gives the lock `_loading` back."""
        try:
            if old is not None:
                await self._unload(old)
            plan = await self.work.loading.run(plan_source, source, self.config, n_ctx)
            if await self._make_room(n_bytes_of(plan), source.name):  # there is memory for more context now
                plan = await self.work.loading.run(plan.with_context)
            started = time.perf_counter()
            adapters = "".join(f", {Path(path).name} at {scale:g}" for path, scale in source.adapters)
            _log.info("loading %s%s", source.name, adapters)
            model = await self.work.loading.run(LoadedModel.load, source, plan, self.config, self._turns)
            load_ms = 1000 * (time.perf_counter() - started)
            self.metrics.add("model_loads_total", model=source.name)
            _log.info(
                "loaded %s in %.0f ms, %d tokens of context for each of %d conversations",
                source.name, load_ms, model.n_ctx, self.config.n_parallel,
            )  # fmt: skip
            model.keep_alive_s, model.load_ms = self.config.keep_alive_s, load_ms
            model.is_pinned = self.config.is_pinned(source.name) and not source.chosen
            self.models[source.key] = model
            model.n_users += 1
            return model
        finally:
            self._loading.release()
            self._changed.set()

    async def _make_room(self, n_bytes: int, name: str) -> bool:
        """Unloads others as far as it takes; whether any was."""
        pinned = [model for model in self.models.values() if model.is_pinned]
        n_pinned_bytes = sum(model.n_bytes for model in pinned)
        if len(pinned) >= self.config.n_models or n_pinned_bytes + n_bytes > self.n_bytes:
            raise ApiError(
                503,
                f"model '{name}' needs about {n_bytes / 2**30:.1f} GiB, but models may use only "
                f"{self.n_bytes / 2**30:.1f} GiB here (--memory), {n_pinned_bytes / 2**30:.1f} of them for "
                f"the {len(pinned)} of {self.config.n_models} that are pinned (--max-models)",
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
        """Waits for a while, at most until something changes. What has used one `of` these for longer than
        `place_s` loses it.
        """
        if self.config.place_s > 0:
            for lease in [lease for model in of for lease in model.leases]:
                lease.end_late(self.config.place_s)
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
        """Unloads models whose time is over, as long as it runs."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._released.wait()
            self._released.clear()
            async with self._loading:
                for model in list(self.models.values()):
                    seconds = model.seconds_left
                    if model.n_users == 0 and seconds is not None and seconds <= 0:
                        await self._unload(model)
