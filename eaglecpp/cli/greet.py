# SPDX-License-Identifier: MIT
"""What `eaglecpp` alone says: what this machine has, which models are here, and what to type next."""

from __future__ import annotations

from typing import NamedTuple

from eaglecpp.cli.doctor import gather, machine_lines
from eaglecpp.cli.table import table
from eaglecpp.human import human_bytes
from eaglecpp.options import TEXT
from eaglecpp.store import Stores
from eaglecpp.store.describe import draft_text
from eaglecpp.store.drafters import find_drafters, first_runnable
from eaglecpp.store.packaged import SMOLLM2

__all__ = ["greeting"]

_MAX_MODELS = 12


class _Model(NamedTuple):
    """drafter: in words; run: the options that use it."""

    name: str
    place: str
    size: int
    drafter: str
    run: str = ""


def greeting() -> str:
    """The whole text, some lines long."""
    facts = gather()
    if facts["problems"]:
        return f"eaglecpp {facts['eaglecpp']} cannot run: {facts['problems'][0]}\n\nnext: eaglecpp doctor\n"
    models = _models()
    rows = [(m.name, m.place, human_bytes(m.size), m.drafter) for m in models[:_MAX_MODELS]]
    found = table(("MODEL", "FROM", "SIZE", "DRAFTER"), rows) if rows else "no models here yet\n"
    if len(models) > _MAX_MODELS:
        found += f"and {len(models) - _MAX_MODELS} more: eaglecpp list\n"
    lines = [
        f"eaglecpp {facts['eaglecpp']}: the same text from your model, sooner",
        "",
        *machine_lines(facts),
    ]
    return "\n".join([*lines, "", found, *_next(models), "all commands: eaglecpp --help", ""])


def _next(models: list[_Model]) -> list[str]:
    """The command that gives most: a model whose drafter is here, then one that has a known drafter."""
    if not models:
        return [
            f"next: eaglecpp pull {SMOLLM2.name.model}   ({human_bytes(SMOLLM2.size)}; we have its drafter)",
            f"then: eaglecpp run {SMOLLM2.name.model}",
        ]
    best = next((m for m in models if m.drafter and not m.run), None) or next(
        (m for m in models if m.drafter), models[0]
    )
    return [f"next: eaglecpp run {best.name}{best.run}"]


def _models() -> list[_Model]:
    """Those of the stores."""
    stores = Stores.open()
    out = []
    for model in stores.models():
        if model.is_drafter:
            continue
        name = str(model.name).removesuffix(":latest")
        drafter, run = draft_text(model), ""
        if drafter == "-":
            is_known = first_runnable(find_drafters([str(model.name)])) is not None
            drafter, run = ("known", " --draft auto") if is_known else ("", "")
        else:
            drafter = "the text itself" if drafter == TEXT else f"yes ({drafter})"
        out.append(_Model(name, "here" if model.own else model.owner, model.size, drafter, run))
    return out
