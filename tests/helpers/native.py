# SPDX-License-Identifier: MIT
"""Helpers that build an object of the extension in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.lowlevel import EngineOptions, Sampler, SamplingParams, Target


def _filled(made: Any, values: dict[str, Any]) -> Any:
    for name, value in values.items():
        setattr(made, name, value)
    return made


def engine_options(**values: Any) -> EngineOptions:
    """Returns engine options, with one thread unless `values` has n_threads."""
    options: EngineOptions = _filled(EngineOptions(), {"n_threads": 1, **values})
    return options


def sampling_params(**values: Any) -> SamplingParams:
    """Returns sampling parameters. grammar: GBNF, or a value for `resolve_grammar`."""
    if "grammar" in values:
        values["grammar"] = str(resolve_grammar(values["grammar"]) or "")
    params: SamplingParams = _filled(SamplingParams(), values)
    return params


def open_target(path: Path, n_ctx: int = 64) -> Target:
    """Opens a model for a sampler, which needs the model's vocabulary."""
    return Target(engine_options(target_path=str(path), n_ctx=n_ctx), [])


def make_sampler(target: Target, **values: Any) -> Sampler:
    """Returns a sampler. values: fields of `SamplingParams`."""
    return Sampler(sampling_params(**values), target)
