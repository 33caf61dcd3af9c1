# SPDX-License-Identifier: MIT
"""Classes of the extension, made in one line."""

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
    """On one thread, unless said otherwise."""
    options: EngineOptions = _filled(EngineOptions(), {"n_threads": 1, **values})
    return options


def sampling_params(**values: Any) -> SamplingParams:
    """With a grammar in GBNF, or of `resolve_grammar`."""
    if "grammar" in values:
        values["grammar"] = str(resolve_grammar(values["grammar"]) or "")
    params: SamplingParams = _filled(SamplingParams(), values)
    return params


def open_target(path: Path, n_ctx: int = 64) -> Target:
    """A model whose vocabulary a sampler needs."""
    return Target(engine_options(target_path=str(path), n_ctx=n_ctx), [])


def make_sampler(target: Target, **values: Any) -> Sampler:
    """values: fields of `SamplingParams`."""
    return Sampler(sampling_params(**values), target)
