# SPDX-License-Identifier: MIT
"""Opens an engine: loads the models of a plan, with measurements from earlier runs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from eaglecpp._extension import core
from eaglecpp.chat.codec import ChatCodec
from eaglecpp.engine.exactness import measure
from eaglecpp.engine.native import NativeEngine
from eaglecpp.engine.planner_cache import PlannerCache
from eaglecpp.engine.projector import Projector
from eaglecpp.engine.prompt_cache import PromptCache
from eaglecpp.engine.request import Shared, generate_params, native_options, resolve_strategy
from eaglecpp.engine.vocabulary import Vocabulary
from eaglecpp.errors import UnsupportedError
from eaglecpp.learn.records import Learning
from eaglecpp.log import drain
from eaglecpp.opening.plan import OpeningPlan
from eaglecpp.options import DraftOptions, SamplingOptions, Strategy
from eaglecpp.results import Timings
from eaglecpp.threads import check_wanted

_log = logging.getLogger("eaglecpp.engine")
_MEASURE_S = 2.0  # maximum seconds for which opening measures; one step may exceed them
_TEXT = b"The sun rises in the east and sets in the west. "
_TOKENS = 16
_DEPTH = 3  # maximum depth of the chains that the warm-up drafts


def load(plan: OpeningPlan, count: Callable[[Timings, float], None]) -> tuple[NativeEngine, Shared]:
    """Opens the models of a plan. Returns the engine and the state that its conversations share. count:
    function called with the counters and the temperature of each generation.
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

        def prepare() -> None:
            has_costs = False
            end = time.monotonic() + _MEASURE_S

            def go_on() -> bool:
                check_wanted()
                return time.monotonic() < end

            if drafting.planner_cache and os.environ.get("EAGLECPP_PLANNER_CACHE") != "0":
                shared.cache = PlannerCache(native.get(), plan, drafting, shared.gains)
                has_costs = shared.cache.load(native.get())
            shared.exactness = exactness = measure(native.get(), go_on)
            drain()
            if drafting.exact == "on" and exactness.reason:
                _log.warning("exact=on: target-only decoding, because %s", exactness.reason)
            if plan.draft is not None and not has_costs:
                rehearse(native.get(), shared.sampling, go_on)

        if has_draft:
            prepare()
        elif shared.has_forms:
            native.before_forms = prepare
    except BaseException:
        native.close(lambda native: None)
        raise
    return native, shared


def rehearse(native: core.Engine, sampling: SamplingOptions, go_on: Callable[[], bool]) -> None:
    """Drafts short answers, greedily and at the temperature of `sampling`, until `go_on()` is false. The
    engine must not have any conversation.

    This warm-up gives the planner measured costs before the first answer. A device loads each kernel at its
    first use, and CUDA runs a graph twice before it is captured. With a drafter, these first uses take tens
    of milliseconds, as long as twenty target-only steps of a small model. Without a warm-up, the planner
    would count this time as the cost of drafting in the first answer, and stop drafting. An engine that is
    too slow to finish hardly needs a warm-up.
    """
    try:
        prompt = native.tokenize(_TEXT, True, False)
    except UnsupportedError:  # the vocabulary cannot tokenize letters
        return
    if not prompt or len(prompt) + _TOKENS >= native.n_ctx:
        return
    depth = min(_DEPTH, native.n_draft_max, (native.draft_info() or {}).get("n_parallel") or _DEPTH)
    # Other sampling options are not set, because they may need features that the text or the model lacks.
    plain = SamplingOptions(max_tokens=_TOKENS, ignore_eos=True)
    # For a chain of one token, the drafter's graph contains only the commit. For a longer chain, the graph
    # contains the commit and the draft steps.
    for strategy, temperature in product(("chain:1", f"chain:{depth}"), {0.0, sampling.temperature}):
        params = generate_params(replace(plain, temperature=temperature), 1, Strategy.parse(strategy))
        sequence = native.open_sequence()
        try:
            native.begin(sequence, prompt, params)
            while go_on() and not native.step([sequence])[0].finish:
                pass
        finally:
            native.end(sequence)
            native.close_sequence(sequence)


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
