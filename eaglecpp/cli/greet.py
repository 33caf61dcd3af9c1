# SPDX-License-Identifier: MIT
"""Output of `eaglecpp` without a command: facts about this machine, its models, and a command to try next."""

from __future__ import annotations

from eaglecpp.cli.doctor import gather, machine_rows
from eaglecpp.cli.stored import models_table
from eaglecpp.cli.terminal import labelled
from eaglecpp.human import human_bytes
from eaglecpp.store import Stores
from eaglecpp.store.describe import draft_text
from eaglecpp.store.drafters import find_drafters, first_runnable
from eaglecpp.store.model import StoredModel
from eaglecpp.store.packaged import NAME, SIZE

_MAX_MODELS = 12


def greeting() -> str:
    """Returns the whole text that `eaglecpp` prints without a command."""
    facts = gather()
    if facts["problems"]:
        return f"eaglecpp {facts['eaglecpp']} cannot run: {facts['problems'][0]}\n\nnext: eaglecpp doctor\n"
    models = [model for model in Stores.open().models() if not model.is_drafter]
    listed = models_table(models[:_MAX_MODELS]) if models else "no models here yet\n"
    if len(models) > _MAX_MODELS:
        listed += f"and {len(models) - _MAX_MODELS} more: eaglecpp list\n"
    return (
        f"eaglecpp {facts['eaglecpp']}: the same text from your model, sooner\n\n"
        f"{labelled(machine_rows(facts))}\n{listed}\n{_next(models)}\nall commands: eaglecpp --help\n"
    )


def _next(models: list[StoredModel]) -> str:
    """Returns the command to suggest. The command runs a model with a drafter. If there is none, it runs a
    model for which a drafter is known, and otherwise any model.
    """
    if not models:
        what = f"(downloads {human_bytes(SIZE)} the first time; includes a drafter)"
        return f"next: eaglecpp run {NAME.model}   {what}"
    best = min(models, key=_n_steps_to_a_drafter)
    auto = " --draft auto" if _n_steps_to_a_drafter(best) == 1 else ""
    return f"next: eaglecpp run {best.short_name}{auto}"


def _n_steps_to_a_drafter(model: StoredModel) -> int:
    """Returns 0 for a model with a drafter, 1 if `--draft auto` finds a drafter for the model, otherwise
    2.
    """
    if draft_text(model):
        return 0
    return 1 if first_runnable(find_drafters([str(model.name)])) is not None else 2
