# SPDX-License-Identifier: MIT
"""Copies the option dataclasses into the plain structs of the extension; the only place that knows both.

An option that only one side has is an error here, instead of being lost silently.
"""

from __future__ import annotations

from pathlib import Path

from eaglecpp._extension import core
from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, Strategy, describe

__all__ = ["engine_options", "generate_params"]

_MIN_DRAFT_MAX = 16
_MORE_OF_TEXT = 16  # copies run on and on, and proposing them costs nothing
# Declared in SamplingOptions, but not part of choosing a token: they go into GenerateParams or stay in
# Python.
_NOT_SAMPLING = {"max_tokens", "stop", "ignore_eos", "n_probs", "seed"}


def engine_options(
    target: Path, draft: Path | None, model: ModelOptions, drafting: DraftOptions, strategy: Strategy
) -> core.EngineOptions:
    """Everything the extension needs to load the models; limits of 0 become what the strategy needs."""
    native = core.EngineOptions()
    native.target_path = str(target)
    native.draft_path = "" if draft is None else str(draft)
    _copy(model, native, skip={"lora", "rpc", "tensor_split", "override_tensor"})
    _copy(drafting, native, skip={"n_draft_max", "n_leaves_max", "planner_cache"})
    native.lora = list(model.lora)
    native.tensor_split = list(model.tensor_split)
    native.override_tensor = list(model.override_tensor)
    native.n_draft_max = drafting.n_draft_max or max(_MIN_DRAFT_MAX, strategy.nodes)
    if drafting.text_drafts == "on" and not drafting.n_draft_max:
        native.n_draft_more = _MORE_OF_TEXT
    native.n_leaves_max = drafting.n_leaves_max or strategy.n_leaves
    return native


def generate_params(sampling: SamplingOptions, seed: int, strategy: Strategy) -> core.GenerateParams:
    """One generation in the extension's terms; `strategy` is resolved, `seed` drawn."""
    native = core.SamplingParams()
    _copy(sampling, native, skip=_NOT_SAMPLING | {"logit_bias", "dry_sequence_breakers"})
    native.seed = seed
    native.logit_bias = list(sampling.logit_bias)
    native.dry_sequence_breakers = list(sampling.dry_sequence_breakers)
    params = core.GenerateParams()
    params.sampling = native
    params.strategy = core.Strategy(strategy.kind, strategy.k, strategy.depth, strategy.nodes)
    params.max_tokens = sampling.max_tokens
    params.n_probs = sampling.n_probs
    params.ignore_eos = sampling.ignore_eos
    return params


def _copy(source: ModelOptions | DraftOptions | SamplingOptions, target: object, skip: set[str]) -> None:
    for option in describe(source):
        if option.name not in skip:
            if not hasattr(target, option.name):
                raise TypeError(f"the extension's {type(target).__name__} has no field {option.name!r}")
            setattr(target, option.name, getattr(source, option.name))
