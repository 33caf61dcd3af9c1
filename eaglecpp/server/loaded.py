# SPDX-License-Identifier: MIT
"""From a model's name to an open engine and everything that a conversation with it needs: `Source`,
`LoadedModel`.

The only module of the server that knows how models are found and opened. Everything here blocks; the pool
calls it in threads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from eaglecpp.chat.model import ChatModel
from eaglecpp.engine.async_engine import AsyncEngine
from eaglecpp.engine.engine import Engine
from eaglecpp.errors import MismatchError, ModelNotFoundError
from eaglecpp.lowlevel import gpus
from eaglecpp.modelfile.parameters import engine_options
from eaglecpp.opening.context import free_memory, memory_needed
from eaglecpp.opening.find import Found, find_here, find_name, with_draft
from eaglecpp.opening.plan import OpeningPlan, make_plan
from eaglecpp.options import MAX_SEQUENCES, Strategy
from eaglecpp.references.names import ModelNameError
from eaglecpp.references.reference import model_name, part_paths
from eaglecpp.server.catalog import complete_entry, means_path, served
from eaglecpp.server.config import Preset, ServerConfig
from eaglecpp.server.errors import ApiError, FieldError
from eaglecpp.store import Stores
from eaglecpp.store.content import file_state
from eaglecpp.store.model import StoredModel

_N_BATCH = 256  # tokens of a prompt between two rounds: others wait for them
_PARK_SHARE = 8  # of the free memory, one part is the most that parked conversations may take
_log = logging.getLogger("eaglecpp.server")


Key = tuple[Any, ...]
"""What is opened: the files as they are now, and what the model's author says of them."""


@dataclass(frozen=True)
class Source:
    """What a name stands for now.

    name:   in the one spelling that lists have, whatever the request's was
    key:    the same for all names of one model
    stored: gives the model in its store, or the file as one
    adapters: path and scale of each that it has; with a scale of 0 it is not used
    chosen: the scales, where a request chose them
    """

    name: str
    found: Found
    key: Key
    stored: Callable[[], StoredModel]
    adapters: tuple[tuple[str, float], ...] = ()
    chosen: tuple[float, ...] = ()

    @classmethod
    def of(cls, name: str, found: Found, config: ServerConfig, stored: Callable[[], StoredModel]) -> Source:
        """Spellings and copies share a key. Another drafter, adapter or Modelfile (parameters, system prompt,
        template, messages) on the same weights is another model.
        """
        model, said, draft = found.model, found.model.modelfile, found.draft
        files = (
            tuple(map(file_state, part_paths(found.target))),
            None if draft is None else file_state(draft),
            tuple(map(file_state, (*model.adapters, *model.projectors))),
        )
        texts = (said.template, model.stored_template, said.system, said.messages, said.pragmas)
        options = config.engine_of(name)
        own = repr((sorted(options.items()), config.is_pinned(name) and name))
        key = (files, found.drafts_text, repr((*texts, sorted(said.parameters.items()))), own)
        adapters = options.get("lora") or tuple((str(path), 1.0) for path in model.adapters)
        return cls(name, found, key, stored, tuple(adapters))

    def adapted(self, scales: Mapping[int, float]) -> Source:
        """The same model with its adapters at these scales, by their number; the others are not used. It is
        another model in memory: rows of different adapters neither share a batch nor a cache. Raises
        ApiError.
        """
        for number in scales:
            if not 0 <= number < len(self.adapters):
                has = f"it has {len(self.adapters)} of them" if self.adapters else "it has none"
                raise FieldError("lora", f"{self.name} has no adapter {number}: {has} (GET /lora-adapters)")
        chosen = tuple(scales.get(i, 0.0) for i in range(len(self.adapters)))
        if chosen == tuple(scale for _, scale in self.adapters):
            return self
        paths = (path for path, _ in self.adapters)
        adapters = tuple(zip(paths, chosen, strict=True))
        return replace(self, adapters=adapters, key=(*self.key, chosen), chosen=chosen)

    @property
    def base_key(self) -> Key:
        """Of the model with its own scales: all share one queue."""
        return self.key[:-1] if self.chosen else self.key


def find_source(
    name: str,
    config: ServerConfig,
    files: Mapping[str, Path],
    lora: Mapping[int, float] | None = None,
) -> Source:
    """Looks a name up on this machine; nothing is fetched. files: GGUF files served under a name. Clients
    name models; which files are served is the operator's choice. A server of one file means that file by
    every name that nothing else has, as llama-server does: clients send whatever they were written with.
    lora: scales of its adapters by number, in place of the model's own

    Raises ModelNotFoundError, ModelNameError; ApiError where no name is given and none is meant.
    """
    name = name or config.model
    if not name:
        raise ApiError(400, "model is required", param="model")
    if lora is not None:
        return find_source(name, config, files).adapted(lora)
    if name not in files and name.removesuffix(":latest") in files:
        name = name.removesuffix(":latest")
    if name in files:
        found = find_here(files[name], config.draft_of(name))
        return Source.of(name, found, config, lambda: served(files[name]))
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
    """How the model is opened: as it says, under what the server was told, with room for several
    conversations. n_ctx: tokens that one conversation has at least; more, where model and memory allow
    it.
    """
    strategy = Strategy.parse(config.strategy) if config.strategy else None
    options: dict[str, Any] = config.engine_of(source.name) | {"n_sequences": config.n_parallel}
    n_ids = MAX_SEQUENCES // config.n_parallel - 1
    options.setdefault("n_leaves_max", max(1, min(Strategy.AUTO_LEAVES, n_ids)))
    if source.adapters:
        options["lora"] = tuple((path, scale) for path, scale in source.adapters if scale)
    defaults: dict[str, Any] = {"model.n_batch": _N_BATCH}  # and Ollama's for sampling, also of a bare file
    defaults |= {name: value for name, value in engine_options({}).items() if name.startswith("sampling.")}
    make = partial(make_plan, source.found, strategy=strategy, defaults=defaults, choose_context=True)
    plan = make(options=options)
    if 0 <= plan.model_options().n_ctx < n_ctx:  # -1 is as long as it gets
        plan = make(options=options | {"n_ctx": n_ctx})
    off = plan.strategy.value.kind == "off"
    return plan.without_drafts() if off and source.found.draft is None else plan


def n_bytes_of(plan: OpeningPlan) -> int:
    """Bytes of memory that a model takes when it is opened so."""
    return memory_needed(plan.target, plan.model_options(), plan.found.n_weight_bytes)


class LoadedModel:
    """A model in memory: its engine, and who uses it. Made by `load`; used by one server.

    used: when its last use ended; load_ms: what loading took, until a request was told;
    is_pinned: it is not unloaded for another one
    """

    def __init__(
        self, source: Source, engine: AsyncEngine, strategy: Strategy, n_bytes: int, notices: Sequence[str]
    ) -> None:
        self.source = source
        self.entry = complete_entry(source.stored(), source.name)  # as /api/tags lists it
        self.engine = engine
        self.strategy = strategy
        self.n_bytes = n_bytes
        self.notices = list(notices)
        self.n_ctx = engine.engine.n_ctx
        self.n_users = 0
        self.used = time.monotonic()
        self.keep_alive_s = 0.0
        self.load_ms = 0.0
        self.is_pinned = False
        self.leases: set[Any] = set()  # of the pool

    @property
    def seconds_left(self) -> float | None:
        """Until it goes; None = it stays."""
        if self.keep_alive_s < 0:
            return None
        return self.keep_alive_s if self.n_users else self.used + self.keep_alive_s - time.monotonic()

    @property
    def expires_at(self) -> datetime:
        left = 100 * 365 * 86400 if self.seconds_left is None else self.seconds_left
        return datetime.now(UTC) + timedelta(seconds=min(left, 100 * 365 * 86400))

    @property
    def chat(self) -> ChatModel:
        """Prompts and answers."""
        return self.engine.engine.shared.chat

    @classmethod
    def load(
        cls, source: Source, plan: OpeningPlan, config: ServerConfig, turns: AbstractContextManager[Any]
    ) -> LoadedModel:
        """Opens the engine, in a thread of its own. plan: of `plan_source`."""
        notices = list(plan.notices)

        def open_engine() -> Engine:
            try:
                return Engine(plan)
            except MismatchError as error:
                if source.found.draft_asked:
                    raise
                notices.append(f"running without the drafter, which does not fit: {error}")
                _log.warning("%s: %s", source.name, notices[-1])
                return Engine(plan.without_drafts())

        n_park_bytes = min(config.n_park_bytes, (free_memory() or 1 << 62) // _PARK_SHARE)
        engine = AsyncEngine(
            open_engine,
            n_queue=config.n_queue,
            n_park_bytes=n_park_bytes,
            place_s=config.place_s,
            n_unread=config.n_unread,
            turns=turns,
        )
        engine.wait_opened()
        return cls(source, engine, plan.strategy.value, n_bytes_of(plan), notices)

    @property
    def name(self) -> str:
        return self.source.name

    def answers_as(self, asked: str) -> str:
        """What an answer calls the model: as the request did, a file by its own name."""
        return self.name if self.source.found.is_file or not asked else asked

    @property
    def on_gpu(self) -> bool:
        """Whether layers lie on a GPU."""
        return self.engine.engine.model.n_gpu_layers != 0 and bool(gpus())
