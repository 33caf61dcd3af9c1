# SPDX-License-Identifier: MIT
"""What commands that open a model share: downloads with progress bars, notices, the plan of `--verbose`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from eaglecpp.cli.options import in_flags
from eaglecpp.cli.terminal import note, stderr_is_terminal
from eaglecpp.modelfile.parameters import engine_options
from eaglecpp.opening.fetch import fetch
from eaglecpp.opening.find import ModelFiles
from eaglecpp.opening.plan import plan_opening
from eaglecpp.options import Strategy
from eaglecpp.store.progress import Bars

if TYPE_CHECKING:
    from eaglecpp.engine.engine import Engine

# Tokens per slice of a prompt in `run`: Ctrl+C and the display of progress wait for a slice to end; longer
# ones are no faster, because a compute graph takes 512 tokens anyway.
_N_BATCH = 512
_MAX_REPEATS = 4.0


def run_defaults() -> dict[str, Any]:
    """What `run` opens a model with where neither model nor user says so: Ollama's defaults, and two of ours.
    Values by "group.field" of `eaglecpp.options`; what is absent is the engine's own default.
    """
    return {**engine_options({}), "model.n_batch": _N_BATCH, "sampling.max_repeats": _MAX_REPEATS}


def look_up(
    reference: str, draft: str | None = None, *, wants_draft: bool = True, insecure: bool = False
) -> ModelFiles:
    """As `eaglecpp.opening.fetch`, with progress bars; on a terminal, mentions a drafter that exists."""
    with Bars() as bars:
        found = fetch(reference, draft, wants_draft=wants_draft, insecure=insecure, report=bars)
    if found.offer and stderr_is_terminal():
        note(f"no drafter: {found.offer}")
    return found


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
    """Opens the engine; options override what a stored model says. Without drafting, looks up no drafter.
    choose_context: with no length given, as long as model and memory allow.
    """
    from eaglecpp.engine.engine import Engine

    has_text = options.get("text_drafts") == "on"
    if draft is None and not has_text and target.endswith(".gguf"):  # a file has no drafter
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
        note(plan_text(engine))
    return engine


def plan_text(engine: Engine) -> str:
    """What was opened, and where each option comes from."""
    rows = engine.plan.rows(engine.chat_template.describe())
    return "\n".join(f"{name + ':':<12}{text}" for name, text in rows)


def needs_draft(strategy: Strategy | None, can_draft: bool) -> None:
    """Raises click.UsageError for a fixed strategy with nothing to draft from."""
    if strategy is not None and strategy.kind not in ("auto", "off") and not can_draft:
        raise click.UsageError(f"--strategy {strategy} needs a drafter: give --draft")
