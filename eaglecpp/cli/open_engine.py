# SPDX-License-Identifier: MIT
"""Helpers for commands that open a model: downloads with progress bars, notices, and the plan that
`--verbose` prints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from eaglecpp.cli.options import in_flags
from eaglecpp.cli.terminal import note, stderr_is_terminal
from eaglecpp.modelfile.parameters import parameter_options
from eaglecpp.opening.fetch import fetch
from eaglecpp.opening.find import ModelFiles
from eaglecpp.opening.plan import OpeningPlan, plan_opening
from eaglecpp.options import Strategy
from eaglecpp.store.progress import Bars

if TYPE_CHECKING:
    from eaglecpp.chat.template import ChatTemplate
    from eaglecpp.engine.engine import Engine

# Number of prompt tokens per batch in `run`. Ctrl+C and the progress display take effect after each batch.
# Longer batches are not faster, because a compute graph takes 512 tokens.
_N_BATCH = 512
_MAX_REPEATS = 4.0


def run_defaults() -> dict[str, Any]:
    """Returns the defaults of `run` by "group.field": Ollama's defaults, and two defaults of eaglecpp. Other
    options keep the engine's defaults.
    """
    return {**parameter_options({}), "model.n_batch": _N_BATCH, "sampling.max_repeats": _MAX_REPEATS}


def look_up(
    reference: str, draft: str | None = None, *, wants_draft: bool = True, insecure: bool = False
) -> ModelFiles:
    """Calls `eaglecpp.opening.fetch` with progress bars. On a terminal, also mentions a known drafter."""
    with Bars() as bars:
        files = fetch(reference, draft, wants_draft=wants_draft, insecure=insecure, report=bars)
    if files.offer and stderr_is_terminal():
        note(f"no drafter: {files.offer}")
    return files


def open_engine(
    target: str,
    draft: str | None,
    strategy: Strategy | None,
    options: dict[str, Any],
    *,
    verbose: bool = False,
    choose_context: bool = False,
    find: Callable[..., ModelFiles] = look_up,
) -> Engine:
    """Opens the engine. The given options override the options of a stored model. If drafting is off, no
    drafter is looked up.

    choose_context: without an explicit context length, use as much as the model and the memory allow
    """
    from eaglecpp.engine.engine import Engine

    has_text = options.get("text_drafts") == "on"
    # A missing drafter raises an error here, before the target is loaded.
    if draft is None and not has_text and target.endswith(".gguf"):
        needs_draft(strategy, False)
    draft = None if strategy is not None and strategy.kind == "off" else draft
    plan = plan_opening(
        target, draft, strategy=strategy, options=options, find=find, choose_context=choose_context
    )
    needs_draft(strategy, plan.can_draft)
    for notice in plan.notices:
        note(f"note: {in_flags(notice)}")
    engine = Engine(plan)
    if verbose:
        note(plan_text(engine.plan, engine.chat_template))
    return engine


def plan_text(plan: OpeningPlan, template: ChatTemplate) -> str:
    """Formats a plan: the files to open, the chat template, and the origin of each option."""
    return "\n".join(f"{name + ':':<12}{text}" for name, text in plan.rows(template.describe()))


def needs_draft(strategy: Strategy | None, can_draft: bool) -> None:
    """Raises click.UsageError for a fixed strategy if the model cannot draft."""
    if strategy is not None and strategy.kind not in ("auto", "off") and not can_draft:
        raise click.UsageError(f"--strategy {strategy} needs a drafter: give --draft")
