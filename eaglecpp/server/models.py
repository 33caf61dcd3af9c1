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
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from eaglecpp.engine.places import TurnLock
from eaglecpp.opening.context import free_memory
from eaglecpp.server.catalog import Library
from eaglecpp.server.config import ServerConfig
from eaglecpp.server.errors import ApiError
from eaglecpp.server.learner import Learner
from eaglecpp.server.loaded import Key, LoadedModel, Source, find_source, n_bytes_of, plan_source
from eaglecpp.server.metrics import Metrics

__all__ = ["Lease", "ModelPool", "Server", "Slot"]


class Server:
    """files: GGUF files served under a name."""

    def __init__(self, config: ServerConfig, files: Mapping[str, Path]) -> None:
        self.config = config
        self.metrics = Metrics()
        self.pool = ModelPool(config, self.metrics, files)
        self.library = Library(files)
        self.started = time.time()


_SHARE = 0.85  # of the free memory at the start that models may take
_FOREVER = timedelta(days=365 * 100)
_log = logging.getLogger("eaglecpp.server")


class Slot:
    """A loaded model and who uses it.

    names:   under which it was asked for, and which still stand for it as far as we know
    load_ms: what loading took
    """

    def __init__(self, model: LoadedModel, keep_alive_s: float, load_ms: float) -> None:
        self.model = model
        self.names = {model.name}
        self.n_users = 0
        self.used = time.monotonic()
        self.keep_alive_s = keep_alive_s
        self.load_ms = load_ms
        self.is_leaving = False  # whoever asks for this model now waits for the one that replaces it

    @property
    def name(self) -> str:
        """The first of its names that it still has."""
        name = self.model.name
        return name if name in self.names else min(self.names, default=name)

    @property
    def seconds_left(self) -> float | None:
        """Until it goes; None = it stays."""
        if self.keep_alive_s < 0:
            return None
        return self.keep_alive_s if self.n_users else self.used + self.keep_alive_s - time.monotonic()

    @property
    def expires_at(self) -> datetime:
        left = self.seconds_left
        return datetime.now(UTC) + (_FOREVER if left is None else timedelta(seconds=min(left, 86400 * 36500)))


class Lease:
    """The use of a loaded model; `enlarge` may put another slot in its place."""

    def __init__(self, slot: Slot | None) -> None:
        self.slot = slot

    @property
    def model(self) -> LoadedModel:
        if self.slot is None:
            raise ApiError(503, "the model was unloaded while the request was waiting for it")
        return self.slot.model


class ModelPool:
    """files: GGUF files served under a name, besides what the stores hold.

    slots: by what is opened (`Source.key`), so that all names of one model share it
    """

    def __init__(self, config: ServerConfig, metrics: Metrics, files: Mapping[str, Path]) -> None:
        self.config = config
        self.metrics = metrics
        self.files = dict(files)
        self.slots: dict[Key, Slot] = {}
        self.n_bytes = config.n_bytes or int(_SHARE * (free_memory() or 1 << 62))
        self._loading = asyncio.Lock()
        self._changed = asyncio.Event()
        self._uses_changed = asyncio.Event()
        self._turns = TurnLock()
        self._sweeper: asyncio.Task[None] | None = None
        self._last_use = time.monotonic()
        self.learner = Learner(
            lambda: [slot.model for slot in self.slots.values()],
            self.idle_for,
            self.unload,
            config.learn_idle_s,
        )

    def idle_for(self) -> float:
        """Seconds since the last use of any model ended, 0 while one is used."""
        in_use = self._loading.locked() or any(slot.n_users for slot in self.slots.values())
        return 0.0 if in_use else time.monotonic() - self._last_use

    @asynccontextmanager
    async def use(
        self, name: str, *, n_ctx: int = 0, keep_alive_s: float | None = None
    ) -> AsyncIterator[Lease]:
        """The model of that name, loaded. n_ctx: what a model is opened with that is not loaded yet; one that
        is keeps what it has. Raises ModelNotFoundError and what opening an engine raises.
        """
        self.learner.stop_for_request()
        self._last_use = time.monotonic()
        source = await asyncio.to_thread(find_source, name, self.config, self.files)
        lease = Lease(self._ready(source))
        if lease.slot is None:
            lease.slot = await self._loaded(source, n_ctx)
        else:
            lease.slot.n_users += 1
        lease.slot.keep_alive_s = self.config.keep_alive_s if keep_alive_s is None else keep_alive_s
        try:
            yield lease
        finally:
            self._release(lease)

    async def enlarge(self, lease: Lease, n_ctx: int) -> None:
        """Opens the leased model again with a longer context as soon as nobody uses it; whoever asks for it
        meanwhile waits for the new one.
        """
        assert lease.slot is not None
        source, keep_alive_s = lease.slot.model.source, lease.slot.keep_alive_s
        lease.slot.is_leaving = True
        self._release(lease)
        lease.slot = await self._loaded(source, n_ctx, at_least=n_ctx)
        lease.slot.keep_alive_s = keep_alive_s

    async def unload(self, name: str) -> bool:
        """Unloads a model, by any of its names, as soon as nobody uses it; False when it is not loaded.
        Raises ModelNotFoundError.
        """
        source = await asyncio.to_thread(find_source, name, self.config, self.files)
        slot = self.slots.get(source.key) or self._named(source.name)
        if slot is None:
            return False
        await self._end(slot)
        return True

    async def forget(self, name: str) -> None:
        """Unloads the model of that name, which is no longer there, unless it has another name. name: as
        lists have it
        """
        slot = self._named(name)
        if slot is not None:
            slot.names.discard(name)
            if not slot.names:
                await self._end(slot)

    async def _end(self, slot: Slot) -> None:
        slot.keep_alive_s = 0.0
        self._wake_sweeper()
        if slot.n_users == 0:
            async with self._loading:
                if slot.n_users == 0 and self.slots.get(slot.model.source.key) is slot:
                    await self._unload(slot)

    async def close(self) -> None:
        """Gives what runs the configured time to end, then frees everything."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        slots = list(self.slots.values())
        self.slots.clear()
        await asyncio.gather(*(slot.model.engine.close(grace_s=self.config.grace_s) for slot in slots))

    def _ready(self, source: Source) -> Slot | None:
        slot = self.slots.get(source.key)
        if slot is None or slot.is_leaving or slot.model.engine.broken is not None:
            return None
        for other in self.slots.values():
            if other is not slot and source.name in other.names:  # which it no longer stands for
                other.names.discard(source.name)
                if not other.names:
                    other.keep_alive_s = 0.0
                    self._wake_sweeper()
        slot.names.add(source.name)
        return slot

    def _named(self, name: str) -> Slot | None:
        return next((slot for slot in self.slots.values() if name in slot.names), None)

    async def _loaded(self, source: Source, n_ctx: int, at_least: int = 0) -> Slot:
        """A slot with one more user. Loading goes on when whoever asked for it has left: a thread does it,
        and what it made must not be lost.
        """
        loading = asyncio.ensure_future(self._load_once(source, n_ctx, at_least))
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(self._give_up)
            raise

    def _give_up(self, loading: asyncio.Future[Slot]) -> None:
        if not loading.cancelled() and loading.exception() is None:
            self._release(Lease(loading.result()))

    async def _load_once(self, source: Source, n_ctx: int, at_least: int) -> Slot:
        async with self._loading:
            slot = self._ready(source)
            if slot is None or slot.model.n_ctx < at_least:
                slot = await self._load(source, n_ctx)
            slot.n_users += 1
            return slot

    def _release(self, lease: Lease) -> None:
        slot, lease.slot = lease.slot, None
        if slot is not None:
            slot.n_users -= 1
            slot.used = self._last_use = time.monotonic()
            self._changed.set()
            self._wake_sweeper()

    async def _load(self, source: Source, n_ctx: int) -> Slot:
        old = self.slots.get(source.key)  # broken, or too short
        if old is None and (other := self._named(source.name)) is not None:
            other.names.discard(source.name)  # the name stands for another model now
            old = None if other.names else other
        if old is not None:
            old.is_leaving = True
            if old.model.engine.broken is None:
                await self._until(lambda: old.n_users == 0)
            await self._unload(old)
        plan = await asyncio.to_thread(plan_source, source, self.config, n_ctx)
        if await self._make_room(n_bytes_of(plan), source.name):  # there is memory for more context now
            plan = await asyncio.to_thread(plan.with_context)
        started = time.perf_counter()
        _log.info("loading %s", source.name, extra={"model": source.name})
        model = await asyncio.to_thread(LoadedModel.load, source, plan, self.config, self._turns)
        load_ms = 1000 * (time.perf_counter() - started)
        self.metrics.loads.add(1, model=source.name)
        _log.info(
            "loaded %s in %.0f ms, %d tokens of context for each of %d conversations",
            source.name, load_ms, model.n_ctx, self.config.n_parallel,
            extra={"model": source.name, "load_ms": round(load_ms), "n_ctx": model.n_ctx},
        )  # fmt: skip
        slot = self.slots[source.key] = Slot(model, self.config.keep_alive_s, load_ms)
        self._wake_sweeper()
        return slot

    async def _make_room(self, n_bytes: int, name: str) -> bool:
        """Unloads others as far as it takes; whether any was."""
        if n_bytes > self.n_bytes:
            raise ApiError(
                503,
                f"model '{name}' needs about {n_bytes / 2**30:.1f} GiB, but models may use only "
                f"{self.n_bytes / 2**30:.1f} GiB here (--memory); a shorter context needs less (num_ctx)",
                code="out_of_memory",
            )

        def fits() -> bool:
            taken = sum(slot.model.n_bytes for slot in self.slots.values())
            return taken + n_bytes <= self.n_bytes and len(self.slots) < self.config.n_models

        n_slots = len(self.slots)
        while not fits():
            idle = [slot for slot in self.slots.values() if slot.n_users == 0]
            if idle:
                await self._unload(min(idle, key=lambda slot: slot.used))
            else:
                await self._until(lambda: fits() or any(s.n_users == 0 for s in self.slots.values()))
        return len(self.slots) < n_slots

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    async def _unload(self, slot: Slot) -> None:
        name, key = slot.model.name, slot.model.source.key
        if self.slots.get(key) is slot:
            del self.slots[key]
        _log.info("unloading %s", name, extra={"model": name})
        await slot.model.engine.close()
        self._changed.set()

    def _wake_sweeper(self) -> None:
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        self._uses_changed.set()

    async def _sweep(self) -> None:
        """Unloads models whose time is over."""
        while True:
            self._uses_changed.clear()
            left = [one.seconds_left for one in self.slots.values() if one.n_users == 0]
            waits = [max(0.0, seconds) for seconds in left if seconds is not None]
            with contextlib.suppress(TimeoutError):
                # not wait_for, which loses a cancellation that comes with the event, until Python 3.12
                async with asyncio.timeout(min(waits, default=None)):
                    await self._uses_changed.wait()
            async with self._loading:
                for slot in list(self.slots.values()):
                    seconds = slot.seconds_left
                    if slot.n_users == 0 and seconds is not None and seconds <= 0:
                        await self._unload(slot)
