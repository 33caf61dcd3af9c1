# SPDX-License-Identifier: MIT
"""Opens an engine: loads the models of a plan, with measurements from earlier runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from eaglecpp._extension import core
from eaglecpp.chat.codec import ChatCodec
from eaglecpp.engine.exactness import found, measure
from eaglecpp.engine.native import NativeEngine
from eaglecpp.engine.planner_cache import PlannerCache
from eaglecpp.engine.projector import Projector
from eaglecpp.engine.prompt_cache import PromptCache
from eaglecpp.engine.rehearsal import rehearse
from eaglecpp.engine.request import Shared, native_options, resolve_strategy
from eaglecpp.engine.vocabulary import Vocabulary
from eaglecpp.learn.records import Learning
from eaglecpp.log import drain
from eaglecpp.opening.plan import OpeningPlan
from eaglecpp.options import DraftOptions
from eaglecpp.results import Timings
from eaglecpp.threads import check_wanted

_log = logging.getLogger("eaglecpp.engine")


def load(
    plan: OpeningPlan, *, count: Callable[[Timings, float], None], keep: Callable[[PlannerCache], None]
) -> tuple[NativeEngine, Shared]:
    """Opens the models of a plan. Returns the engine and the state that its conversations share. count:
    function called with the counters and the temperature of each generation; keep: function called once with
    the planner's cache.
    """
    drafting = _connect_servers(plan)
    may_draft = plan.draft is not None or drafting.text_drafts == "on"
    strategy = plan.strategy.value
    resolved, _ = resolve_strategy(strategy, may_draft)
    model = plan.model_options()
    options = native_options(plan.target, plan.draft, model, drafting, resolved)
    native = NativeEngine(options)
    try:
        has_draft = may_draft and not native.get().only_embeds
        has_forms = native.get().drafts_forms_alone
        vocabulary = Vocabulary(native)
        shared = Shared(
            native,
            vocabulary,
            plan.sampling_options(),
            ChatCodec(vocabulary, plan.files, lambda: native.get().chat_template()),
            count,
            has_draft,
            strategy,
            min(options.n_leaves_max, options.n_draft_max),
            has_forms,
            on_answer=_on_answer(plan, drafting),
        )
        shared.prompts = PromptCache.of_engine(native.get(), plan, drafting)
        if model.mmproj:
            # llama.cpp would use 4 threads for the number 0
            n_threads = options.n_threads or core.system_info()["n_cores"]
            vocabulary.projector = Projector(
                native, Path(model.mmproj), plan.target, n_threads, gpu=model.n_gpu_layers != 0
            )
        if (possible := shared.resolve_strategy(strategy))[0] != resolved:
            _log.warning("strategy %s %s", *possible)

        def prepare(sequence: int = -1) -> None:
            has_costs = has_exact = False
            cache = None
            if drafting.planner_cache and os.environ.get("EAGLECPP_PLANNER_CACHE") != "0":
                cache = PlannerCache(native.get(), plan, drafting)
                has_costs, has_exact = cache.load(native.get())
            exactness = found(native.get()) if has_exact else measure(native.get(), sequence)
            shared.exactness = exactness
            if cache is not None:
                keep(cache)
            drain()
            if drafting.exact == "on" and exactness.reason:
                _log.warning("exact=on: target-only decoding, because %s", exactness.reason)
            check_wanted()
            if plan.draft is not None and not has_costs:
                rehearse(native.get(), shared.sampling)

        if has_draft:
            prepare()
        elif shared.has_forms:
            native.before_forms = prepare
    except BaseException:
        native.close(lambda native: None)
        raise
    return native, shared


def _on_answer(
    plan: OpeningPlan, drafting: DraftOptions
) -> Callable[[Sequence[int], Sequence[int]], None] | None:
    if not drafting.learn or plan.draft is None:
        return None
    if plan.model_options().lora:
        _log.warning("learn: no answers are saved, because a drafter learns the model without its adapters")
        return None
    return Learning.of(plan.target).keep_later


def _connect_servers(plan: OpeningPlan) -> DraftOptions:
    """Registers the devices of the plan's RPC servers in llama.cpp. Returns drafting options that keep the
    drafter on this machine.
    """
    drafting = plan.draft_options()
    if servers := plan.model_options().rpc:
        from eaglecpp.engine import rpc

        rpc.connect(servers)
        return rpc.keep_drafter_here(drafting, core.system_info()["devices"])
    return drafting
