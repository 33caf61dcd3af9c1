# SPDX-License-Identifier: MIT
"""What `eaglecpp` alone says: what this machine has, which models are here, and what to type next."""

from __future__ import annotations

from eaglecpp.cli.doctor import gather, machine_rows
from eaglecpp.cli.table import labelled, table
from eaglecpp.human import human_bytes
from eaglecpp.options import TEXT
from eaglecpp.store import Stores
from eaglecpp.store.describe import draft_text
from eaglecpp.store.drafters import find_drafters, first_runnable
from eaglecpp.store.model import StoredModel
from eaglecpp.store.packaged import SMOLLM2

_MAX_MODELS = 12


def greeting() -> str:
    """The whole text, some lines long."""
    facts = gather()
    if facts["problems"]:
        return f"eaglecpp {facts['eaglecpp']} cannot run: {facts['problems'][0]}\n\nnext: eaglecpp doctor\n"
    models = [model for model in Stores.open().models() if not model.is_drafter]
    rows = [
        (_name(m), "here" if m.own else m.owner, human_bytes(m.size), _drafter(m))
        for m in models[:_MAX_MODELS]
    ]
    found = table(("MODEL", "FROM", "SIZE", "DRAFTER"), rows) if rows else "no models here yet\n"
    if len(models) > _MAX_MODELS:
        found += f"and {len(models) - _MAX_MODELS} more: eaglecpp list\n"
    return (
        f"eaglecpp {facts['eaglecpp']}: the same text from your model, sooner\n\n"
        f"{labelled(machine_rows(facts))}\n{found}\n{_next(models)}\nall commands: eaglecpp --help\n"
    )


def _next(models: list[StoredModel]) -> str:
    """The command that gives most: a model whose drafter is here, then one that has a known drafter."""
    if not models:
        name = SMOLLM2.name.model
        size = human_bytes(SMOLLM2.size)
        return f"next: eaglecpp pull {name}   ({size}; we have its drafter)\nthen: eaglecpp run {name}"
    worth = {"known": 1, "": 2}
    best = min(models, key=lambda model: worth.get(_drafter(model), 0))
    return f"next: eaglecpp run {_name(best)}{' --draft auto' if _drafter(best) == 'known' else ''}"


def _name(model: StoredModel) -> str:
    return str(model.name).removesuffix(":latest")


def _drafter(model: StoredModel) -> str:
    """In words; "known": not here, and `--draft auto` finds it."""
    drafter = draft_text(model)
    if drafter == "-":
        return "known" if first_runnable(find_drafters([str(model.name)])) is not None else ""
    return "the text itself" if drafter == TEXT else f"yes ({drafter})"
